"""P12: lost events are corrected, and never over something newer."""

import asyncio
from collections import Counter

import pytest

from tests.stories.conftest import UNHEALED
from tests.world import World, eventually, order_event

pytestmark = pytest.mark.anyio


async def test_p12_a_lost_webhook_is_corrected_and_comes_too_late(world: World):
    """
    The order is paid and nobody tells us. The next scan finds it: state, the user's row and one
    charge, under the key that the webhook would have used. The webhook arrives after all, twice:
    `late`, then `duplicate`, and nothing more happens.
    """
    async with world.serving(*UNHEALED):  # so that no scan is quicker than this webhook
        created = order_event("evt_1", world.sender.sets("ord_1", status="created"))
        assert "applied" == await world.outcome(created)
    async with world.serving():
        await world.baseline_over()
        paid = order_event("evt_2", world.sender.sets("ord_1", status="paid", paid=True))
        await world.scans()
        assert "paid" == await world.value("select status from orders where id = 'ord_1'")
        await world.performed("capture ord_1")
        assert "late" == await world.outcome(paid)
        assert "duplicate" == await world.outcome(paid)
        await world.scans()
        await world.settled()
    assert ["shop:order:ord_1:2:capture"] == world.destination.keys
    (row,) = await world.rows("select status, status_version from orders where id = 'ord_1'")
    assert {"status": "paid", "status_version": 2} == row
    (correction,) = await world.rows("select * from reconciler.corrections")
    assert ("behind", 1, 2) == (
        correction["drift"],
        correction["old_version"],
        correction["new_version"],
    )
    assert correction["late_event_at"] is not None


async def test_p12_what_was_never_heard_of_is_found(world: World):
    """Both webhooks of a new order are lost: `missing`, and charged once."""
    async with world.serving():
        await world.baseline_over()
        world.sender.sets("ord_1", status="created")
        world.sender.sets("ord_1", status="paid", paid=True)
        await world.effects("capture ord_1")
        await world.scans()
    corrections = await world.rows("select drift from reconciler.corrections")
    assert {"missing": 1} == Counter(one["drift"] for one in corrections)


async def test_p12_a_listing_that_lags_behind_changes_nothing(world: World):
    """The webhook told of version 2, the listing still shows version 1, for several scans."""
    async with world.serving():
        await world.baseline_over()
        world.sender.sets("ord_1", status="created")
        before = dict(world.sender.orders["ord_1"])
        paid = order_event("evt_2", world.sender.sets("ord_1", status="paid", paid=True))
        world.sender.orders["ord_1"] = before
        await world.outcome(paid)
        await world.effects("capture ord_1")
        await world.scans(3)
    assert [] == await world.rows("select * from reconciler.corrections")
    assert 2 == await world.value("select version from reconciler.resources where key = 'ord_1'")


async def test_p12_a_change_within_grace_is_left_for_its_webhook(world: World):
    """With an hour of grace nothing is corrected, and the watermark stays behind what was left."""
    async with world.serving(RECONCILER_SENDERS__SHOP__GRACE="1h"):
        await world.baseline_over()
        world.sender.sets("ord_old", age=7200, status="created")
        paid = order_event("evt_1", world.sender.sets("ord_1", status="paid", paid=True))
        await world.scans(3)

        async def corrected() -> bool:
            return bool(await world.rows("select 1 from reconciler.resources"))

        await eventually(corrected)
        assert ["ord_old"] == [
            row["key"] for row in await world.rows("select key from reconciler.corrections")
        ]
        assert "applied" == await world.outcome(paid)
        await world.effects("capture ord_1")
    status = await world.document("status")
    watermark = status["senders"]["shop"]["kinds"]["order"]["watermark"]
    assert watermark is None or watermark <= world.sender.orders["ord_1"]["updated_at"]


async def test_p12_two_replicas_and_a_person_correct_once(world: World):
    """Both scan every second, and a person triggers the same order: one correction each."""
    async with world.serving(), world.serving():
        await world.baseline_over()
        for number in range(10):
            world.sender.sets(f"ord_{number}", status="paid", paid=True)
        async with asyncio.TaskGroup() as people:
            for number in range(2):
                people.create_task(world.document("reconcile", "shop", "order", f"ord_{number}"))
        await world.effects(*(f"capture ord_{number}" for number in range(10)))
        await world.scans()
        await world.settled()
    assert 10 == await world.value("select count(*) from reconciler.corrections")
    assert 10 == len(world.destination.calls)
