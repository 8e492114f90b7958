"""P4, versions only grow, and P5, stale changes nothing."""

import asyncio
import random
from collections import Counter

import pytest

from tests.stories.conftest import UNHEALED
from tests.world import CONFIGURATION, World, a_world, order_event

pytestmark = pytest.mark.anyio

HISTORY = """
[[senders.shop.apply]]
on_change = ["order"]
sql = "INSERT INTO seen (id, version) VALUES (:order_id, :version)"
params = { order_id = "key", version = "version" }
"""


async def test_p04_versions_only_grow_whatever_the_order_and_whoever_writes(tmp_path, database_url):
    """
    Four orders at fifteen versions each, shuffled, some twice, over two replicas at once, while
    a person reconciles the same orders again and again. A table of the user's sees every change
    in the order in which they were made: each order's versions rise, and end at the newest.
    """
    async with a_world(tmp_path, database_url, configuration=CONFIGURATION + HISTORY) as world:
        await world.rows("create table public.seen (n bigserial, id text, version bigint)")
        events = [
            order_event(f"evt_{key}_{n}", world.sender.sets(f"ord_{key}", status=f"status {n}"))
            for n in range(15)
            for key in range(4)
        ]
        fate = random.Random(4)
        events += fate.sample(events, 20)
        fate.shuffle(events)
        async with world.serving(*UNHEALED) as first, world.serving(*UNHEALED) as second:
            async with asyncio.TaskGroup() as work:
                sent = [
                    work.create_task(world.deliver(event, to=fate.choice((first, second))))
                    for event in events
                ]
                for key in range(2):
                    work.create_task(world.document("reconcile", "shop", "order", f"ord_{key}"))
            assert {200} == {one.result().status_code for one in sent}
        for key in range(4):
            seen = await world.rows(
                "select version from seen where id = %s order by n", f"ord_{key}"
            )
            versions = [row["version"] for row in seen]
            assert sorted(set(versions)) == versions
            assert 15 == versions[-1]
        assert 4 == await world.value("select count(*) from orders where status_version = 15")
        newest = await world.rows("select version from reconciler.resources")
        assert [15] * 4 == [row["version"] for row in newest]


STALE_FACTS = """
[effects.parcel]
on = ["shop:order.shipped"]
if_stale = "count"
destination = "payments"
request = "POST /v1/parcels"
json = { reference = "parcel {{ event_id }}" }
idempotency_key = "{{ event_id }}:parcel"

[effects.note]
on = ["shop:order.shipped"]
if_stale = "skip"
destination = "payments"
request = "POST /v1/notes"
json = { reference = "note {{ event_id }}" }
idempotency_key = "{{ event_id }}:note"
"""


async def test_p05_an_older_event_changes_nothing_and_its_facts_count_as_configured(
    tmp_path, database_url
):
    """
    "shipped" arrives after "delivered". State, the user's table and the charge stay as they are;
    the parcel is counted all the same, the mail about it is not sent. Had it come first, both
    would have happened.
    """
    async with a_world(tmp_path, database_url, configuration=CONFIGURATION + STALE_FACTS) as world:
        shipped = world.sender.sets("ord_1", status="shipped", paid=True)
        delivered = world.sender.sets("ord_1", status="delivered")
        async with world.serving(*UNHEALED):
            assert "applied" == await world.outcome(order_event("evt_2", delivered))
            await world.effects("capture ord_1")
            row, ours = await rows_of(world)

            late = order_event("evt_1", shipped, type_="order.shipped")
            assert "stale" == await world.outcome(late)
            assert "duplicate" == await world.outcome(late)
            assert (row, ours) == await rows_of(world)
            await world.performed("capture ord_1", "parcel evt_1")

            first = order_event("evt_3", world.sender.sets("ord_2"), type_="order.shipped")
            assert "applied" == await world.outcome(first)
            await world.effects("capture ord_1", "parcel evt_1", "parcel evt_3", "note evt_3")
        claims = await world.rows("select outcome from reconciler.processed_events")
        assert {"applied": 2, "stale": 1} == Counter(claim["outcome"] for claim in claims)


async def rows_of(world: World):
    """What is held of ord_1, but for its revision, which counts who enqueued about it."""
    ours = await world.rows(
        "select version, state, state_digest, deleted, origin, updated_at"
        " from reconciler.resources where key = 'ord_1'"
    )
    return ours, await world.rows("select * from orders where id = 'ord_1'")
