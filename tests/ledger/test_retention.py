"""P11: ids are kept long enough, and what the purge leaves behind says so."""

from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger import retention
from reconciler.ledger.event import Outcome
from tests.ledger.shop import CAPTURE, GET, LIST, RECEIPT, SHOP, Shop

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)
PAID = {"status": "new", "paid": True, "amount": 5}


@pytest.fixture
async def shop(engine: AsyncEngine) -> Shop:
    return await Shop.open(engine, SHOP + LIST + GET + CAPTURE + RECEIPT)


async def age(shop: Shop, *, days: int) -> None:
    """Everything that is there now was written *days* earlier."""
    for table, columns in (
        ("processed_events", ("processed_at",)),
        ("event_bodies", ("received_at",)),
        ("outbox", ("created_at", "completed_at")),
        ("effect_keys", ("created_at",)),
    ):
        moved = ", ".join(f"{column} = {column} - :by" for column in columns)
        await shop.do(f"update {table} set {moved}", by=timedelta(days=days))  # noqa: S608


KEEP = retention.Keep(
    claims=90 * DAY, bodies=7 * DAY, entries=90 * DAY, keys=90 * DAY, quarantine=30 * DAY
)


async def purge(shop: Shop, *, batch: int = 10_000) -> retention.Purged:
    return await retention.purge(shop.engine, "shop", KEEP, batch=batch)


async def test_old_claims_go_in_batches_and_the_horizon_moves(shop: Shop) -> None:
    """Twenty-five claims of four months ago and one of today, ten at a time."""
    await shop.takes(*(shop.event(version=n, amount=n, status="a", paid=False) for n in range(25)))
    await age(shop, days=120)
    (old,) = await shop.rows("select max(processed_at) as latest from processed_events")
    young = shop.event(version=99, amount=1, status="a", paid=False)
    await shop.take(young)

    purged = await purge(shop, batch=10)

    assert (25, 25) == (purged.claims, purged.bodies)
    assert [young.event_id] == [
        row["event_id"] for row in await shop.rows("select event_id from processed_events")
    ]
    (horizon,) = await shop.rows("select * from purge_horizons")
    assert old["latest"] == horizon["horizon"]


async def test_nothing_purged_leaves_no_horizon(shop: Shop) -> None:
    await shop.take(shop.event(version=1, amount=1))

    assert retention.Purged(claims=0, bodies=0, entries=0) == await purge(shop)
    assert [] == await shop.rows("select * from purge_horizons")


async def test_the_horizon_never_goes_back(shop: Shop) -> None:
    await shop.do("insert into purge_horizons values ('shop', now())")
    (before,) = await shop.rows("select horizon from purge_horizons")
    await shop.take(shop.event(version=1, amount=1))
    await age(shop, days=120)
    await purge(shop)

    (after,) = await shop.rows("select horizon from purge_horizons")
    assert before == after


async def test_a_purged_event_that_comes_again_has_no_second_effect(shop: Shop) -> None:
    """C133: after the purge the sender repeats an event of four months ago."""
    event = shop.event("order.paid", 7, at="2020-01-01T00:00:00Z", **PAID)
    await shop.take(event)
    await shop.do("update outbox set state = 'delivered', completed_at = now()")
    await age(shop, days=120)
    await purge(shop)
    assert await shop.outcome(event) is None
    assert [] == await shop.calls()

    assert Outcome.QUARANTINED == (await shop.take(event)).outcome
    assert [] == await shop.calls()


async def test_a_claim_outlives_its_entries(shop: Shop) -> None:
    """Its call is dead and may be redriven: the claim stays until that is over."""
    event = shop.event("order.paid", 7, **PAID)
    await shop.take(event)
    await shop.do("update outbox set state = 'dead', completed_at = now()")
    await age(shop, days=120)

    assert 0 == (await purge(shop)).claims
    await shop.do("update outbox set state = 'discarded'")
    purged = await purge(shop)

    assert (1, 3) == (purged.claims, purged.entries)
    assert [] == await shop.rows("select * from effect_keys")


async def test_a_key_that_may_be_used_once_in_a_life_is_kept(shop: Shop) -> None:
    """A lasting key names neither version nor event: it is kept as long as its resource."""
    await shop.take(shop.event(version=7, **PAID))
    await shop.do("update effect_keys set lasting = true")
    await shop.do("update outbox set state = 'delivered', completed_at = now()")
    await age(shop, days=120)
    await purge(shop)

    assert 1 == len(await shop.rows("select * from effect_keys"))


async def test_what_waits_for_a_read_is_kept_whole(shop: Shop) -> None:
    """A deferred event, claim and body, until its facts have counted."""
    event = shop.event("order.paid", None, status="new")
    await shop.take(event)
    await age(shop, days=120)
    purged = await purge(shop)

    assert (0, 0) == (purged.claims, purged.bodies)
    assert "deferred" == await shop.outcome(event)
    assert 1 == len(await shop.rows("select * from event_bodies"))


async def test_each_sender_has_its_own_memory(shop: Shop) -> None:
    await shop.take(shop.event(version=1, amount=1))
    await shop.do("update processed_events set sender = 'market'")
    await age(shop, days=120)

    assert 0 == (await purge(shop)).claims
