"""Where a listing is cut, by pages, by time or by a crash, nothing falls through."""

from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.polling.report import End
from tests.cases.listing import ORDERS, STYLES, Paged, at, listed
from tests.polling.server import Reply
from tests.polling.world import World, a_world, stamp

pytestmark = pytest.mark.anyio

BROKEN = Reply(body=b"<html>")


def fill(shop: Paged, count: int = 11, *, at_once: int = 5) -> None:
    """Orders of which each *at_once* have one time of change, so that pages cut through ties."""
    for number in range(count):
        shop.put(f"ord_{number:02}", version=1, changed=at(600 - number // at_once))


async def broken_off(world: World, *, after: int, times: int = 1, **how: Any) -> None:
    for _ in range(times):
        world.shop.lies = [*[None] * after, BROKEN]
        assert End.PAGE_BROKEN == (await world.increment(**how)).end
        after = 0


@pytest.mark.parametrize(("style", "order"), list(product(STYLES, ORDERS)))
async def test_ties_over_pages_late_ones_and_a_page_that_breaks(
    engine: AsyncEngine, style: str, order: str
) -> None:
    """
    Eleven orders with three times of change, three a page, broken off after the second page. All
    are held when the watermark has passed them; one that shows up later with the newest time, and
    one that shows up with a time of ninety seconds before, are held one run later.
    """
    shop = Paged(style=style, sorting=order, size=3)
    since = {"param": "updated_since", "lookback": "2m"}
    async with a_world(engine, shop=shop, listed=listed(style, order, since=since)) as world:
        fill(shop)
        late = [shop.put("tie_of_the_newest", version=1, changed=at(598)),
                shop.put("late", version=1, changed=at(598 + 90))]  # fmt: skip
        shop.hidden = {one["id"] for one in late}
        await broken_off(world, after=2)
        report = await world.increment()
        assert End.COMPLETED == report.end
        assert {f"ord_{number:02}" for number in range(11)} == set(await world.held())
        assert stamp(at(598)) == (await world.slot()).watermark

        shop.hidden = set()
        report = await world.increment()
        assert (End.COMPLETED, 2) == (report.end, report.corrected)
        assert shop.orders.keys() == set(await world.held())
        assert stamp(at(598)) == (await world.slot()).watermark


@pytest.mark.parametrize(
    ("format_", "read"),
    [
        ("rfc3339", str),
        ("s", lambda text: stamp_of(int(text), 1)),
        ("ms", lambda text: stamp_of(int(text), 1000)),
    ],
)
async def test_no_format_of_the_question_rounds_upwards(
    engine: AsyncEngine, format_: str, read: Any
) -> None:
    """
    Three changes within one millisecond, told in nanoseconds; the last one shows up later. The
    sender is asked in whole seconds, or milliseconds, and without any look-back.
    """
    shop = Paged(since_of=read)
    since = {"param": "updated_since", "format": format_, "lookback": "0s"}
    async with a_world(engine, shop=shop, listed=listed("cursor", since=since)) as world:
        for number in range(3):
            shop.put(f"ord_{number}", version=1)["updated_at"] = "2026-01-01T00:00:00.123456789Z"
        shop.hidden = {"ord_2"}
        await world.increment()
        shop.hidden = set()
        report = await world.increment()

        assert 1 == report.corrected
        assert "2026-01-01T00:00:00.123456789Z" == (await world.slot()).watermark


def stamp_of(count: int, a_second: int) -> str:
    moment = datetime.fromtimestamp(count / a_second, tz=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")


@pytest.mark.parametrize("sorting", ["newest", "unknown"])
async def test_a_listing_that_is_not_in_the_order_it_says(
    engine: AsyncEngine, sorting: str
) -> None:
    """
    Said to be oldest first, and is not. It breaks off again and again, until the pass begins
    anew: what was not read yet is still asked for.
    """
    shop = Paged(sorting=sorting, size=3)
    since = {"param": "updated_since", "lookback": "0s"}
    async with a_world(engine, shop=shop, listed=listed("cursor", "oldest", since=since)) as world:
        fill(shop, at_once=1)
        await broken_off(world, after=1, times=3)
        assert 3 == len(await world.held())
        assert End.COMPLETED == (await world.increment()).end
        assert shop.orders.keys() == set(await world.held())


async def test_what_is_left_for_its_webhook_without_a_time_is_seen_again(
    engine: AsyncEngine,
) -> None:
    """
    One order does not say when it changed; it is left for its webhook, which never comes. Others
    that changed later move no watermark past it.
    """
    shop = Paged()
    since = {"param": "updated_since", "lookback": "0s"}
    async with a_world(
        engine, shop=shop, grace="5m", listed=listed("cursor", since=since)
    ) as world:
        shop.put("ord_1", version=1, changed=at(3600))
        silent = shop.put("ord_2", version=1)
        silent["updated_at"] = None
        report = await world.increment()
        assert (1, 1) == (report.corrected, report.left)
        assert (await world.slot()).watermark is None

        silent["updated_at"] = stamp(at(7200))  # it does say, the next time, and is older
        report = await world.increment()
        assert (1, 0) == (report.corrected, report.left)
        assert stamp(at(3600)) == (await world.slot()).watermark


async def test_another_replica_goes_on_in_the_middle_of_a_tie(engine: AsyncEngine) -> None:
    """
    The first one is killed between two pages of one time; the second takes over when its lease
    has run out. The dead one comes back, and writes nothing.
    """
    shop = Paged(size=2)
    async with (
        a_world(engine, shop=shop, listed=listed("cursor", "oldest")) as world,
        a_world(engine, shop=shop, listed=listed("cursor", "oldest")) as other,
    ):
        fill(shop, at_once=11)
        pages = iter(range(100))

        async def meanwhile() -> None:
            await world.run_sql("update reconciler.scans set lease_until = now() - interval '1 s'")
            report = await other.increment()
            assert (End.COMPLETED, 9) == (report.end, report.corrected)

        answer = shop.answer

        async def paused(request: Any) -> Reply:
            if next(pages) == 1:
                await meanwhile()
            return await answer(request)

        shop.answer = paused  # type: ignore[method-assign]
        async with a_world(engine, shop=shop, listed=listed("cursor", "oldest")) as killed:
            assert End.LEASE_LOST == (await killed.increment()).end
        assert shop.orders.keys() == set(await world.held())
        assert 11 == await world.value("select count(*) from reconciler.corrections")
        assert stamp(at(600)) == (await world.slot()).watermark
