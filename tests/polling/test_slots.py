"""Stories of slots: one run at a time over all replicas, and turns that are never lost."""

import asyncio
from datetime import timedelta

import pytest

from outbox.entry import uuid7
from reconciler.errors import BusyError
from reconciler.polling import scans
from reconciler.polling.errors import LeaseLostError
from reconciler.polling.report import End
from reconciler.polling.slots import Mode
from reconciler.transactions import transact

from .server import Reply
from .world import Shop, a_world, ago

pytestmark = pytest.mark.anyio

DRIP = Reply(json=["x" * 100_000], drip=True)


async def taken(world, mode=Mode.FULL, *, only_when_due=False, owner=None):
    return await transact(
        world.engine,
        lambda connection: scans.take(
            connection,
            world.source.slot(mode),
            owner=owner or uuid7(),
            lease=timedelta(seconds=60),
            only_when_due=only_when_due,
        ),
    )


async def test_a_second_run_is_refused(engine):
    """C122: while one run holds the slot a run by hand is busy, and is told which run it is."""
    async with a_world(engine) as world:
        first = await taken(world)
        with pytest.raises(BusyError, match=str(first.lease.owner)):
            await world.scan()
        assert await world.scan(only_when_due=True) is None

        # the incremental scan of the same kind is another slot
        assert End.COMPLETED == (await world.increment()).end


async def test_of_many_replicas_one_runs(engine):
    """C124: ten runners at once, one pass."""
    async with a_world(engine) as world:
        world.shop.put("ord_1", version=1)
        async with asyncio.TaskGroup() as runners:
            for _ in range(10):
                runners.create_task(world.scan(only_when_due=True))

        assert 1 == len(world.asked())
        assert await world.scan(only_when_due=True) is None


async def test_a_dead_runner_loses_its_slot_by_the_databases_clock(engine):
    """Its lease runs out, another takes over with a higher fence; the old one writes nothing."""
    async with a_world(engine) as world:
        old = await taken(world)
        assert await taken(world) is None
        await world.run_sql("update reconciler.scans set lease_until = now() - interval '1 s'")
        new = await taken(world)
        assert new.lease.fence == old.lease.fence + 1

        for write in (
            lambda connection: scans.renew(connection, old.lease),
            lambda connection: scans.save(connection, old.lease, checkpoint={}),
            lambda connection: scans.release(connection, old.lease, progressed=True),
        ):
            with pytest.raises(LeaseLostError):
                await transact(engine, write)
        await transact(engine, lambda connection: scans.renew(connection, new.lease))


async def test_asking_again_after_an_unknown_commit_is_harmless(engine):
    """The same run takes its slot twice: it is still its own, under the same fence."""
    async with a_world(engine) as world:
        owner = uuid7()
        first, again = await taken(world, owner=owner), await taken(world, owner=owner)

        assert first.lease == again.lease


async def test_a_runner_that_was_taken_over_commits_nothing(engine):
    """A paused process wakes up with a page in its hand: its transaction is refused whole."""
    async with a_world(engine, shop=Shop(size=1)) as world:
        world.shop.put("ord_1", version=1, changed=ago(minutes=3))
        world.shop.put("ord_2", version=1, changed=ago(minutes=2))
        answer = world.shop.answer
        pages = 0

        async def meanwhile(request):
            nonlocal pages
            pages += 1
            if pages == 2:
                await world.run_sql(
                    "update reconciler.scans set lease_until = now() - interval '1 s'"
                )
                assert await taken(world)
            return await answer(request)

        world.shop.answer = meanwhile
        async with a_world(engine, shop=world.shop) as paused:
            report = await paused.scan()

        assert End.LEASE_LOST == report.end
        assert {"ord_1": 1} == await world.held()


async def test_a_lease_is_renewed_while_the_sender_is_slow(engine):
    """A page may take longer than a lease lasts; the slot stays ours, renewed every two seconds."""
    async with a_world(engine, polling={"lease": "6s"}) as world:
        world.shop.put("ord_1", version=1)
        answer, go = world.shop.answer, asyncio.Event()

        async def slow(request):
            await go.wait()
            return await answer(request)

        world.shop.answer = slow
        async with (
            a_world(engine, shop=world.shop, polling={"lease": "6s"}) as slowed,
            asyncio.TaskGroup() as group,
        ):
            run = group.create_task(slowed.scan())
            await slowed.served.reached(1)
            first = (await world.slot(Mode.FULL)).lease_until
            async with asyncio.timeout(10):
                while (await world.slot(Mode.FULL)).lease_until <= first + timedelta(seconds=1):
                    assert await taken(world) is None
            go.set()
        assert End.COMPLETED == run.result().end


async def test_turns_count_from_the_last_completed_run(engine):
    """C126: due an interval after it was completed, by whomever; not before, and not by clocks."""
    async with a_world(engine) as world:
        world.shop.put("ord_1", version=1)
        await world.increment()
        assert await world.increment(only_when_due=True) is None

        await world.run_sql("update reconciler.scans set due_at = now() - interval '3 days'")
        assert End.COMPLETED == (await world.increment(only_when_due=True)).end
        # however many turns were missed, they are made up once
        assert await world.increment(only_when_due=True) is None


async def test_failures_are_paused_for_and_the_pause_is_bounded(engine):
    """Each failure doubles the pause, up to five minutes, and one success ends it."""
    async with a_world(engine) as world:
        pauses = []
        for _ in range(9):
            world.shop.lies = [Reply(body=b"<html>")]
            await world.increment()
            pauses.append(
                await world.value("select due_at - clock_timestamp() from reconciler.scans")
            )
        assert timedelta(seconds=4) < pauses[0] < timedelta(seconds=6)
        assert pauses[0] < pauses[1] < pauses[2]
        assert pauses[-1] < timedelta(minutes=6)

        await world.increment()
        assert 0 == (await world.slot()).failures
