"""Stories of the schedule: what is due runs, and what goes wrong stays with what went wrong."""

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from reconciler.polling import schedule
from reconciler.polling.report import End
from reconciler.polling.slots import Mode
from reconciler.settings.models import PollingSettings

from .server import Reply
from .world import a_world

pytestmark = pytest.mark.anyio

FAST = {"poll": "20ms"}


@asynccontextmanager
async def scheduled(world, reports: list, *, replicas: int = 1, sources=None):
    """The schedule runs; on leaving it is told to stop, and must do so by itself."""
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for _ in range(replicas):
            group.create_task(
                schedule.run(
                    world.engine,
                    world.rules,
                    sources or world.sources,
                    {"shop": world.api},
                    settings=world.policy,
                    stop=world.stop,
                    ended=reports.append,
                )
            )
        yield
        world.stop.set()


async def until(condition) -> None:
    while not condition():  # noqa: ASYNC110 - any of several coroutines may make it true
        await asyncio.sleep(0.01)


async def test_a_new_kind_is_scanned_in_full_then_by_increments(engine):
    """Nothing is known: the full scan runs at once, and only then the incremental one."""
    async with a_world(engine, baseline=False, polling=FAST,
                       listed={"interval": "1s"}) as world:  # fmt: skip
        world.shop.put("ord_1", version=1)
        reports: list = []
        async with scheduled(world, reports):
            await until(lambda: len(reports) >= 3)

        assert [Mode.FULL, Mode.INCREMENTAL, Mode.INCREMENTAL] == [
            report.mode for report in reports[:3]
        ]
        assert "updated_since" not in world.asked()[0]
        assert "updated_since" in world.asked()[1]


async def test_replicas_share_the_turns(engine):
    """C124: three replicas look every moment; there is one pass an interval, not three."""
    async with a_world(engine, polling=FAST, listed={"since": None, "interval": "1s"}) as world:
        reports: list = []
        async with scheduled(world, reports, replicas=3):
            await until(lambda: len(reports) >= 3)
        moments = [report.run_id.int >> 80 for report in reports]

        assert all(later - earlier >= 950 for earlier, later in pairwise(moments))


async def test_a_blocked_loop_makes_up_one_turn(engine):
    """C127: the process stood still over several turns; one late run, not three and not none."""
    async with a_world(engine, polling=FAST, listed={"since": None, "interval": "1h"}) as world:
        reports: list = []
        async with scheduled(world, reports):
            await until(lambda: len(reports) == 1)
            await world.run_sql("update reconciler.scans set due_at = now() - interval '5 h'")
            await until(lambda: len(reports) == 2)
            turns = asyncio.Event()
            asyncio.get_running_loop().call_later(0.3, turns.set)
            await turns.wait()

        assert 2 == len(reports)


async def test_a_failing_kind_delays_no_other(engine):
    """P15: one listing hangs, and one kind is broken beyond what we foresaw; a third goes on."""
    async with a_world(engine, polling=FAST,
                       listed={"since": None, "interval": "1s"}) as world:  # fmt: skip
        good = world.source
        hung = replace(good, kind="hung", listing=replace(good.listing, path="/hung"))
        odd = replace(good, kind="odd", rules=replace(good.rules, reader=None))
        answer = world.shop.answer

        async def sometimes(request):
            if request.path == "/hung":
                return Reply(json=["x" * 100_000], drip=True)
            return await answer(request)

        world.shop.answer = sometimes
        world.shop.put("ord_1", version=1)
        async with a_world(engine, shop=world.shop, polling=FAST) as busy:
            sources = {("shop", one.kind): one for one in (good, hung, odd)}
            reports: list = []
            async with scheduled(busy, reports, sources=sources):
                await until(
                    lambda: (
                        sum(report.kind == "order" for report in reports) >= 3
                        and any(report.kind == "odd" for report in reports)
                    )
                )

        ends = {report.kind: report.end for report in reports}
        assert {"order": End.COMPLETED, "odd": End.CRASHED, "hung": End.STOPPED} == ends
        assert "AttributeError" in await world.value(
            "select last_error from reconciler.scans where kind = 'odd'"
        )


async def test_a_slow_scan_does_not_stop_the_turns_of_others(engine):
    """A full scan under way holds its own slot; the incremental one of the same kind runs."""
    listed = {"interval": "1s"}
    async with a_world(engine) as world:
        world.shop.put("ord_1", version=1)
        await world.increment()
        await world.run_sql("update reconciler.scans set due_at = now()")
        answer = world.shop.answer

        async def slow_in_full(request):
            if "updated_since" not in request.query:
                return Reply(json=["x" * 100_000], drip=True)
            return await answer(request)

        world.shop.answer = slow_in_full
        async with a_world(engine, shop=world.shop, polling=FAST, listed=listed) as slow:
            reports: list = []
            async with scheduled(slow, reports):
                await until(lambda: sum(one.mode is Mode.INCREMENTAL for one in reports) >= 2)

        assert End.STOPPED == next(one for one in reports if one.mode is Mode.FULL).end


async def test_a_tick_that_meets_the_end_is_no_error(caplog):
    """A clean stop at the moment of a tick says nothing: no error, no traceback in the log."""
    tick = asyncio.Event()
    scheduler = schedule.ticking(tick, PollingSettings(poll="1h"))
    scheduler.start()
    (job,) = scheduler.get_jobs()

    job.modify(next_run_time=datetime.now(UTC))  # both happen in the loop's next turn
    scheduler.shutdown(wait=False)
    for _ in range(3):
        await asyncio.sleep(0)

    assert tick.is_set()
    assert [] == [one for one in caplog.records if one.levelno >= logging.WARNING]
