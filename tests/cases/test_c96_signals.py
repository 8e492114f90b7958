"""No signal carries anything, and none is needed: size and silence lose nothing."""

import json
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cases.house import a_house, item, order
from tests.world import CONFIGURATION, a_world, eventually, order_event

pytestmark = pytest.mark.anyio

SIZES = [2_666, 2_667, 7_990, 8_000, 100_000, 300_000]
PIECES = {"one byte": "x", "two bytes": "\u00e9", "three bytes": "\u20ac", "four": "\U0001f389"}


async def test_large_events_are_stored_and_called_whole(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    Around the eight thousand bytes that a notification holds, and far beyond, in letters of
    each width: by webhook, listing and read, into calls of the same size.
    """
    texts = [piece * (size // len(piece.encode())) for size in SIZES for piece in PIECES.values()]
    more = """
[effects.copy]
on_change = ["shop:order"]
when = "state.status is not none"
destination = "payments"
request = "POST /copies"
json = { text = "{{ state.status }}" }
"""
    async with a_house(engine, tmp_path, more=more) as house:
        for number, text in enumerate(texts):
            key = f"k{number}"
            match number % 3:
                case 0:
                    assert "applied" == await house.outcome(order(f"e{number}", key, status=text))
                case 1:
                    house.listed = [item(key, status=text)]
                    await house.reconcile()
                case _:
                    house.got[key] = item(key, status=text)
                    await house.reconcile(key)
        while await house.call():
            pass
        stored = await house.rows("select state->>'status' from resources")
        assert sorted(texts) == sorted(text for (text,) in stored)
        sent = [json.loads(call.body)["text"] for call in house.pretend.calls]
        assert sorted(texts) == sorted(sent)


async def test_ids_types_and_keys_as_long_as_they_may_be(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """All of them at once, in letters of three bytes; one more is refused, once."""
    longest, longer = "\u20ac" * 170 + "xx", "\u20ac" * 171
    async with a_house(engine, tmp_path) as house:
        event = order(longest, longest, type_=f"order.{longest[2:]}", paid=True, amount=1)
        assert "applied" == await house.outcome(event)
        assert 1 == await house.call()
        assert [("delivered",)] == await house.rows("select state from outbox")
        for bad in (order(longer), order("e2", longer), order("e3", type_=f"order.{longer}")):
            for _ in range(2):
                assert "quarantined" == await house.outcome(bad)
        assert 3 == (await house.counts())["quarantine"]


async def test_nothing_listens_and_nothing_notifies(engine: AsyncEngine, tmp_path: Path) -> None:
    """No trigger and no function of ours is in the way of an insert."""
    async with a_house(engine, tmp_path) as house:
        schema = "'reconciler'::regnamespace"
        assert [] == await house.rows(
            "select tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid"  # noqa: S608
            f" where c.relnamespace = {schema} and not tgisinternal"
        )
        assert [] == await house.rows(
            f"select proname from pg_proc where pronamespace = {schema}"  # noqa: S608
        )


async def test_every_connection_dies_and_the_next_call_is_as_quick(
    database_url: str, tmp_path: Path
) -> None:
    """
    The real daemon, all of whose sessions are ended on the server, twice. Nobody tells it that
    there is something to do but its own looking; what comes afterwards is called all the same,
    and so is what was written by somebody else's hand.
    """
    patient = CONFIGURATION.replace('grace = "0s"', 'grace = "1m"')  # no scan is quicker than we
    assert patient != CONFIGURATION
    async with (
        a_world(tmp_path, database_url, configuration=patient) as world,
        world.serving() as daemon,
    ):
        await world.baseline_over()
        expected = []
        for number in range(3):
            key = f"ord_{number}"
            data = world.sender.sets(key, paid=True, amount=7)
            assert "applied" == await world.outcome(order_event(f"evt_{number}", data))
            expected.append(f"capture {key}")
            await world.effects(*expected)
            await world.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
                " and application_name = 'reconciler'"
            )
        await world.rows(
            "insert into reconciler.outbox (id, sender, event_id, effect, destination,"
            " idempotency_key, method, path, headers, body, state, due_at)"
            " values (gen_random_uuid(), 'shop', 'by_hand', 'x', 'payments', 'by-hand', 'POST',"
            " '/v1/charges', '{}', '{\"reference\": \"by hand\"}', 'pending', now())"
        )
        await world.effects(*expected, "by hand")

        async def settled() -> bool:
            rows = await world.rows("select 1 from reconciler.outbox where state <> 'delivered'")
            return not rows

        await eventually(settled)
        clocks = "reconciler_clock_skew_seconds "

        async def looked_at() -> bool:
            shown = await daemon.shown("/metrics") or ""
            return any(
                line.startswith(clocks) and line != f"{clocks}0.0" for line in shown.split("\n")
            )

        await eventually(looked_at)
