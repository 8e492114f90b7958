"""P20, history fires nothing: switched on beside years of orders (issue "must show" 5)."""

import asyncio

import pytest

from reconciler.proving.misbehaving_http import Request
from tests.world import World, order_event

pytestmark = pytest.mark.anyio

DAY = 24 * 60 * 60


async def test_p20_a_thousand_old_paid_orders_are_not_charged_and_a_new_one_is(world: World):
    """
    A sender with 1,000 paid orders. While the baseline runs some of them change: by webhook, and
    by webhooks that are lost. Afterwards all are held as they are, and nobody was charged. Then
    an order is paid, and its webhook is lost: one charge.
    """
    for number in range(1000):
        world.sender.sets(f"ord_{number}", age=9 * DAY, status="paid", paid=True)
    changed: list[dict] = []

    async def meanwhile(request: Request) -> None:
        """While a page is under way, an order that was listed and one that was not change."""
        if request.path == "/v1/orders" and len(changed) < 20:
            number = len(changed) * 37
            both = (f"ord_{number}", f"ord_{999 - number}")
            changed.extend(world.sender.sets(key, status="shipped") for key in both)

    world.sender.before = meanwhile
    async with world.serving():
        ready = await world.daemons[0].ready_line()
        assert ready is not None
        assert ["shop order"] == ready["baseline"]
        async with asyncio.TaskGroup() as webhooks:
            while await world.rows("select 1 from reconciler.baselines where completed_at is null"):
                for data in changed[::2]:
                    event = order_event(f"evt_{data['order_id']}", data)
                    webhooks.create_task(world.deliver(event))
                await asyncio.sleep(0.1)
        assert changed
        await world.baseline_over()
        await world.scans()

        held = await world.rows("select key, version from reconciler.resources")
        theirs = {key: order["version"] for key, order in world.sender.orders.items()}
        assert theirs == {row["key"]: row["version"] for row in held}
        assert 1000 == await world.value("select count(*) from orders")
        assert [] == world.destination.calls
        status = await world.document("status")
        assert 0 == status["outbox"]["pending"] + status["outbox"]["delivered"]
        assert 1000 == status["outbox"]["skipped"]
        assert status["senders"]["shop"]["kinds"]["order"]["baseline_completed_at"]

        world.sender.sets("ord_new", status="created")
        world.sender.sets("ord_new", status="paid", paid=True)
        await world.effects("capture ord_new")
        await world.scans()
        await world.settled()
    assert ["shop:order:ord_new:2:capture"] == world.destination.keys


async def test_p20_a_database_that_was_lost_charges_nobody_again(world: World):
    """The daemon has charged an order. Its database is emptied, and all begins anew: no charge."""
    async with world.serving():
        await world.baseline_over()
        world.sender.sets("ord_1", age=2 * DAY, status="created")
        await world.scans()
        world.sender.sets("ord_1", status="paid", paid=True)
        await world.effects("capture ord_1")
    await world.rows("drop schema reconciler cascade")
    await world.rows("truncate orders")
    code, _, told = await world.command("migrate")
    assert 0 == code, told
    async with world.serving():
        await world.baseline_over()
        await world.scans()
        assert 1 == await world.value("select count(*) from orders")
    assert 1 == len(world.destination.calls)
    (entry,) = await world.outbox()
    assert ("skipped", "baseline") == (entry["state"], entry["last_error"])


async def test_p20_what_is_created_during_the_baseline_is_news(world: World):
    """An old order is held back, one that was created since we were switched on is charged."""
    world.sender.sets("ord_old", age=2 * DAY, status="paid", paid=True)
    reading = asyncio.Event()
    go_on = asyncio.Event()

    async def slowly(_request: Request) -> None:
        reading.set()
        await go_on.wait()

    world.sender.before = slowly
    async with world.serving():
        await reading.wait()
        new = order_event("evt_1", world.sender.sets("ord_new", status="paid", paid=True))
        assert "applied" == await world.outcome(new)
        await world.effects("capture ord_new")
        old = order_event("evt_2", world.sender.sets("ord_old", status="shipped"))
        assert "applied" == await world.outcome(old)
        go_on.set()
        await world.baseline_over()
        await world.scans()
    assert ["capture ord_new"] == world.destination.effects
