"""P6, one cause, one entry: whichever path found it first, and under one key."""

import asyncio

import pytest

from tests.stories.conftest import UNHEALED
from tests.world import World, order_event, refund_event

pytestmark = pytest.mark.anyio

KEY = "shop:order:ord_1:2:capture"


async def test_p06_a_change_found_on_every_path_is_charged_once(world: World):
    """
    The order is created, and then paid: two webhooks tell of it under different ids, and a
    person who reconciles it finds it too, all at the same time. One change, one entry, one call.
    """
    created = world.sender.sets("ord_1", status="created")
    paid = world.sender.sets("ord_1", status="paid", paid=True)
    events = [order_event("evt_1", created), order_event("evt_2", paid), order_event("evt_3", paid)]
    async with world.serving(*UNHEALED):
        async with asyncio.TaskGroup() as paths:
            paths.create_task(world.document("reconcile", "shop", "order", "ord_1"))
            paths.create_task(world.document("reconcile", "shop", "order", "ord_1"))
            paths.create_task(world.all_at_once(events))
        await world.all_at_once(events)
        await world.effects("capture ord_1")
        await world.settled()
    assert [KEY] == [entry["idempotency_key"] for entry in await world.outbox()]
    assert [KEY] == world.destination.keys


@pytest.mark.parametrize("path", ["webhook", "person", "listing"])
async def test_p06_every_path_uses_the_key_that_the_others_would_have_used(world: World, path: str):
    """And a correction that was faster leaves nothing for its webhook to do."""
    async with world.serving(*UNHEALED):
        created = order_event("evt_1", world.sender.sets("ord_1", status="created"))
        assert "applied" == await world.outcome(created)
        paid = order_event("evt_2", world.sender.sets("ord_1", status="paid", paid=True))
        match path:
            case "webhook":
                assert "applied" == await world.outcome(paid)
            case "person":
                await world.document("reconcile", "shop", "order", "ord_1")
            case "listing":
                await world.document("reconcile", "shop", "order")
        await world.effects("capture ord_1")
        again = {"webhook": "duplicate", "person": "late", "listing": "late"}
        assert again[path] == await world.outcome(paid)
        await world.settled()
    assert [KEY] == world.destination.keys


async def test_p06_a_fact_causes_each_of_its_effects_once(world: World):
    """A refund causes a row and a receipt; the same fact again, under its id, nothing."""
    async with world.serving(*UNHEALED):
        await world.all_at_once([refund_event("evt_1"), refund_event("evt_2")] * 3)
        await world.effects("receipt evt_1", "receipt evt_2")
        await world.settled()
    assert ["evt_1:receipt", "evt_2:receipt"] == sorted(world.destination.keys)
