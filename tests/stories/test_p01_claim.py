"""P1, one claim: the effects of an event commit at most once, over any number of replicas."""

import asyncio
from collections import Counter

import pytest

from tests.stories.conftest import UNHEALED
from tests.world import World, order_event, refund_event

pytestmark = pytest.mark.anyio


async def test_p01_one_event_at_two_replicas_at_once_has_one_effect(world: World):
    """
    Twenty deliveries of a refund and of a paid order, half of them at each of two daemons that
    share nothing but the database.
    """
    refund = refund_event("evt_refund")
    paid = order_event("evt_paid", world.sender.sets("ord_1", status="paid", paid=True))
    async with world.serving(*UNHEALED) as first, world.serving(*UNHEALED) as second:
        async with asyncio.TaskGroup() as deliveries:
            sent = [
                deliveries.create_task(world.deliver(event, to=replica))
                for _ in range(5)
                for event in (refund, paid)
                for replica in (first, second)
            ]
        outcomes = Counter(one.result().json().get("outcome") for one in sent)
        assert {"applied": 2, "duplicate": 18} == outcomes
        await world.effects("capture ord_1", "receipt evt_refund")
        await world.settled()
    counts = await world.counts()
    assert {"processed_events": 2, "resources": 1, "orders": 1, "refunds": 1, "outbox": 2} == {
        table: counts[table]
        for table in ("processed_events", "resources", "orders", "refunds", "outbox")
    }
    assert 2 == len(world.destination.calls)


async def test_p01_what_a_replica_has_applied_another_one_knows(world: World):
    """An in-memory set of seen ids would be wrong the moment that there are two."""
    refund = refund_event("evt_refund")
    async with world.serving(*UNHEALED) as first, world.serving(*UNHEALED) as second:
        assert "applied" == await world.outcome(refund, to=first)
        assert "duplicate" == await world.outcome(refund, to=second)
    async with world.serving(*UNHEALED) as third:
        assert "duplicate" == await world.outcome(refund, to=third)
    assert 1 == await world.value("select count(*) from refunds")
