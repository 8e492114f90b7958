"""A pass gets on with every run, however often it is broken off, and leaves a dead place."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.polling import schedule
from reconciler.polling.client import ATTEMPTS
from reconciler.polling.report import End
from reconciler.polling.slots import Mode
from tests.cases.listing import Paged, at, listed
from tests.polling.server import Reply, Request
from tests.polling.test_schedule import until
from tests.polling.world import World, a_world, stamp

pytestmark = pytest.mark.anyio

BROKEN = Reply(body=b"<html>")
DRIP = Reply(json=["x" * 100_000], drip=True)
AWAY = Reply(status=500)


def fill(shop: Paged, count: int) -> None:
    for number in range(count):
        shop.put(f"ord_{number:02}", version=1, changed=at(600 - number))


@pytest.mark.parametrize(
    ("style", "mode", "baseline"),
    [
        ("cursor", Mode.INCREMENTAL, True),
        ("offset", Mode.FULL, True),
        ("cursor", Mode.FULL, False),
    ],
)
async def test_five_runs_do_what_five_deadlines_allow(
    engine: AsyncEngine, style: str, mode: Mode, *, baseline: bool
) -> None:
    """Eight pages, and each run's time is up after two: each gets on by what it has read."""
    shop = Paged(style=style, size=2)
    async with a_world(
        engine,
        shop=shop,
        listed=listed(style),
        baseline=baseline,
        polling={"deadline": "1s"},
    ) as world:
        fill(shop, 16)
        held = 0
        for _ in range(3):
            shop.lies = [None, None, DRIP]
            report = await world.scan(mode)
            assert (End.DEADLINE, 2) == (report.end, report.pages)
            now = len(await world.held())
            assert now > held
            held = now
        shop.lies = []
        world.policy = world.policy.model_copy(update={"deadline": timedelta(seconds=30)})
        assert End.COMPLETED == (await world.scan(mode)).end
        assert shop.orders.keys() == set(await world.held())


@pytest.mark.parametrize("fault", [BROKEN, AWAY, Reply(reset=True), Reply(status=400)])
async def test_a_listing_that_breaks_off_now_and_then_is_read_to_its_end(
    engine: AsyncEngine, fault: Reply
) -> None:
    """After each page something else goes wrong: the pass never begins again for that."""
    shop = Paged(size=1)
    async with a_world(engine, shop=shop, listed=listed("cursor")) as world:
        fill(shop, 9)
        for pages in range(1, 9):
            shop.lies = [None, *[fault] * 4]
            if fault.status == 400 and pages > 1:
                break  # an expired cursor has a story of its own
            report = await world.increment()
            assert End.COMPLETED != report.end
            assert pages == len(await world.held())
        shop.lies = []
        await world.increment()
        assert shop.orders.keys() == set(await world.held())


@pytest.mark.parametrize(
    ("fault", "tries"), [(AWAY, 10), (Reply(reset=True), 10), (BROKEN, 3), (Reply(cut=True), 10)]
)
async def test_a_place_that_is_dead_is_left_in_the_end(
    engine: AsyncEngine, fault: Reply, tries: int
) -> None:
    """The cursor that we kept is answered with an error for ever: the pass begins again."""
    shop = Paged(size=2)
    dead = True
    async with a_world(engine, shop=shop, listed=listed("cursor")) as world:
        fill(shop, 6)
        answer = shop.answer

        async def sometimes(request: Request) -> Reply:
            return fault if dead and "cursor" in request.query else await answer(request)

        shop.answer = sometimes  # type: ignore[method-assign]
        async with a_world(engine, shop=shop, listed=listed("cursor")) as failing:
            for _ in range(tries):
                assert End.COMPLETED != (await failing.increment()).end
            dead = False
            asked = len(failing.asked())
            assert End.COMPLETED == (await failing.increment()).end
            assert 3 == len(failing.asked()) - asked  # from the first page
        assert shop.orders.keys() == set(await world.held())
        assert stamp(at(595)) == (await world.slot()).watermark


async def test_another_way_of_paging_begins_again(engine: AsyncEngine) -> None:
    """Stopped in the middle; the configuration is changed to numbered pages, and started again."""
    shop = Paged(size=2)
    async with a_world(engine, shop=shop, listed=listed("cursor")) as world:
        fill(shop, 6)
        shop.lies = [None, BROKEN]
        await world.increment()
    shop = Paged(size=2, style="page", orders=shop.orders)
    answer = shop.answer

    async def lenient(request: Request) -> Reply:
        if not request.query.get("page", "1").isdigit():
            request = Request(path=request.path, query={"page": "1"}, headers={}, target="")
        return await answer(request)

    shop.answer = lenient  # type: ignore[method-assign]
    async with a_world(engine, shop=shop, listed=listed("page")) as world:
        ends = [(await world.increment()).end for _ in range(4)]
        assert End.COMPLETED == ends[-1]
        assert shop.orders.keys() == set(await world.held())


@pytest.mark.parametrize("kept", ['{"place": 7}', '{"position": 3}', "[]", '{"position": {}}'])
async def test_a_checkpoint_of_another_version_is_no_obstacle(
    engine: AsyncEngine, kept: str
) -> None:
    """After going back to an older release the pass begins again, and the schedule lives on."""
    shop = Paged(size=2)
    async with a_world(engine, shop=shop, listed=listed("cursor")) as world:
        fill(shop, 6)
        shop.lies = [None, BROKEN]
        await world.increment()
        async with engine.begin() as connection:
            wrong = text("update reconciler.scans set checkpoint = cast(:kept as jsonb)")
            await connection.execute(wrong, {"kept": kept})
        assert End.COMPLETED == (await world.increment()).end
        assert shop.orders.keys() == set(await world.held())


@pytest.mark.parametrize("fault", [BROKEN, AWAY, Reply(status=400)])
async def test_who_fails_after_losing_its_slot_takes_nothing_down(
    engine: AsyncEngine, fault: Reply
) -> None:
    """
    A process is stopped, its slot goes to another, it wakes up, and its page is broken: that is
    nobody's failure, and the schedule goes on.
    """
    shop = Paged(size=2)
    async with a_world(engine, shop=shop, listed=listed("cursor", since=None)) as world:
        fill(shop, 2)
        answer = shop.answer
        faults = iter([fault] * (ATTEMPTS if fault is AWAY else 1))

        async def stopped(request: Request) -> Reply:
            if (now := next(faults, None)) is None:
                return await answer(request)
            await taken_over(world)
            return now

        shop.answer = stopped  # type: ignore[method-assign]
        reports: list[Any] = []
        polling = {"poll": "20ms"}
        async with (
            a_world(
                engine, shop=shop, listed=listed("cursor", since=None), polling=polling
            ) as woken,
            asyncio.timeout(20),
            asyncio.TaskGroup() as group,
        ):
            group.create_task(running(woken, reports))
            await until(lambda: len(reports) == 1)
            assert End.LEASE_LOST == reports[0].end
            assert 0 == (await world.slot(Mode.FULL)).failures
            await world.run_sql("update reconciler.scans set lease_until = null, due_at = now()")
            await until(lambda: len(reports) >= 2)
            woken.stop.set()
        assert End.COMPLETED == reports[1].end


async def taken_over(world: World) -> None:
    await world.run_sql(
        "update reconciler.scans set owner = gen_random_uuid(), fence = fence + 1,"
        " lease_until = now() + interval '1 h'"
    )


async def running(world: World, reports: list[Any]) -> None:
    await schedule.run(
        world.engine,
        world.rules,
        world.sources,
        {"shop": world.api},
        settings=world.policy,
        stop=world.stop,
        ended=reports.append,
    )
