"""P20: history fires nothing. What is news, and what was there before we came."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.ledger import baselines
from reconciler.ledger.baselines import Baseline
from reconciler.transactions import transact
from tests.ledger.shop import CAPTURE, GET, SHOP, WHOLE, Shop

pytestmark = pytest.mark.anyio

PAID = {"status": "new", "paid": True, "amount": 5}


@pytest.fixture
async def young(engine: AsyncEngine) -> Shop:
    """A shop whose baseline is not complete yet."""
    return await Shop.open(engine, baseline=False)


def long_ago() -> str:
    return (datetime.now(UTC) - timedelta(days=30)).isoformat()


async def test_an_old_paid_order_is_stored_and_not_charged(young: Shop) -> None:
    """B2: the first scan finds it paid long ago. The call is recorded as skipped, and visible."""
    await young.take(young.listed(7, **PAID))

    assert [("capture", "skipped", "baseline")] == await young.calls()
    order = await young.order()
    assert order is not None
    assert 7 == order["version"]


async def test_that_it_changed_since_proves_nothing(young: Shop) -> None:
    """Its webhook comes while the baseline runs: an address was changed, it was paid long ago."""
    await young.take(young.event("order.updated", 8, at=datetime.now(UTC).isoformat(), **PAID))

    assert [("capture", "skipped", "baseline")] == await young.calls()


async def test_what_we_held_before_fires_in_the_baseline_too(young: Shop) -> None:
    """Unpaid when the scan read it, paid by a webhook while the scan goes on: news."""
    await young.take(young.listed(7, status="new", paid=False, amount=5))
    await young.take(young.event(version=8, **PAID))

    assert [("capture", "pending", "")] == await young.calls()


async def test_what_was_created_after_the_birthday_fires(young: Shop) -> None:
    now = datetime.now(UTC).isoformat()
    await young.take(young.event(version=1, key="ord_1", created=now, **PAID))
    await young.take(young.event(version=1, key="ord_2", created=long_ago(), **PAID))

    assert [("capture", "pending", ""), ("capture", "skipped", "baseline")] == await young.calls()


async def test_a_type_that_says_created_proves_it(young: Shop) -> None:
    """... unless it is an old event that the sender repeats."""
    now = datetime.now(UTC).isoformat()
    await young.take(young.event("order.created", 1, key="ord_1", at=now, **PAID))
    await young.take(young.event("order.created", 1, key="ord_2", **PAID))
    await young.take(young.event("order.created", 1, key="ord_3", at=long_ago(), **PAID))
    await young.take(
        young.event("order.created", 1, key="ord_4", at=now, created=long_ago(), **PAID)
    )

    assert ["pending", "pending", "skipped", "skipped"] == [call[1] for call in await young.calls()]


async def test_clocks_may_differ_by_a_minute(young: Shop) -> None:
    """Created 50 s before our birthday by the sender's clock: it may as well be after it."""
    (row,) = await young.rows("select born_at from baselines")
    for key, seconds in (("ord_1", 50), ("ord_2", 70)):
        created = (row["born_at"] - timedelta(seconds=seconds)).isoformat()
        await young.take(young.event(version=1, key=key, created=created, **PAID))

    assert ["pending", "skipped"] == [call[1] for call in await young.calls()]


async def test_after_the_baseline_what_we_never_held_is_news(young: Shop) -> None:
    async def complete(connection: AsyncConnection) -> bool:
        return await baselines.complete(connection, "shop", "order", by="scan")

    assert await transact(young.engine, complete)
    assert not await transact(young.engine, complete)
    await young.take(young.listed(7, **PAID))

    assert [("capture", "pending", "")] == await young.calls()


async def test_a_person_who_asks_for_one_resource_means_it(young: Shop) -> None:
    await young.take(young.read(7, started=await young.now(), by_person=True, **PAID))

    assert [("capture", "pending", "")] == await young.calls()


async def test_facts_are_no_history(young: Shop) -> None:
    """That an event came now is news whenever its order was created."""
    await young.take(young.event("order.paid", 7, **PAID))

    assert [
        ("capture", "skipped", "baseline"),
        ("note", "pending", ""),
        ("receipt", "pending", ""),
    ] == sorted(await young.calls())


@pytest.mark.parametrize(("first_seen", "expected"), [("fire", "pending"), ("skip", "skipped")])
async def test_a_kind_without_a_list_does_as_it_says(
    engine: AsyncEngine, first_seen: str, expected: str
) -> None:
    config = SHOP.replace('deleted_on = ["', f'first_seen = "{first_seen}"\ndeleted_on = ["')
    shop = await Shop.open(engine, config + GET + CAPTURE, baseline=False)
    await shop.take(shop.event(version=7, key="ord_1", **PAID))
    await shop.take(
        shop.event(version=7, key="ord_2", created=datetime.now(UTC).isoformat(), **PAID)
    )

    assert [expected, "pending"] == [call[1] for call in await shop.calls()]


async def test_a_kind_that_was_never_registered_fires_nothing(engine: AsyncEngine) -> None:
    shop = await Shop.open(engine, WHOLE, baseline=False)
    await shop.do("delete from baselines")
    await shop.take(shop.event("order.created", 1, **PAID))

    assert ["skipped"] == [call[1] for call in await shop.calls()]


async def test_the_birthday_is_set_once(young: Shop) -> None:
    (before,) = await young.rows("select * from baselines")

    async def again(connection: AsyncConnection) -> dict[tuple[str, str], Baseline]:
        await baselines.register(connection, [("shop", "order"), ("shop", "invoice")])
        return await baselines.states(connection)

    states = await transact(young.engine, again)

    assert before["born_at"] == states["shop", "order"].born_at
    assert states["shop", "invoice"].completed_at is None


async def test_a_creation_that_has_to_be_read_first_is_news_too(engine: AsyncEngine) -> None:
    """A thin `order.created` after the birthday: the read that answers it finds a new order."""
    thin = WHOLE.replace('on = ["order.*"]\n', 'on = ["order.*"]\nthin = true\n')
    shop = await Shop.open(engine, thin, baseline=False)
    now = datetime.now(UTC).isoformat()
    await shop.take(shop.event("order.created", 7, key="ord_1", at=now))
    await shop.take(shop.event("order.updated", 7, key="ord_2", at=now))
    for key in ("ord_1", "ord_2"):
        await shop.take(shop.read(7, key=key, started=await shop.now(), **PAID))

    assert [("capture", "pending", ""), ("capture", "skipped", "baseline")] == await shop.calls()
