"""One claim an event (P1, P3), what a duplicate leaves behind, and what is too old to judge."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from reconciler.ledger.event import Origin, Outcome
from tests.ledger.shop import CAPTURE, GET, LIST, RECEIPT, SHOP, Shop

pytestmark = pytest.mark.anyio

PAID = {"status": "new", "paid": True, "amount": 5}

REFUND = """
[effects.refund_receipt]
on = ["shop:refund.succeeded"]
destination = "payments"
request = "POST /v1/refund-receipts"
json = { order = "{{ body.data.order_id }}" }
"""

MARKET = """
[senders.market]
secrets = ["env:MARKET_SECRET"]

[senders.market.signature]
header = "X-Signature"

[senders.market.event]
id = "id"
type = "type"

[senders.market.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
first_seen = "fire"
"""


@pytest.fixture
async def shop(engine: AsyncEngine) -> Shop:
    return await Shop.open(engine, SHOP + LIST + GET + CAPTURE + RECEIPT + REFUND)


async def test_a_repeated_delivery_is_a_duplicate(shop: Shop) -> None:
    """The guide's first test: three deliveries, one row, one set of calls."""
    event = shop.event("order.paid", 7, **PAID)
    outcomes = [(await shop.take(event)).outcome for _ in range(3)]

    assert [Outcome.APPLIED, Outcome.DUPLICATE, Outcome.DUPLICATE] == outcomes
    assert 1 == len(await shop.rows("select * from processed_events"))
    assert 3 == len(await shop.calls())


async def test_a_repetition_inside_one_batch_is_a_duplicate(shop: Shop) -> None:
    event = shop.event("order.paid", 7, **PAID)
    results = await shop.takes(event, event, event)

    assert [Outcome.APPLIED, Outcome.DUPLICATE, Outcome.DUPLICATE] == [r.outcome for r in results]
    assert 3 == len(await shop.calls())


async def test_ids_belong_to_their_sender(engine: AsyncEngine) -> None:
    """C34: evt_1 of the shop and evt_1 of the market are two events."""
    shop = await Shop.open(engine, SHOP + LIST + GET + MARKET)
    ours = shop.event(version=7, id_="evt_1", status="a")
    shop.sender = "market"
    theirs = shop.event(version=7, id_="evt_1", status="b")

    results = await shop.takes(ours, theirs)

    assert [Outcome.APPLIED, Outcome.APPLIED] == [result.outcome for result in results]
    assert 2 == len(await shop.rows("select * from resources"))


async def test_ids_are_opaque(shop: Shop) -> None:
    """Neither case, nor spaces, nor normal forms are one."""
    ids = ["evt", "EVT", "evt ", " evt", "e\u0301", "\u00e9", "%", "'; drop table x --", "🎉"]
    results = await shop.takes(*(shop.event("refund.succeeded", id_=id_, key="k") for id_ in ids))

    assert [Outcome.APPLIED] * len(ids) == [result.outcome for result in results]
    stored = await shop.rows("select event_id from processed_events")
    assert set(ids) == {row["event_id"] for row in stored}


async def test_the_same_id_with_another_body(shop: Shop) -> None:
    """C36: a duplicate all the same, but both digests are told and the truth is asked for."""
    await shop.take(shop.event(version=7, id_="evt_1", amount=10))
    with capture_logs() as logs:
        other = await shop.take(shop.event(version=8, id_="evt_1", amount=12))

    assert (Outcome.DUPLICATE, True) == (other.outcome, other.other_body)
    (told,) = [one for one in logs if one["event"] == "ledger.other_body_seen"]
    assert told["digest"] != told["claimed_digest"]
    assert ["ord_42"] == await shop.requested()
    order = await shop.order()
    assert order is not None
    assert 7 == order["version"]


async def test_another_body_inside_one_batch(shop: Shop) -> None:
    first = shop.event(version=7, id_="evt_1", **PAID)
    other = shop.event(version=8, id_="evt_1", **PAID)
    results = await shop.takes(first, other)

    assert [False, True] == [result.other_body for result in results]


async def test_an_unknown_type_is_ignored_and_claimed(shop: Shop) -> None:
    event = shop.event("customer.updated", 7)

    assert Outcome.IGNORED == (await shop.take(event)).outcome
    assert "ignored" == await shop.outcome(event)
    assert Outcome.DUPLICATE == (await shop.take(event)).outcome


async def test_a_fact_about_no_resource_counts_once(shop: Shop) -> None:
    event = shop.event("refund.succeeded")
    await shop.takes(event, event)
    await shop.take(event)

    assert [("refund_receipt", "pending", "")] == await shop.calls()


async def test_exact_bytes_and_headers_are_kept(shop: Shop) -> None:
    event = shop.event(version=7, status="\u00e9\U0001f389", amount=12345678901234567890)
    await shop.take(event)

    (body,) = await shop.rows("select * from event_bodies")
    assert event.raw == bytes(body["body"])
    assert {"x-test": "yes"} == body["headers"]


@pytest.mark.parametrize("id_", ["correction:order:ord_42:9", "read:order:ord_42:9:1"])
async def test_an_id_like_one_of_ours_is_quarantined(shop: Shop, id_: str) -> None:
    """A sender could otherwise keep a correction from being claimed."""
    from dataclasses import replace

    event = replace(shop.event(version=9), event_id=id_)

    assert Outcome.QUARANTINED == (await shop.take(event)).outcome
    assert [] == await shop.rows("select * from processed_events")


async def test_an_event_that_waits_for_a_read_that_cannot_be_made(engine: AsyncEngine) -> None:
    """No version, and no `get` to ask for it: kept whole, unclaimed, and once."""
    shop = await Shop.open(engine, SHOP + LIST + CAPTURE)
    event = shop.event(version=None, status="new")

    for _ in range(2):
        result = await shop.take(event)
        assert Outcome.QUARANTINED == result.outcome
        assert result.fault
        assert not result.retryable
    assert [] == await shop.rows("select * from processed_events")
    (kept,) = await shop.rows("select * from quarantine")
    assert (event.event_id, event.raw, 2) == (
        kept["event_id"],
        bytes(kept["body"]),
        kept["failures"],
    )
    assert kept["fault"]


async def test_an_event_from_before_the_purge_may_have_counted(shop: Shop) -> None:
    """
    P11, C133: claims up to March were purged. An event that happened in February comes again: its
    claim may be gone, so it is quarantined unclaimed. A person who knows better may replay it.
    """
    await shop.do("insert into purge_horizons values ('shop', '2026-03-01T00:00:00Z')")
    old = shop.event("refund.succeeded", at="2026-02-20T10:00:00Z")
    new = shop.event("refund.succeeded", at="2026-03-01T00:00:00Z")
    undated = shop.event("refund.succeeded")

    results = await shop.takes(old, new, undated)

    assert [Outcome.QUARANTINED, Outcome.APPLIED, Outcome.APPLIED] == [r.outcome for r in results]
    assert 2 == len(await shop.calls())
    assert await shop.outcome(old) is None
    assert 2 == len(await shop.rows("select * from event_bodies"))

    again = shop.event(
        "refund.succeeded",
        id_=old.event_id,
        at="2026-02-20T10:00:00Z",
        origin=Origin.REPLAY,
        by_person=True,
    )
    assert Outcome.APPLIED == (await shop.take(again)).outcome
    (kept,) = await shop.rows("select * from quarantine")
    assert "replayed" == kept["state"]
    assert 3 == len(await shop.calls())


async def test_an_old_event_that_is_still_claimed_is_a_duplicate(shop: Shop) -> None:
    """The purge spared it, or it came late: nothing has to be guessed."""
    old = shop.event("refund.succeeded", at="2026-02-20T10:00:00Z")
    await shop.take(old)
    await shop.do("insert into purge_horizons values ('shop', '2026-03-01T00:00:00Z')")

    assert Outcome.DUPLICATE == (await shop.take(old)).outcome


async def test_where_nothing_was_purged_old_events_are_welcome(shop: Shop) -> None:
    ages_ago = (datetime.now(UTC) - timedelta(days=3000)).isoformat()

    assert Outcome.APPLIED == (await shop.take(shop.event("refund.succeeded", at=ages_ago))).outcome


async def test_twins_of_which_the_first_is_beyond_use(shop: Shop) -> None:
    """Each of them is judged, as if it had come alone."""
    await shop.do("insert into purge_horizons values ('shop', '2026-03-01T00:00:00Z')")
    old = shop.event("refund.succeeded", id_="evt_1", at="2026-02-20T10:00:00Z")
    new = shop.event("refund.succeeded", id_="evt_1", at="2026-03-20T10:00:00Z")

    results = await shop.takes(old, new)

    assert [Outcome.QUARANTINED, Outcome.APPLIED] == [result.outcome for result in results]
