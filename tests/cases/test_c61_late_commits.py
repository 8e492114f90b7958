"""Entries are found by what they are, never by where a reader has been."""

import asyncio
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.enqueue import enqueue
from reconciler.ledger.apply import apply
from reconciler.receiver.envelope import read_delivery
from tests.cases.house import a_house, as_bytes, order
from tests.outbox.world import an_entry

pytestmark = pytest.mark.anyio

LOW, HIGH = UUID(int=1 << 76 | 1), UUID(int=(1 << 128) - 1)


@pytest.mark.parametrize("late", [LOW, HIGH], ids=["a low id", "a high id"])
@pytest.mark.parametrize("ordered", [False, True])
async def test_what_commits_late_is_called(world, pretend, late: UUID, *, ordered: bool) -> None:
    """
    A transaction writes its entry and stalls. Others commit, relays take turns, all is
    delivered; then it commits, with an id and times that lie far behind. Its turn comes.
    """
    lane = {"ordered": ordered, "kind": "order", "key": "k", "revision": 5}
    async with world.engine.connect() as stalled:
        await enqueue(stalled, [an_entry(1, **lane)], new_id=lambda: late)
        for number in range(2, 6):
            await world.enqueue(an_entry(number, **{**lane, "revision": 5 + number}))
            assert 1 == await world.relay_once()
        assert 0 == await world.relay_once()
        await stalled.execute(
            text("update reconciler.outbox set due_at = due_at - interval '3 days' where id = :id"),
            {"id": late},
        )
        await stalled.commit()
    assert 1 == await world.relay_once()
    assert "key_1" == pretend.keys[-1]
    assert ["delivered"] * 5 == await world.states()


async def test_what_rolled_back_leaves_a_gap_that_stops_nobody(world, pretend) -> None:
    for number in range(9):
        async with world.engine.connect() as connection:
            await enqueue(connection, [an_entry(number)])
            await (connection.rollback() if number % 2 else connection.commit())
        assert (0 if number % 2 else 1) == await world.relay_once()
    assert [f"key_{number}" for number in range(0, 9, 2)] == pretend.keys


async def test_a_running_relay_finds_it_without_a_hint(world, pretend) -> None:
    """Nobody tells it: looking is enough, and it has looked many times before."""
    async with world.running() as running, world.engine.connect() as stalled:
        await enqueue(stalled, [an_entry(1)])
        await world.enqueue(an_entry(2))
        await world.until(lambda: pretend.keys == ["key_2"])
        turns = running.turns
        await world.until(lambda: running.turns > turns + 2)
        await stalled.commit()
        await world.until(lambda: pretend.keys == ["key_2", "key_1"])


async def test_an_event_that_was_applied_slowly(engine: AsyncEngine, tmp_path: Path) -> None:
    """The whole way: two webhooks, the first one's transaction outlives the second's call."""
    async with a_house(engine, tmp_path) as house:
        slow = order("e1", "slow", paid=True, amount=1)
        contract = house.assembly.contracts["shop"]
        async with engine.connect() as connection:
            delivery = read_delivery(contract, as_bytes(slow), {})
            await apply(connection, house.assembly.rules, list(delivery.events))  # type: ignore[arg-type]
            assert "applied" == await house.outcome(order("e2", "quick", paid=True, amount=1))
            assert (1, 0) == (await house.call(), await house.call())
            await connection.commit()
        assert (1, 0) == (await house.call(), await house.call())
        targets = [call.target for call in house.pretend.calls]
        assert ["/charges/quick", "/charges/slow"] == targets


async def test_many_writers_and_two_relays(world, pretend) -> None:
    """Writers that commit in any order, while two relays are at work: nothing stays behind."""

    async def write(number: int) -> None:
        async with world.engine.connect() as connection:
            await enqueue(connection, [an_entry(number)])
            await asyncio.sleep((number * 7 % 10) / 100)
            await connection.commit()

    world.policy = world.policy.__class__(
        poll=timedelta(milliseconds=10), lease=world.policy.lease, backoff=world.policy.backoff
    )
    async with world.running(), world.running():
        async with asyncio.TaskGroup() as writers:
            for number in range(30):
                writers.create_task(write(number))
        await world.until(lambda: len(pretend.calls) >= 30)
        await world.until(lambda: all_delivered(world))
    assert {f"key_{number}" for number in range(30)} == set(pretend.keys)
    assert 30 == len(pretend.keys)


async def all_delivered(world) -> bool:
    return {"delivered"} == set(await world.states())
