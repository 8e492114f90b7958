"""Several replicas on one database: as one, whatever happens to one of them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from reconciler.proving.misbehaving_http import Request
from reconciler.server_connection import conninfo_for
from reconciler.timelines import Timelines
from tests.failover.cluster import binaries
from tests.failover.rounds import one_round
from tests.replicas import scenarios
from tests.replicas.plan import drawn
from tests.replicas.running import Replica, Running, run
from tests.replicas.world import World, a_world, caller

pytestmark = pytest.mark.anyio

PACE = 0.02  #: seconds between two events
IMPATIENT = 3.0  #: seconds that the sender waits where a replica stands still


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    async with a_world(tmp_path, database_url, seed=1) as world:
        yield world


async def test_two_replicas_come_to_what_one_comes_to(database_url: str, empty_database_url: str):
    """
    The same load, shuffled, repeated and with losses: states, claims, rows of the user's and
    effects by key are equal; both have done their share; the sender was asked for one scan a slot.
    """
    steps = drawn(seed=7, events=200)  # of fewer a fifth would be a matter of luck
    one = await run(database_url, steps, [Replica(name="r1")], seed=7, pace=PACE)
    two = await run(empty_database_url, steps, scenarios.TWO, seed=7, pace=PACE)
    assert ([], []) == (one.faults, two.faults)
    assert [] == one.result.differences(two.result)


async def test_a_frozen_replica_is_replaced_and_does_nothing_twice_when_it_wakes(
    database_url: str,
):
    """
    It stands still in a call to a destination without keys, for longer than its leases. The
    other one goes on; what it held is not sent again, and its late answer is taken.
    """

    async def frozen(running: Running) -> None:
        seen = scenarios.Freezing(running, "r1", where="/v1/notes")
        running.world.destination.before = seen.look
        await seen.over()

    steps = drawn(seed=8, events=150)
    ran = await run(
        database_url,
        steps,
        scenarios.TWO,
        seed=8,
        pace=PACE * 2,
        meanwhile=frozen,
        answer_within=IMPATIENT,
    )
    assert [] == ran.faults


async def test_a_second_run_of_one_kind_is_told_that_it_is_busy(world: World):
    """A replica scans, slowly. Asked by hand, twice at once: both times 75, with who holds it."""
    world.sender.sets("ord_1")
    begun, free = asyncio.Event(), asyncio.Event()

    async def slowly(_: Request) -> None:
        begun.set()
        await free.wait()

    first = await world.replica("r1")
    second = await world.replica("r2")
    await world.baseline_over()
    asked = len(world.sender.requests)
    world.sender.before = slowly
    await begun.wait()
    async with asyncio.TaskGroup() as clicks:
        runs = [
            clicks.create_task(
                world.command("reconcile", "shop", "order", "--json", SHOP_TOKEN="by hand")  # noqa: S106 - a pretend one
            )
            for _ in range(2)
        ]
    assert [75, 75] == [one.result()[0] for one in runs]
    assert all("is scanning shop order" in one.result()[2] for one in runs)
    assert "by hand" not in {caller(one) for one in world.sender.requests[asked:]}
    free.set()
    await first.stops()
    await second.stops()


async def test_of_two_runs_by_hand_at_once_one_is_busy(world: World):
    """Nothing is scheduled for now; a double click is one run."""
    world.sender.sets("ord_1")

    async def until_the_other_was_refused(_: Request) -> None:
        await asyncio.wait(refused, return_when=asyncio.FIRST_COMPLETED)

    world.sender.before = until_the_other_was_refused
    words = ("reconcile", "shop", "order")
    refused = [asyncio.create_task(world.command(*words)) for _ in range(2)]
    codes = [(await one)[0] for one in refused]
    assert [0, 75] == sorted(codes)


async def test_a_former_primary_is_not_connected_to(database_url: str):
    """Its timeline is older than the newest that was seen; another cluster has its own."""
    timelines = Timelines(conninfo_for(database_url))
    connection = await timelines.open()
    await connection.close()
    ((cluster, timeline),) = timelines.newest.items()
    timelines.newest = {cluster + 1: timeline + 5}
    await (await timelines.open()).close()
    timelines.newest = {cluster: timeline + 1}  # as if the standby had been promoted since
    with pytest.raises(psycopg.OperationalError, match="former primary"):
        await timelines.open()


@pytest.mark.skipif(binaries() is None, reason="SKIPPED LOUDLY: apt install postgresql")
async def test_nothing_acknowledged_is_lost_when_the_primary_dies():
    """
    The primary gets kill -9 under load and its synchronous standby takes over: the daemon goes
    on, ready within five seconds, with all that it has acknowledged.
    """
    found = await one_round("failover", seed=3, events=120)
    assert ([], 0) == (found.faults, found.lost)
