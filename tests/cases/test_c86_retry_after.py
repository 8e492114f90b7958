"""Retry-After, as seconds or as a date: kept to, bounded, and never an error."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.backoff import Backoff
from tests.cases.house import a_house, item, order
from tests.outbox.pretend import Answers
from tests.outbox.world import an_entry
from tests.polling.server import Reply, Request

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 12, 1, 10, tzinfo=UTC)
DATE = "Tue, 01 Dec 2026 10:00:00 GMT"
KEPT = {
    "20": 20,
    "20.5": 20.5,
    " 20 ": 20,
    "020": 20,
    "Tue, 01 Dec 2026 10:00:20 GMT": 20,
    "Tuesday, 01-Dec-26 10:00:20 GMT": 20,
    "Tue Dec  1 10:00:20 2026": 20,
    "Tue, 01 Dec 2026 11:00:20 +0100": 20,
    "3600": 3600,
    "86400": 3600,
    "99999999999999999999": 3600,
    "9" * 5000: 3600,
    "Fri, 31 Dec 9999 23:59:59 GMT": 3600,
    "0": 0,
    "-5": 0,
    "Thu, 01 Jan 1970 00:00:00 GMT": 0,
}
IGNORED = [
    "", "soon", "20 seconds", "1e3", "0x10", "NaN", "inf", "\xd9\xa2\xd9\xa0", "20, 20", "P1D",
    "Tue, 99 Dec 2026 10:00:20 GMT", "Tue, 01 Dec 2026", "2026-12-01T10:00:20Z", ";", "1_0",
    "Tue, 01 Dec 2026 10:00:20 +9999999999", "\xff\xfe",
]  # fmt: skip


@pytest.mark.parametrize("status", [429, 503, 500, 403, 409, 425])
async def test_a_call_waits_as_long_as_it_was_asked_to(world, pretend, status: int) -> None:
    """
    Each spelling on an entry of its own: never sooner, never longer than an hour, and what
    cannot be read is as if it had not been said. The answer's own clock counts, not ours.
    """
    world.policy = replace(
        world.policy, backoff=Backoff(base=timedelta(0), cap=timedelta(seconds=1))
    )
    world.set(concurrency=64)
    values = [*KEPT, *IGNORED]
    pretend.behave = lambda _, call: Answers(
        status=status,
        headers=(("Date", DATE), ("Retry-After", values[int(call.target.rpartition("/")[2])])),
    )
    numbers = range(len(values))
    await world.enqueue(*(an_entry(f"{n:03}", path=f"/{n}") for n in numbers))  # type: ignore[arg-type]
    assert len(values) == await world.relay_once()
    for value, wait in zip(values, await world.waits(), strict=True):
        asked = KEPT.get(value, 0)
        assert asked - 5 <= wait <= min(asked * 1.25, 3600) + 2, value[:40]
    assert {"pending"} == set(await world.states())


async def test_nobody_else_waits(world, pretend) -> None:
    """The wait is that entry's own, also in a lane where it holds its successors."""
    pretend.behave = lambda number, _: Answers(
        status=429 if number == 1 else 200, headers=(("Retry-After", "600"),)
    )
    lane = {"ordered": True, "kind": "order"}
    await world.enqueue(an_entry(1, key="a", revision=1, **lane))
    await world.relay_once()
    await world.enqueue(
        an_entry(2, key="a", revision=2, **lane), an_entry(3, key="b", revision=1, **lane)
    )
    await world.enqueue(an_entry(4))
    while await world.relay_once():
        pass
    assert ["pending", "pending", "delivered", "delivered"] == await world.states()


@pytest.mark.parametrize("status", [429, 503])
async def test_the_listing_and_the_read_are_asked_again_later(
    engine: AsyncEngine, tmp_path: Path, status: int
) -> None:
    """
    A short wait is waited out, however it is written; for a long one the run ends, says so, and
    no item is lost. Nothing that the header says is an error of ours.
    """
    async with a_house(engine, tmp_path) as house:
        house.listed, house.got = [item(version=2)], {"ord_42": item(version=2)}
        await house.outcome(order("e1"))
        answer, said = house.answer, list[str]()

        async def busy(request: Request) -> Reply:
            if not said:
                return await answer(request)
            headers = {"Retry-After": said.pop(), "Date": DATE}
            return Reply(status=status, headers=headers)

        house.answer = busy  # type: ignore[method-assign]
        for value in ("0", "Tue, 01 Dec 2026 10:00:00 GMT", "-1", "soon", "0.01"):
            said.append(value)
            (read,) = (await house.reconcile("ord_42", dry_run=True)).items
            assert "would_correct" == read["result"], value
        for value in ("99999", "Fri, 31 Dec 9999 23:59:59 GMT"):
            said.append(value)
            (read,) = (await house.reconcile("ord_42")).items
            assert ("failed", {"ord_42": 1}) == (read["result"], await house.held())
            said.append(value)
            done = await house.reconcile()
            assert done.failed
            assert {"ord_42": 1} == await house.held()
        await house.reconcile()
        assert {"ord_42": 2} == await house.held()
