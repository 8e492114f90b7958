"""Stories of absence: what is not listed is asked about, never deleted (P14)."""

import pytest

from reconciler.polling.report import End
from reconciler.polling.slots import Mode

from .server import Reply
from .world import Shop, a_world, ago

pytestmark = pytest.mark.anyio


async def hold(world, count: int) -> None:
    for number in range(count):
        world.shop.put(f"ord_{number:04}", version=1, changed=ago(hours=1))
    await world.scan()


async def requested(world) -> list[str]:
    rows = await world.rows("select key, reason from reconciler.fetch_requests order by key")
    assert all(row.reason == "absent" for row in rows)
    return [row.key for row in rows]


async def test_what_is_not_listed_is_asked_about(engine):
    """One of ours is gone from the listing: nothing is deleted, a read of it is requested."""
    async with a_world(engine) as world:
        await hold(world, 30)
        del world.shop.orders["ord_0007"]
        report = await world.scan()

        assert (End.COMPLETED, 1, 1) == (report.end, report.absent, report.asked)
        assert ["ord_0007"] == await requested(world)
        assert 30 == len(await world.held())


async def test_an_empty_listing_deletes_nothing(engine):
    """C115: a thousand live orders, and once `{"data": []}`: the scan stops, nothing is asked."""
    async with a_world(engine, shop=Shop(size=500)) as world:
        await hold(world, 1000)
        before = await world.slot(Mode.FULL)
        world.shop.lies = [Reply(json={"data": []})]
        report = await world.scan()

        assert End.MASS_CHANGE == report.end
        assert "mass_change" in (await world.slot(Mode.FULL)).last_error
        assert [] == await requested(world)
        assert 1000 == len(await world.held())
        after = await world.slot(Mode.FULL)
        assert before.last_completed_at == after.last_completed_at

        assert (End.COMPLETED, 1000) == ((report := await world.scan()).end, report.in_sync)


async def test_the_brake_has_a_threshold(engine):
    """Five percent may be missing, and are asked about; more are taken for an outage."""
    async with a_world(engine) as world:
        await hold(world, 600)
        for number in range(30):
            del world.shop.orders[f"ord_{number:04}"]
        assert (End.COMPLETED, 30) == ((report := await world.scan()).end, report.asked)
        del world.shop.orders["ord_0100"]
        await world.run_sql("delete from reconciler.fetch_requests")

        assert End.MASS_CHANGE == (await world.scan()).end
        assert [] == await requested(world)


async def test_a_few_may_always_be_missing(engine):
    """Of twenty-two orders twenty are deleted: too few to be taken for an outage."""
    async with a_world(engine) as world:
        await hold(world, 22)
        for number in range(20):
            del world.shop.orders[f"ord_{number:04}"]

        assert 20 == (await world.scan()).asked


async def test_what_was_written_during_the_scan_is_no_candidate(engine):
    """B7: created, and told by its webhook, after the listing had passed its place."""
    async with a_world(engine, shop=Shop(size=10)) as world:
        await hold(world, 20)
        created = {**world.shop.orders["ord_0001"], "id": "ord_new"}
        answer = world.shop.answer
        await world.webhook(world.shop.put("ord_0000", version=2, changed=ago(hours=1)))

        async def meanwhile(request):
            await world.webhook(created)
            return await answer(request)

        world.shop.answer = meanwhile
        async with a_world(engine, shop=world.shop) as busy:
            report = await busy.scan()

        assert (End.COMPLETED, 0) == (report.end, report.absent)


async def test_a_resumed_pass_knows_nothing_of_absence(engine):
    """B7: what the first pages had is forgotten with the process; nothing is asked about."""
    async with a_world(engine, shop=Shop(size=10)) as world:
        await hold(world, 30)
        del world.shop.orders["ord_0029"]
        world.shop.lies = [None, Reply(body=b"<html>")]
        assert End.PAGE_BROKEN == (await world.scan()).end
        report = await world.scan()
        assert (End.COMPLETED, 0) == (report.end, report.absent)

        assert ["ord_0029"] == (await world.scan(), await requested(world))[1]


async def test_incremental_scans_say_nothing_of_absence(engine):
    """They list what has changed: everything else is missing by intent."""
    async with a_world(engine) as world:
        await hold(world, 30)
        await world.increment()
        world.shop.orders.clear()
        report = await world.increment()

        assert (End.COMPLETED, 0) == (report.end, report.absent)
        assert [] == await requested(world)


@pytest.mark.parametrize("get", [False, True])
async def test_where_a_404_settles_nothing_none_is_asked_for(engine, get):
    """Without a `get`, or with one whose 404 has no meaning, absence is only counted."""
    kind = {"get": {"path": "/v1/orders/{{ key }}", "key": "id"}}
    async with a_world(engine, get=get, kind=kind if get else None) as world:
        await hold(world, 30)
        del world.shop.orders["ord_0007"]
        report = await world.scan()

        assert (End.COMPLETED, 1, 0) == (report.end, report.absent, report.asked)
        assert [] == await requested(world)


async def test_tombstones_are_no_candidates(engine):
    """What we hold as deleted is not missed."""
    kind = {"deleted_on": ["order.deleted"]}
    async with a_world(engine, kind=kind) as world:
        await hold(world, 30)
        await world.run_sql("update reconciler.resources set deleted = true where key = 'ord_0001'")
        del world.shop.orders["ord_0001"]

        assert 0 == (await world.scan()).absent
