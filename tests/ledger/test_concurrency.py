"""Many at once, over real connections: one claim, one change, no deadlock, nothing forgotten."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.database import engine_for
from reconciler.ledger.apply import apply
from reconciler.ledger.batch import Result
from reconciler.ledger.event import Outcome
from tests.ledger.shop import CAPTURE, GET, LIST, RECEIPT, SHOP, Shop

pytestmark = pytest.mark.anyio

PAID = {"status": "new", "paid": True, "amount": 5}
THIN = SHOP.replace('on = ["order.*"]\n', 'on = ["order.*"]\nthin = true\n')


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = engine_for(database_url, pool_size=24)
    yield engine
    await engine.dispose()


@pytest.fixture
async def shop(engine: AsyncEngine) -> Shop:
    return await Shop.open(engine)


async def at_once(*works: Awaitable[list[Result]]) -> list[Result]:
    async def run(work: Awaitable[list[Result]]) -> list[Result]:
        return await work

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(work)) for work in works]
    return [result for task in tasks for result in task.result()]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - a lock wait tells nobody
            await asyncio.sleep(0.01)


async def somebody_waits(shop: Shop) -> bool:
    """Whether a transaction waits for a lock of another."""
    found = await shop.rows("select 1 from pg_locks where not granted")
    return bool(found)


def counted(results: list[Result]) -> Counter[Outcome]:
    return Counter(result.outcome for result in results)


async def test_twenty_deliveries_of_one_event_at_once(shop: Shop) -> None:
    """P1, C37: twenty lanes, one event. One applies it, nineteen find it."""
    event = shop.event("order.paid", 7, **PAID)
    results = await at_once(*(shop.takes(event) for _ in range(20)))

    assert {Outcome.APPLIED: 1, Outcome.DUPLICATE: 19} == counted(results)
    assert 3 == len(await shop.calls())
    order = await shop.order()
    assert order is not None
    assert 1 == order["revision"]


async def test_a_twin_in_flight_that_rolls_back(shop: Shop) -> None:
    """P2, C39: the first delivery stalls and dies. The second waits for it, and then applies."""
    event = shop.event("order.paid", 7, **PAID)
    async with shop.engine.connect() as first, asyncio.TaskGroup() as group:
        transaction = await first.begin()
        await apply(first, shop.rules, [event])
        second = group.create_task(shop.take(event))
        await until(lambda: somebody_waits(shop))
        assert not second.done()
        await transaction.rollback()

    assert Outcome.APPLIED == second.result().outcome


async def test_a_twin_in_flight_that_commits(shop: Shop) -> None:
    event = shop.event("order.paid", 7, **PAID)
    async with shop.engine.connect() as first, asyncio.TaskGroup() as group:
        transaction = await first.begin()
        await apply(first, shop.rules, [event])
        second = group.create_task(shop.take(event))
        await until(lambda: somebody_waits(shop))
        await transaction.commit()

    assert Outcome.DUPLICATE == second.result().outcome


async def test_a_twin_that_stalls_too_long_makes_the_other_busy(shop: Shop) -> None:
    """P2: the wait is bounded, and its end is never a duplicate."""
    event = shop.event("order.paid", 7, **PAID)
    async with shop.engine.connect() as first, first.begin():
        await apply(first, shop.rules, [event])
        result = await shop.take(event, lock_timeout=timedelta(milliseconds=100))

    assert result.busy


async def test_batches_in_opposite_orders(shop: Shop) -> None:
    """C57: [a, b] and [b, a], again and again and at once: all applied, none had to give way."""
    keys = [f"ord_{n}" for n in range(10)]
    for version in range(1, 6):
        up = [shop.event(version=2 * version, key=key, status="u", amount=1) for key in keys]
        down = [
            shop.event(version=2 * version, key=key, status="d", amount=2) for key in reversed(keys)
        ]
        results = await at_once(shop.takes(*up), shop.takes(*down), shop.takes(*up[:5]))
        assert {Outcome.APPLIED: 10, Outcome.TIED: 10, Outcome.DUPLICATE: 5} == counted(results)
    (dead,) = await shop.rows(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )
    assert 0 == dead["deadlocks"]


async def test_two_first_sights_of_one_order_charge_once(shop: Shop) -> None:
    """
    B1: evt_5 and evt_6 both say `paid`, at once, of an order that we have never seen. Whoever
    comes second must read what the first one wrote, or the order becomes paid twice.
    """
    for n in range(10):
        key = f"ord_{n}"
        await at_once(
            shop.takes(shop.event(version=5, key=key, **PAID)),
            shop.takes(shop.event(version=6, key=key, **PAID)),
        )
    assert 10 == await shop.charges()
    assert 10 == len(await shop.rows("select 1 from resources where version = 6"))


async def test_versions_only_grow_whoever_writes(shop: Shop) -> None:
    """P4: fourteen writers with v1 to v14 end at v14, with a revision for each that wrote."""
    results = await at_once(
        *(shop.takes(shop.event(version=n, status=f"s{n}", amount=n)) for n in range(1, 15))
    )
    order = await shop.order()
    assert order is not None
    assert (14, "s14") == (order["version"], order["state"]["status"])
    assert order["revision"] == counted(results)[Outcome.APPLIED]


async def test_a_correction_and_its_webhook_at_once(shop: Shop) -> None:
    """C119: both find v7 at the same time. One charge, whoever was first."""
    for n in range(10):
        key = f"ord_{n}"
        await at_once(
            shop.takes(shop.event("order.updated", 7, key=key, **PAID)),
            shop.takes(shop.listed(7, key=key, **PAID)),
            shop.takes(shop.listed(7, key=key, **PAID)),
        )
    assert 10 == await shop.charges()
    assert 10 >= len(await shop.rows("select 1 from corrections"))


async def test_one_fact_under_two_ids_at_once(shop: Shop) -> None:
    """C35, and neither was there before the other."""
    for n in range(10):
        key = f"ord_{n}"
        await at_once(
            shop.takes(shop.event("order.paid", 7, key=key, **PAID)),
            shop.takes(shop.event("order.paid", 7, key=key, **PAID)),
        )
    assert 30 == len(await shop.calls())


async def test_an_event_over_a_placeholder_that_comes_to_nothing(shop: Shop) -> None:
    """A 404 about nothing locks the key first; the first webhook waits, and is applied."""
    event = shop.event(version=1, **PAID)
    async with shop.engine.connect() as first, asyncio.TaskGroup() as group:
        transaction = await first.begin()
        await apply(first, shop.rules, [shop.gone(started=await shop.now())])
        second = group.create_task(shop.take(event))
        await until(lambda: somebody_waits(shop))
        await transaction.commit()

    assert Outcome.APPLIED == second.result().outcome
    assert 1 == await shop.charges()


async def test_a_request_that_is_renewed_while_its_read_commits(engine: AsyncEngine) -> None:
    """
    B3: a request stands. A second thin event renews it and has not committed when a read, which
    started after it, closes the request. The event is answered or the request stays; never
    neither.
    """
    shop = await Shop.open(engine, THIN + LIST + GET + CAPTURE + RECEIPT)
    await shop.take(shop.event("order.paid", 7))
    late = shop.event("order.paid", 8)
    async with shop.engine.connect() as writer, asyncio.TaskGroup() as group:
        transaction = await writer.begin()
        await apply(writer, shop.rules, [late])
        read = shop.read(8, started=await shop.now(), **PAID)
        reading = group.create_task(shop.take(read))
        await until(lambda: somebody_waits(shop))
        await transaction.commit()

    assert Outcome.APPLIED == reading.result().outcome
    assert "applied" == await shop.outcome(late)
    assert [] == await shop.requested()
    assert 5 == len(await shop.calls())  # a capture, and two facts with two calls each


async def test_an_event_that_comes_while_its_claim_is_purged(shop: Shop) -> None:
    """
    P11: the claim is just being deleted when the event comes again. It waits, and then sees the
    horizon that was committed with the deletion: quarantined, not counted a second time.
    """
    old = shop.event("order.paid", 7, at="2026-01-01T00:00:00Z", **PAID)
    await shop.take(old)
    await shop.do("delete from outbox")
    async with shop.engine.connect() as purging, asyncio.TaskGroup() as group:
        transaction = await purging.begin()
        await purging.execute(text("delete from reconciler.processed_events"))
        again = group.create_task(shop.take(old))
        await until(lambda: somebody_waits(shop))
        await purging.execute(
            text("insert into reconciler.purge_horizons values ('shop', clock_timestamp())")
        )
        await transaction.commit()

    assert Outcome.QUARANTINED == again.result().outcome
    assert [] == await shop.calls()


async def test_nothing_waits_inside_a_transaction_for_more_than_the_database(shop: Shop) -> None:
    """C100: after a commit no connection is left inside a transaction."""
    await at_once(*(shop.takes(shop.event(version=n, amount=n)) for n in range(8)))
    idle = await shop.rows(
        "select 1 from pg_stat_activity where state like 'idle in transaction%'"
        " and datname = current_database()"
    )
    assert [] == idle
