"""Turns are the database's: none is lost or made up twice, and no run blocks another."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.database import engine_for
from reconciler.polling import schedule
from reconciler.polling.by_hand import reconcile_kind
from reconciler.polling.report import End, ScanReport
from reconciler.polling.slots import Mode
from tests.cases.listing import Paged, listed
from tests.polling.server import Reply, Request
from tests.polling.test_schedule import until
from tests.polling.world import World, a_world

pytestmark = pytest.mark.anyio

FAST = {"poll": "20ms"}
DRIP = Reply(json=["x" * 100_000], drip=True)


@asynccontextmanager
async def leading(world: World) -> AsyncIterator[list[ScanReport]]:
    """One process's schedule, for as long as the block lasts."""
    reports: list[ScanReport] = []
    world.stop.clear()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(
            schedule.run(
                world.engine,
                world.rules,
                world.sources,
                {"shop": world.api},
                settings=world.policy,
                stop=world.stop,
                ended=reports.append,
            )
        )
        yield reports
        world.stop.set()


async def looked(world: World, times: int = 5) -> None:
    """Wait until the schedule has looked *times* more for what is due."""
    seen = 0
    due = asyncio.Event()

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal seen
        seen += "scans.due_at <=" in statement and statement.startswith("SELECT")
        if seen >= times:
            due.set()

    event.listen(world.engine.sync_engine, "before_cursor_execute", note)
    async with asyncio.timeout(10):
        await due.wait()
    event.remove(world.engine.sync_engine, "before_cursor_execute", note)


ONCE = listed("cursor", since=None, interval="1h")
DUE = "update reconciler.scans set due_at = clock_timestamp() + interval '{}'"


@pytest.mark.parametrize("missed", ["-1 s", "-59 min", "-30 days"])
async def test_a_turn_that_came_while_nobody_ran_is_taken_at_the_start(
    engine: AsyncEngine, missed: str
) -> None:
    """The leader stops before its hour is over; the next one starts after: one run, at once."""
    async with a_world(engine, shop=Paged(), listed=ONCE, polling=FAST) as world:
        async with leading(world) as first:
            await until(lambda: bool(first))
        await world.run_sql(DUE.format(missed))
        async with leading(world) as second:
            await until(lambda: bool(second))
            await looked(world)
        assert (1, 1) == (len(first), len(second))
        async with leading(world) as third:  # a restart alone is no turn
            await looked(world)
        assert [] == third


async def test_two_leaders_at_the_same_moment(engine: AsyncEngine, database_url: str) -> None:
    """The old one has not stopped when the new one starts: the due turn is one of theirs."""
    other = engine_for(database_url)
    async with (
        a_world(engine, shop=Paged(), listed=ONCE, polling=FAST) as old,
        a_world(other, shop=Paged(), listed=ONCE, polling=FAST) as new,
        leading(old) as of_old,
        leading(new) as of_new,
    ):
        await until(lambda: len(of_old + of_new) == 1)
        await old.run_sql(DUE.format("-1 s"))
        await until(lambda: len(of_old + of_new) == 2)
        await looked(old)
        await looked(new)
        assert 2 == len(of_old + of_new)
    await other.dispose()


async def test_a_leader_that_was_killed_in_its_run(engine: AsyncEngine) -> None:
    """Its lease runs out; the next one goes on where it was, before any turn of an hour."""
    shop = Paged(size=2)
    async with a_world(engine, shop=shop, listed=ONCE, polling=FAST) as world:
        for number in range(6):
            shop.put(f"ord_{number}", version=1)
        shop.lies = [None, Reply(body=b"<html>")]
        await world.scan()
        await world.run_sql(  # as a kill between two pages leaves it
            "update reconciler.scans set owner = gen_random_uuid(), fence = fence + 1,"
            " failures = 0, due_at = now() - interval '1 s',"
            " lease_until = clock_timestamp() + interval '400 ms'"
        )
        async with leading(world) as reports:
            await until(lambda: bool(reports))
        assert [(End.COMPLETED, 2)] == [(one.end, one.pages) for one in reports]


@pytest.mark.parametrize("before", ["23 h", "40 days"])
async def test_a_shorter_interval_counts_from_the_next_start(
    engine: AsyncEngine, before: str
) -> None:
    """
    It was an hour, or a clock was far ahead, and the next turn lies a long way off. Restarted
    with a second, the turn is one second after the last completed run.
    """
    async with a_world(engine, shop=Paged(), listed=ONCE, polling=FAST) as world:
        await world.scan()
        await world.run_sql(DUE.format(before))
    often = listed("cursor", since=None, interval="1s")
    async with a_world(engine, shop=Paged(), listed=often, polling=FAST) as world:
        async with leading(world) as reports:
            await until(lambda: len(reports) >= 2)
        gap = await world.value(
            "select extract(epoch from due_at - last_completed_at)::float from reconciler.scans"
        )
        assert 0.9 < gap < 1.2


async def test_a_pause_after_a_failure_is_not_shortened_by_a_restart(engine: AsyncEngine) -> None:
    """A sender that is down is not asked at once because we were started again."""
    often = listed("cursor", since=None, interval="1s")
    async with a_world(engine, shop=Paged(), listed=often, polling=FAST) as world:
        await world.scan()
        world.shop.lies = [Reply(body=b"<html>")]
        await world.scan()
        async with leading(world) as reports:
            await looked(world)
        assert [] == reports


async def test_a_process_that_stood_still_takes_one_turn(engine: AsyncEngine) -> None:
    """The loop is blocked over several ticks, and its turn comes meanwhile: one late run."""
    async with (
        a_world(engine, shop=Paged(), listed=ONCE, polling=FAST) as world,
        leading(world) as reports,
    ):
        await until(lambda: len(reports) == 1)
        await world.run_sql(DUE.format("-1 min"))
        blocked(0.6)
        await until(lambda: len(reports) == 2)
        await looked(world, times=10)
        assert 2 == len(reports)


def blocked(seconds: float) -> None:
    """Let nothing run, as a suspended process does."""
    time.sleep(seconds)


@pytest.fixture
async def somebody(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = engine_for(database_url)
    yield engine
    await engine.dispose()


async def drips(_world: World, _request: Request) -> Reply | None:
    return DRIP


async def says_nothing(world: World, _request: Request) -> Reply | None:
    await world.stop.wait()
    return Reply(reset=True)


@pytest.mark.parametrize("hang", [drips, says_nothing])
async def test_a_run_that_hangs_ends_and_the_next_ones_run(
    engine: AsyncEngine, hang: Callable[[World, Request], Awaitable[Reply | None]]
) -> None:
    """
    The second page hangs, three runs long. Each ends at its deadline, the incremental scans of the
    same kind go on meanwhile, and when the sender is well again the pass is finished.
    """
    shop = Paged(size=1)
    well = asyncio.Event()
    often = listed("cursor", interval="1s", full_every="1h")
    polling = {**FAST, "deadline": "800ms"}
    answer = shop.answer
    world: World

    async def sometimes(request: Request) -> Reply:
        full = "updated_since" not in request.query
        if full and "cursor" in request.query and not well.is_set():
            return await hang(world, request) or Reply()
        return await answer(request)

    shop.answer = sometimes  # type: ignore[method-assign]
    async with a_world(engine, shop=shop, listed=often, polling=polling) as world:
        shop.put("ord_0", version=1)
        await world.increment()
        for number in range(3):
            shop.put(f"ord_{number}", version=1)
        async with leading(world) as reports:
            hung = lambda: [one for one in reports if one.mode is Mode.FULL]  # noqa: E731
            await until(lambda: len(hung()) >= 2)
            await until(lambda: any(one.mode is Mode.INCREMENTAL for one in reports))
            assert {End.DEADLINE} == {one.end for one in hung()}
            well.set()
            await world.run_sql(DUE.format("-1 s"))
            await until(lambda: hung()[-1].end is End.COMPLETED)
        assert {"ord_0": 1, "ord_1": 1, "ord_2": 1} == await world.held()


async def test_a_statement_that_hangs_ends_with_its_run(
    engine: AsyncEngine, somebody: AsyncEngine
) -> None:
    """The user's table is locked by somebody who went home: the run ends, the slot is free."""
    statement = {
        "on_change": ["order"],
        "sql": "insert into mine values (:key)",
        "params": {"key": "key"},
    }
    polling = {"deadline": "700ms"}
    async with a_world(
        engine, shop=Paged(), listed=ONCE, apply=(statement,), polling=polling
    ) as world:
        await world.run_sql("create table mine (key text)")
        world.shop.put("ord_1", version=1)
        async with somebody.connect() as other, other.begin():
            await other.execute(text("lock table mine"))
            report = await world.scan()
        assert report.end in {End.DEADLINE, End.COMPLETED}
        assert (await world.slot(Mode.FULL)).lease_until is None
        assert 0 == await world.value(
            "select count(*) from pg_stat_activity where state = 'idle in transaction'"
            " and datname = current_database()"
        )
        report = await world.scan()
        assert End.COMPLETED == report.end
        await world.reconcile("ord_1")
        assert {"ord_1": 1} == await world.held()


async def test_a_person_is_not_kept_for_ever_by_reads_that_hang(engine: AsyncEngine) -> None:
    """The listing answers and says that six orders differ; asked for one of them, it drips."""
    shop = Paged()
    answer = shop.answer

    async def sometimes(request: Request) -> Reply:
        return await answer(request) if request.path == "/v1/orders" else DRIP

    shop.answer = sometimes  # type: ignore[method-assign]
    async with a_world(
        engine, shop=shop, listed=listed("cursor"), polling={"deadline": "2s"}
    ) as world:
        for number in range(6):
            await world.webhook(shop.put(f"ord_{number}", version=1))
            shop.put(f"ord_{number}", version=1, status="other")
        async with asyncio.timeout(10):
            report = await reconcile_kind(world.order())
        assert End.DEADLINE == report.end
        # whoever runs next makes them
        assert 6 == await world.value("select count(*) from reconciler.fetch_requests")
