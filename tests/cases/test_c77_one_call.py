"""One call is one call: the same key and the same bytes until somebody says what became of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.operations.assembly import assemble
from tests.cases.house import SHOP, House, a_house, item, order
from tests.outbox.pretend import Answers, Behaviour, Call, Misbehaves, in_turn
from tests.receiver.senders import SECRET

pytestmark = pytest.mark.anyio

HASTY = SHOP.replace("[destinations.payments]\n", '[destinations.payments]\ntimeout = "500ms"\n')


class Provider:
    """Performs each key once, refuses a key with another body, and loses answers as told."""

    def __init__(self, *losses: Behaviour) -> None:
        self.losses = list(losses)
        self.performed: dict[str, bytes] = {}
        self.mismatches = 0

    def __call__(self, _number: int, call: Call) -> Behaviour:
        if self.performed.setdefault(call.key, call.body) != call.body:
            self.mismatches += 1
            return Answers(status=422)
        return self.losses.pop(0) if self.losses else Answers()


async def turn(house: House, times: int = 1) -> None:
    for _ in range(times):
        await house.call()
        await house.run_sql(
            "update outbox set due_at = now() where state = 'pending' and due_at is not null"
        )


async def upgraded(house: House, directory: Path, **replaced: str) -> None:
    """Start again with another configuration: what was frozen must not notice."""
    file = directory / "reconciler.toml"
    written = file.read_text()
    for old, new in replaced.items():
        assert old in written
        written = written.replace(old, new)
    file.write_text(written)
    await house.close()
    house.assembly = assemble(file, environ={"SHOP_SECRET": SECRET})


LOSSES: dict[str, list[Any]] = {
    "performed, and no answer in time": [Misbehaves("hangs"), Misbehaves("hangs")],
    "performed, and the connection is gone": [Misbehaves("closes"), Misbehaves("resets")],
    "performed, and a gateway answers": [Answers(status=504), Answers(status=502)],
    "performed, and still at it": [Misbehaves("hangs"), Answers(status=409), Answers(status=409)],
    "performed, and too many": [Misbehaves("closes"), Answers(status=429)],
}


@pytest.mark.parametrize("losses", LOSSES.values(), ids=LOSSES)
async def test_a_lost_answer_costs_no_second_charge(
    engine: AsyncEngine, tmp_path: Path, losses: list[Any]
) -> None:
    """
    Meanwhile the order moves on, is listed and read, the webhook is repeated, and the service
    is upgraded to other templates, headers and keys. The provider sees one key and one body.
    """
    provider = Provider(*losses)
    async with a_house(engine, tmp_path, configuration=HASTY) as house:
        house.pretend.behave = provider
        first = order("e3", version=3, paid=True, amount=30)
        await house.outcome(first)
        await turn(house)

        await house.outcome(order("e4", version=4, paid=True, amount=40, status="more"))
        await house.outcome(first)
        house.listed = [item(version=5, paid=True, amount=50)]
        house.got = {"ord_42": house.listed[0]}
        await house.reconcile()
        await upgraded(
            house,
            tmp_path,
            **{
                "POST /charges/": "PUT /v2/charges/",
                'version = "{{ version }}"': 'v = "{{ version }}", more = true',
                'becomes = "state.paid"\n': 'becomes = "state.paid"\nidempotency_key ='
                ' "new:{{ key }}:{{ version }}"\nheaders = { X-New = "1" }\n',
            },
        )
        await turn(house, len(losses) + 1)
        house.pretend.release.set()

        sent = {(call.method, call.target, call.key, call.body) for call in house.pretend.calls}
        expected = b'{"amount":30,"version":3,"of":"ord_42"}'
        assert {("POST", "/charges/ord_42", "shop:order:ord_42:3:capture", expected)} == sent
        assert len(losses) + 1 == len(house.pretend.calls)
        assert {"shop:order:ord_42:3:capture": expected} == provider.performed
        assert [("delivered",)] == await house.rows("select state from outbox")


async def test_the_effect_is_gone_from_the_configuration(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """What was asked for is still called, as it was."""
    provider = Provider(Misbehaves("closes"))
    async with a_house(engine, tmp_path) as house:
        house.pretend.behave = provider
        await house.outcome(order("e1", version=1, paid=True, amount=30))
        await turn(house)
        await upgraded(house, tmp_path, **{"[effects.capture]": "[effects.renamed]"})
        await turn(house)
        assert 1 == len({(call.key, call.body) for call in house.pretend.calls})
        assert [("delivered",)] == await house.rows("select state from outbox")


@pytest.mark.parametrize("status", [400, 422])
async def test_a_mismatch_is_never_answered_by_a_fresh_key(
    engine: AsyncEngine, tmp_path: Path, status: int
) -> None:
    """The provider says that the key came with other bytes: over, visible, and left alone."""
    async with a_house(engine, tmp_path) as house:
        house.pretend.behave = in_turn(Misbehaves("closes"), Answers(status=status))
        await house.outcome(order("e1", paid=True, amount=30))
        await turn(house, 4)
        assert 2 == len(house.pretend.calls)
        assert 1 == len(set(house.pretend.keys))
        ((state, error),) = await house.rows("select state, last_error from outbox")
        assert "uncertain" == state
        assert str(status) in error


async def test_a_call_that_is_slower_than_everything_is_made_once_at_a_time(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """While the provider makes up its mind other relays find nothing to do for this order."""
    async with a_house(engine, tmp_path) as house:
        house.pretend.behave = in_turn(Misbehaves("answers_late"), Answers())
        await house.outcome(order("e1", paid=True, amount=30))
        slow = asyncio.create_task(house.call())
        while not house.pretend.calls:  # noqa: ASYNC110 - the pretend tells nobody
            await asyncio.sleep(0.005)
        async with asyncio.TaskGroup() as relays:
            others = [relays.create_task(house.call()) for _ in range(5)]
        assert [0] * 5 == [other.result() for other in others]
        house.pretend.release.set()
        assert 1 == await slow
        assert {1} == set(house.pretend.most_per_key.values())
        assert 1 == len(house.pretend.calls)
        assert [("delivered",)] == await house.rows("select state from outbox")


SEVERAL = """
[effects.invoice]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /charges/{{ key }}"
json = { amount = "{{ state.amount }}", version = "{{ version }}", of = "{{ key }}" }

[effects.thanks]
on = ["shop:refund.succeeded"]
destination = "payments"
request = "POST /receipts"
idempotency_key = "{{ event_id }}:thanks"

[effects.paid_note]
on = ["shop:order.updated"]
if_stale = "skip"
destination = "payments"
request = "POST /notes"
"""


async def test_effects_of_one_event_are_calls_of_their_own(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    Two effects of one change that even look the same, a fact beside them, two of another fact:
    a provider that stores its first answer by key performs all of them.
    """
    provider = Provider()
    async with a_house(engine, tmp_path, more=SEVERAL) as house:
        house.pretend.behave = provider
        await house.outcome(order("e1", version=1, paid=True, amount=30))
        refund = {"id": "e2", "type": "refund.succeeded", "data": {"amount": 1}}
        await house.outcome(refund)
        await turn(house)
        assert {
            "shop:order:ord_42:1:capture",
            "shop:order:ord_42:1:invoice",
            "e1",
            "e2:receipt",
            "e2:thanks",
        } == provider.performed.keys()
        assert 5 == len(house.pretend.calls)
        assert 0 == provider.mismatches
