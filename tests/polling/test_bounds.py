"""Stories of size: a listing of any length is scanned in constant memory (C121, P16)."""

import gc
import json
import tracemalloc

import pytest

from reconciler.polling.report import End

from .server import Reply
from .world import Shop, a_world

pytestmark = pytest.mark.anyio

MIB = 2**20


class Endless(Shop):
    """Lists *count* orders without holding them."""

    count: int = 0

    async def answer(self, request):
        start = int(request.query.get("cursor") or 0)
        page = [
            {"id": f"ord_{number:08}", "version": 1, "status": "open", "paid": False,
             "amount": number, "note": "x" * 200, "created_at": "2026-01-01T00:00:00Z",
             "updated_at": "2026-01-01T00:00:00Z"}
            for number in range(start, min(start + self.size, self.count))
        ]  # fmt: skip
        end = start + self.size
        following = str(end) if end < self.count else None
        return Reply(body=json.dumps({"data": page, "next_cursor": following}).encode())


async def peak(engine, count: int) -> tuple[int, int]:
    """The most that a full scan of *count* orders held beyond what stood before, in bytes."""
    shop = Endless(size=200)
    shop.count = count
    async with a_world(engine, shop=shop) as world:
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        report = await world.scan()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (End.COMPLETED, count) == (report.end, report.items)
    return most - before, report.corrected


async def test_a_longer_listing_takes_no_more_memory(engine):
    """Ten times as many items, all of them new: the same peak but for eight bytes an item."""
    few, corrected = await peak(engine, 400)
    assert 400 == corrected
    many, corrected = await peak(engine, 4_000)

    assert 3_600 == corrected
    assert many < few + MIB
    assert many < 16 * MIB
