"""Listings of any length take the memory of one page, whoever reads them and whatever differs."""

import gc
import json
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.operations import reconciling
from reconciler.polling.report import End
from reconciler.polling.slots import Mode
from tests.cases.house import a_house, item
from tests.cases.listing import Paged, listed
from tests.polling.server import Reply, Request
from tests.polling.world import World, a_world

pytestmark = pytest.mark.anyio

MIB = 2**20


@dataclass(kw_only=True)
class Endless(Paged):
    """Lists *count* orders of four kilobytes without holding them."""

    count: int = 0

    async def answer(self, request: Request) -> Reply:
        start = int(request.query.get("cursor") or request.query.get("offset") or 0)
        end = min(start + self.size, self.count)
        page = [
            {"id": f"ord_{number:08}", "version": 1, "status": "s" * 4000, "paid": False,
             "amount": number, "updated_at": "2026-01-01T00:00:00Z"}
            for number in range(start, end)
        ]  # fmt: skip
        following = str(end) if end < self.count else None
        return Reply(body=json.dumps({"data": page, "next": following}).encode())


WAYS: dict[str, tuple[str, Callable[[World], Awaitable[Any]]]] = {
    "incremental": ("cursor", lambda world: world.scan(Mode.INCREMENTAL)),
    "counted": ("offset", lambda world: world.scan()),
    "tried": ("cursor", lambda world: world.scan(dry_run=True)),
    "searched for one": ("cursor", lambda world: world.reconcile("nobody")),
}


@pytest.mark.parametrize("way", WAYS)
async def test_eight_times_as_long_is_not_eight_times_as_much(
    engine: AsyncEngine, way: str
) -> None:
    """Three megabytes of orders against less than half of one: the peak stays where it was."""
    style, work = WAYS[way]
    peaks = []
    for count in (100, 100, 800):  # the first one warms up what is made once
        shop = Endless(size=50, style=style, count=count)
        async with a_world(engine, shop=shop, listed=listed(style), get=False) as world:
            gc.collect()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            await work(world)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
            tracemalloc.stop()
    assert peaks[2] < peaks[1] + MIB


async def test_a_report_by_hand_is_bounded_and_says_what_it_leaves_out(
    engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of forty orders are new: each is corrected, the first ones are shown, all are counted."""
    monkeypatch.setattr(reconciling, "MOST_TOLD", 5_000)
    async with a_house(engine, tmp_path) as house:
        house.listed = [item(f"ord_{number}", status="x" * 400) for number in range(40)]
        dry = await house.reconcile(dry_run=True)
        assert dry.drifted
        done = await house.reconcile()
        assert 0 < len(done.items) < 10
        document = done.document()
        assert 40 == len(document["items"]) + document["omitted"]
        assert 40 == len(await house.held())
        again = await house.reconcile()
        assert ([], 0, False) == (again.items, again.omitted, again.drifted)


async def test_what_a_kill_leaves_is_kept(engine: AsyncEngine) -> None:
    """Out of memory in the middle: the pages before it are committed, and not asked for again."""
    shop = Endless(size=50, count=200)
    async with a_world(engine, shop=shop, listed=listed("cursor"), get=False) as world:
        answer = shop.answer

        async def killed(request: Request) -> Reply:
            if request.query.get("cursor") == "100":
                raise ConnectionError
            return await answer(request)

        shop.answer = killed  # type: ignore[method-assign]
        async with a_world(engine, shop=shop, listed=listed("cursor"), get=False) as dying:
            assert End.COMPLETED != (await dying.scan()).end
        assert 100 == len(await world.held())
        shop.answer = answer  # type: ignore[method-assign]
        async with a_world(engine, shop=shop, listed=listed("cursor"), get=False) as next_one:
            assert 2 == (await next_one.scan()).pages
        assert 200 == len(await world.held())
