"""What is no success is not recorded as one, and nothing is tried for ever or given up too soon."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.backoff import Backoff
from outbox.store import counts
from tests.cases.house import SHOP, a_house, order
from tests.outbox.pretend import Answers, Call, Misbehaves, Pretend, in_turn
from tests.outbox.world import Crash, an_entry, crash_at

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)

RETRIED = [401, 403, 408, 409, 425, 429, 500, 502, 503, 504, 507, 520, 599, 300, 301, 302, 303, 304,
           307, 308, "closes", "garbage", "resets", "hangs", "drips_head"]  # fmt: skip
FINAL = [400, 402, 404, 405, 406, 410, 411, 412, 413, 415, 422, 426, 431, 451, 499]
SUCCESS = [200, 201, 202, 203, 204, 206, 207, 226, 299, "closes_after"]


def answer(what: int | str) -> Answers | Misbehaves:
    return Answers(status=what, body=b"") if isinstance(what, int) else Misbehaves(what)


async def test_every_answer_has_its_verdict(world, pretend) -> None:
    """
    All statuses that mean something and some that do not, and everything but a status: only a
    2xx is a success, and nothing but a 4xx that is no matter of time or setting is final.
    """
    world.set(timeout=timedelta(seconds=3), concurrency=64)
    every = [*RETRIED, *FINAL, *SUCCESS]
    pretend.behave = lambda _, call: answer(every[int(call.target.rpartition("/")[2])])
    await world.enqueue(*(an_entry(n, path=f"/{n}") for n in range(len(every))))
    await world.relay_once()
    pretend.release.set()
    found = {row.path: row.state for row in await world.entries()}
    expected = ["pending"] * len(RETRIED) + ["dead"] * len(FINAL) + ["delivered"] * len(SUCCESS)
    assert {f"/{n}": (every[n], state) for n, state in enumerate(expected)} == {
        path: (every[int(path[1:])], state) for path, state in found.items()
    }
    assert len(every) == len(pretend.calls)
    never = {row.path for row in await world.entries() if row.first_attempt_at is None}
    refused = {401, 403, 425, 429, *range(300, 309), *FINAL}
    assert {f"/{n}" for n, what in enumerate(every) if what in refused} == never


@pytest.mark.parametrize("status", [401, 403, 302, 307])
async def test_a_refusal_uses_itself_up_over_restarts(world, pretend, status: int) -> None:
    """
    Every attempt is made by another relay, some of which die before they can tell. The count is
    in the database: after the configured number it is over, and stays over.
    """
    pretend.behave = in_turn(Answers(status=status, headers=(("Location", "/login"),)))
    world.set(max_attempts=6)
    world.policy = replace(world.policy, backoff=Backoff(base=timedelta(seconds=1), cap=HOUR))
    await world.enqueue(an_entry())
    waits = []
    for turn in range(9):
        if turn in {1, 3}:
            with pytest.raises((Crash, BaseExceptionGroup)):
                await world.relay_once(point=crash_at("relay-before-mark"))
        else:
            await world.relay_once()
            waits += [wait for wait in await world.waits() if wait is not None]
        await world.time_passes(2 * HOUR)
    row = await world.entry()
    assert 6 == row.attempts == len(pretend.calls)
    assert row.state in {"dead", "uncertain"}  # two of them were never answered
    assert {("POST", "/v1/charges")} == {(call.method, call.target) for call in pretend.calls}
    assert waits
    assert 0 == await world.relay_once()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_a_delivery(
    engine: AsyncEngine, tmp_path: Path, status: int
) -> None:
    """
    The API has moved behind a login page that answers 200. The charge is not there, here or on
    another host; nothing was performed, and it is called again when the way is right.
    """
    async with Pretend() as elsewhere, a_house(engine, tmp_path) as house:

        def behave(_number: int, call: Call) -> Answers:
            if not moved or call.target.startswith("/login"):
                return Answers()
            return Answers(status=status, headers=(("Location", moved.pop()),))

        house.pretend.behave = behave
        moved = ["/login", f"{elsewhere.url}/login"]
        await house.outcome(order("e1", paid=True, amount=1))
        for expected in ("pending", "pending", "delivered"):
            await house.call()
            assert [(expected,)] == await house.rows("select state from outbox")
            await house.run_sql("update outbox set due_at = now() where state = 'pending'")
        assert [] == elsewhere.calls
        targets = {(call.method, call.target) for call in house.pretend.calls}
        assert {("POST", "/charges/ord_42")} == targets
        assert 3 == len(house.pretend.calls)


async def test_success_is_what_was_said_to_be_one(engine: AsyncEngine, tmp_path: Path) -> None:
    """
    An API that answers 200 to everything: what its body says decides. A failure in it is none
    of "sent"; one that passes is tried again; one that cannot be read is in doubt.
    """
    said = SHOP.replace(
        "[destinations.payments]\n",
        '[destinations.payments]\nsuccess_when = "status == 200 and body.ok"\n'
        "retry_when = \"body.error == 'busy'\"\n",
    )
    bodies = {
        "good": (b'{"ok": true}', "delivered"),
        "busy": (b'{"ok": false, "error": "busy"}', "pending"),
        "bad": (b'{"ok": false, "error": "no such card"}', "dead"),
        "empty": (b"{}", "dead"),
        "html": (b"<html>ok</html>", "pending"),
        "text": (b'{"ok": "yes"}', "pending"),
    }
    async with a_house(engine, tmp_path, configuration=said) as house:
        house.pretend.behave = lambda _, call: Answers(
            body=bodies[call.target.rpartition("/")[2]][0]
        )
        for number, key in enumerate(bodies):
            await house.outcome(order(f"e{number}", key, paid=True, amount=1))
        await house.call()
        states = dict(await house.rows("select key, state from outbox"))
        assert {key: state for key, (_, state) in bodies.items()} == states


async def test_a_name_that_is_not_known_yet(world, pretend) -> None:
    """No such host, nobody listens, a TLS that is none: retried, and no key's clock has begun."""
    there = world.destination.channel
    await world.enqueue(an_entry(idempotent=False))
    port = pretend.url.rpartition(":")[2]
    for url in ("http://nowhere.invalid", "http://127.0.0.1:1", f"https://127.0.0.1:{port}"):
        world.set(channel=world.channel(url))
        await world.relay_once()
        row = await world.entry()
        assert ("pending", None) == (row.state, row.first_attempt_at), url
        await world.time_passes(2 * HOUR)
    world.set(channel=there)
    await world.relay_once()
    assert ["delivered"] == await world.states()


@pytest.mark.parametrize("at", ["relay-after-lease", "relay-before-send", "relay-after-send"])
async def test_what_a_dead_relay_held_is_seen_to_wait(world, pretend, at: str) -> None:
    """
    While the lease runs somebody may still be at it; from its end on the entry is due, and how
    long the oldest has been due is there to be watched until it is called.
    """
    await world.enqueue(an_entry())
    with pytest.raises((Crash, BaseExceptionGroup)):
        await world.relay_once(point=crash_at(at))

    async def oldest():
        async with world.engine.connect() as connection:
            return (await counts(connection))["oldest_due_at"]

    assert await oldest() is None
    await world.time_passes(world.policy.lease + HOUR)
    assert await oldest() is not None
    assert 1 == await world.relay_once()
    assert await oldest() is None
    assert {"key_1"} == set(pretend.keys)


async def test_three_relays_and_what_failed_before(world, pretend) -> None:
    """After a deploy three of them find twenty failed calls: each is made once for each attempt."""
    pretend.behave = lambda number, _: Answers(status=500 if number <= 40 else 200)
    await world.enqueue(*(an_entry(number) for number in range(20)))
    for attempt in (1, 2, 3):
        async with asyncio.timeout(20), asyncio.TaskGroup() as relays:
            for _ in range(3):
                relays.create_task(calling(world, pretend, until=20 * attempt))
        assert 20 * attempt == len(pretend.calls)
        await world.time_passes(2 * HOUR)
    assert {1} == set(pretend.most_per_key.values())
    assert {3} == {row.attempts for row in await world.entries()}
    assert ["delivered"] * 20 == await world.states()


async def calling(world, pretend, *, until: int) -> None:
    """One relay, turn after turn; for one of them to be there the others leave it free slots."""
    while len(pretend.calls) < until:
        await world.relay_once()
