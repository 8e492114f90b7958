"""Events that need a read first, what they mention, and requests that are never lost (B3)."""

from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.ledger import fetches
from reconciler.ledger.event import Outcome
from reconciler.ledger.fetches import Answer, Request
from reconciler.transactions import transact
from tests.ledger.shop import CAPTURE, GET, LIST, RECEIPT, SHOP, Shop

pytestmark = pytest.mark.anyio

PAID = {"status": "new", "paid": True, "amount": 5}
THIN = SHOP.replace('on = ["order.*"]\n', 'on = ["order.*"]\nthin = true\n')
STATUS = """
[effects.report]
on = ["shop:order.reported"]
if_stale = "count"
destination = "payments"
request = "POST /v1/reports"
json = { state = "{{ state }}", version = "{{ version }}" }
"""
INVOICE = """
[senders.shop.resources.invoice]
on = ["invoice.*"]
from = "data"
key = "id"
version = "version"
first_seen = "fire"
[senders.shop.resources.invoice.get]
path = "/v1/invoices/{{ key }}"

[[senders.shop.also_read]]
on = ["order.*"]
kind = "invoice"
key = "body.data.invoice"
"""


@pytest.fixture
async def shop(engine: AsyncEngine) -> Shop:
    return await Shop.open(engine, THIN + LIST + GET + CAPTURE + RECEIPT + STATUS)


async def reports(shop: Shop) -> list[str]:
    found = await shop.rows(
        "select convert_from(body, 'utf8') as body from outbox where effect = 'report'"
        " order by created_at, id"
    )
    return [row["body"] for row in found]


async def test_a_thin_event_counts_when_its_read_is_applied(shop: Shop) -> None:
    """It is claimed, a read is asked for in the same commit, and its facts see what was read."""
    event = shop.event("order.reported", 7)

    assert Outcome.DEFERRED == (await shop.take(event)).outcome
    assert "deferred" == await shop.outcome(event)
    assert [] == await shop.calls()
    (request,) = await shop.rows("select * from fetch_requests")
    assert ("ord_42", 7) == (request["key"], request["at_least"])

    result = await shop.take(shop.read(7, started=await shop.now(), **PAID))

    assert ["capture", "report"] == [asked.effect for asked in result.effects]
    assert "applied" == await shop.outcome(event)
    assert ['{"state":{"status":"new","paid":true,"amount":5},"version":7}'] == await reports(shop)
    assert [] == await shop.requested()


async def test_it_counts_when_nothing_newer_was_found(shop: Shop) -> None:
    """A listing was faster; the read finds what we hold, and the fact counts over that."""
    await shop.take(shop.listed(7, **PAID))
    event = shop.event("order.reported", 7)
    await shop.take(event)
    await shop.take(shop.read(7, started=await shop.now(), **PAID))

    assert "applied" == await shop.outcome(event)
    assert 1 == len(await reports(shop))


async def test_it_counts_when_the_resource_is_gone(shop: Shop) -> None:
    """Deleted before we could look: the fact counts, with no state."""
    event = shop.event("order.reported", 7)
    await shop.take(event)
    await shop.take(shop.gone(started=await shop.now()))

    assert "applied" == await shop.outcome(event)
    assert ['{"state":null,"version":7}'] == await reports(shop)
    assert await shop.order() is None
    assert [] == await shop.requested()


async def test_a_read_that_started_before_it_does_not_count_it(shop: Shop) -> None:
    """B3: the read was under way and may have seen the state before; the request stays."""
    started = await shop.now()
    event = shop.event("order.reported", 7)
    await shop.take(event)
    await shop.take(shop.read(6, started=started, **PAID))

    assert "deferred" == await shop.outcome(event)
    assert ["ord_42"] == await shop.requested()


async def test_a_read_that_is_older_than_what_was_named_does_not_count_it(shop: Shop) -> None:
    """B3: the `get` lags. The request is kept and put off, and so is the fact."""
    event = shop.event("order.reported", 7)
    await shop.take(event)
    await shop.take(shop.read(6, started=await shop.now(), status="new"))

    assert "deferred" == await shop.outcome(event)
    assert ["ord_42"] == await shop.requested()

    await shop.take(shop.read(7, started=await shop.now(), status="new"))

    assert "applied" == await shop.outcome(event)
    assert [] == await shop.requested()


async def test_the_same_thin_fact_twice_counts_once(shop: Shop) -> None:
    """C35, thin: two ids for one change, before and after the read."""
    for _ in range(2):
        await shop.take(shop.event("order.reported", 7))
    await shop.take(shop.read(7, started=await shop.now(), **PAID))
    last = shop.event("order.reported", 7)
    await shop.take(last)
    await shop.take(shop.read(7, started=await shop.now(), **PAID))

    assert 1 == len(await reports(shop))
    assert "stale" == await shop.outcome(last)
    assert [] == await shop.rows("select * from processed_events where outcome = 'deferred'")


async def test_many_waiting_events_are_counted_some_at_a_time(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P16: what does not fit into one transaction asks for another read, until all have counted."""
    monkeypatch.setattr("reconciler.ledger.deferred.AT_ONCE", 3)
    await shop.takes(*(shop.event("order.reported", n) for n in range(1, 8)))
    beyond = shop.event("order.reported", 99)
    await shop.take(beyond)
    counted = []
    for _ in range(3):
        await shop.take(shop.read(7, started=await shop.now(), **PAID))
        counted.append(len(await reports(shop)))
        assert ["ord_42"] == await shop.requested()

    assert [3, 6, 7] == counted
    assert "deferred" == await shop.outcome(beyond)


async def test_events_without_a_version_each_count(engine: AsyncEngine) -> None:
    """Nothing says that they tell of one change."""
    shop = await Shop.open(engine, SHOP + LIST + GET + CAPTURE + RECEIPT + STATUS)
    await shop.take(shop.event("order.reported", None, status="new"))
    await shop.take(shop.event("order.reported", None, status="new"))
    await shop.take(shop.read(9, started=await shop.now(), status="x", paid=False, amount=1))

    assert 2 == len(await reports(shop))


async def test_a_deferred_fact_that_fails_does_not_hold_up_the_read(engine: AsyncEngine) -> None:
    """
    P15: the user's statement for the fact raises. The read is applied, the event goes to
    quarantine without its claim, and can be replayed.
    """
    boom = """
[[senders.shop.apply]]
on = ["order.reported"]
if_stale = "count"
sql = "SELECT 1 / (:amount)::int"
params = { amount = "state.amount" }
"""
    shop = await Shop.open(engine, THIN + boom + LIST + GET + CAPTURE)
    event = shop.event("order.reported", 7)
    await shop.take(event)
    result = await shop.take(
        shop.read(7, started=await shop.now(), status="new", paid=True, amount=0)
    )

    assert Outcome.APPLIED == result.outcome
    assert await shop.outcome(event) is None
    (kept,) = await shop.rows("select * from quarantine")
    assert (event.event_id, "open", event.raw) == (
        kept["event_id"],
        kept["state"],
        bytes(kept["body"]),
    )
    assert [] == await shop.requested()


async def test_what_an_event_mentions_is_read(engine: AsyncEngine) -> None:
    """State copied into an event about another resource is not applied: it is asked for."""
    shop = await Shop.open(engine, SHOP + LIST + GET + CAPTURE + INVOICE)
    await shop.takes(
        shop.event(version=7, invoice="inv_1", status="a", paid=False, amount=1),
        shop.event(version=8, invoice=17, status="a", paid=False, amount=1),
        shop.event(version=9, invoice={"id": "x"}, status="a", paid=False, amount=1),
        shop.event(version=10, status="a", paid=False, amount=1),
        shop.event("customer.updated", 1, invoice="inv_9"),
    )

    assert ["17", "inv_1"] == await shop.requested()


async def ask(shop: Shop, **more: object) -> None:
    wish = Request(resource=("shop", "order", "ord_42"), reason="why not", **more)  # type: ignore[arg-type]
    await transact(shop.engine, lambda connection: fetches.request(connection, [wish]))


async def lease(shop: Shop, *, limit: int = 10) -> list[tuple[str, int]]:
    async def work(connection: AsyncConnection) -> list[tuple[str, int]]:
        leased = await fetches.lease_due(
            connection, "shop", limit=limit, lease=timedelta(minutes=1)
        )
        return [(row.key, row.attempts) for row in leased]

    return await transact(shop.engine, work)


async def test_a_request_is_taken_once_and_comes_back(shop: Shop) -> None:
    """A reader that dies gives its request back when the lease is over."""
    await ask(shop)

    assert [("ord_42", 1)] == await lease(shop)
    assert [] == await lease(shop)
    await shop.do("update fetch_requests set due_at = now()")
    assert [("ord_42", 2)] == await lease(shop)


async def test_asking_again_renews_and_is_not_closed_by_a_read_under_way(shop: Shop) -> None:
    """B3: the request is made anew while its read is under way: that read cannot close it."""
    await ask(shop, at_least=5)
    await lease(shop)
    started = await shop.now()
    await ask(shop, at_least=3)

    answer = Answer(resource=("shop", "order", "ord_42"), started=started, version=9)
    closed = await transact(shop.engine, lambda connection: fetches.close(connection, [answer]))

    assert set() == closed
    (request,) = await shop.rows("select *, due_at <= clock_timestamp() as due from fetch_requests")
    assert (5, True, 0) == (request["at_least"], request["due"], request["attempts"])


async def test_failures_back_off(shop: Shop) -> None:
    """Each failure waits longer than the one before, and asking again does not shorten it."""
    await ask(shop)
    waits = []
    for _ in range(3):
        await shop.do("update fetch_requests set due_at = now()")
        await lease(shop)
        await transact(
            shop.engine,
            lambda connection: fetches.fail(connection, ("shop", "order", "ord_42"), "503\x00"),
        )
        await ask(shop)
        (row,) = await shop.rows(
            "select extract(epoch from due_at - clock_timestamp())::float as wait, last_error"
            " from fetch_requests"
        )
        waits.append(row["wait"])
        assert row["last_error"]

    assert waits == sorted(waits)
    assert 1 < waits[0] < 2.5
    assert 6 < waits[2] < 8.5
