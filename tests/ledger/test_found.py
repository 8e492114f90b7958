"""What a listed item and a read come to: one story for each cell of their rows."""

from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger.event import Change, Outcome
from reconciler.ledger.guard import DriftKind
from tests.ledger.shop import CAPTURE, GET, LIST, RECEIPT, SHOP, Shop

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop(engine: AsyncEngine) -> Shop:
    return await Shop.open(engine)


async def test_a_listed_item_that_we_never_had_is_a_correction(shop: Shop) -> None:
    """The webhook was lost. The scan finds the order, and its change fires like any other."""
    result = await shop.take(shop.listed(7, status="new", paid=True, amount=5))

    assert (Outcome.APPLIED, Change.CREATED) == (result.outcome, result.change)
    assert (DriftKind.MISSING, "correction:order:ord_42:7") == (result.drift, result.event.event_id)
    assert 1 == await shop.charges()
    (correction,) = await shop.rows("select * from corrections")
    assert ("missing", None, 7) == (
        correction["drift"],
        correction["old_version"],
        correction["new_version"],
    )
    assert {"path": "paid", "ours": None, "theirs": True} in correction["differences"]
    (claim,) = await shop.rows("select * from processed_events")
    assert ("correction:order:ord_42:7", "order.corrected", "applied") == (
        claim["event_id"],
        claim["event_type"],
        claim["outcome"],
    )


async def test_a_newer_listed_item_is_a_correction_once(shop: Shop) -> None:
    """Two replicas list the same page: the second one finds nothing to do and leaves no claim."""
    await shop.take(shop.event(version=6, status="new", paid=False, amount=5))
    first = await shop.take(shop.listed(7, status="new", paid=True, amount=5))
    second = await shop.take(shop.listed(7, status="new", paid=True, amount=5))

    assert (Outcome.APPLIED, DriftKind.BEHIND) == (first.outcome, first.drift)
    assert (Outcome.STALE, None) == (second.outcome, second.drift)
    assert [{"path": "paid", "ours": False, "theirs": True}] == list(first.differences)
    assert 1 == len(await shop.rows("select * from corrections"))
    assert 2 == len(await shop.rows("select * from processed_events"))
    assert 1 == await shop.charges()


async def test_an_older_listed_item_does_nothing(shop: Shop) -> None:
    """C117: the listing lags behind the webhook. v4 and then v5: no change, no call."""
    await shop.take(shop.event(version=5, status="new", paid=True, amount=5))
    before = await shop.order()

    assert Outcome.STALE == (await shop.take(shop.listed(4, status="old", paid=False))).outcome
    assert Outcome.STALE == (await shop.take(shop.listed(5, status="new", paid=True))).outcome

    assert before == await shop.order()
    assert 1 == await shop.charges()
    assert [] == await shop.requested()


async def test_a_listed_item_of_our_version_that_differs_asks_for_a_read(shop: Shop) -> None:
    """A conflict: a listing never writes at an equal version, a read will."""
    await shop.take(shop.event(version=5, status="new"))
    before = await shop.order()

    result = await shop.take(shop.listed(5, status="other"))

    assert Outcome.TIED == result.outcome
    assert before == await shop.order()
    assert ["ord_42"] == await shop.requested()
    assert [] == await shop.rows("select * from corrections")


async def test_a_listing_that_abridges_is_in_sync(shop: Shop) -> None:
    """Only a field that both declare can differ."""
    await shop.take(shop.event(version=5, status="new", paid=True, amount=5))

    assert Outcome.STALE == (await shop.take(shop.listed(5, status="new"))).outcome
    assert [] == await shop.requested()


async def test_a_read_after_ours_replaces_an_equal_version(shop: Shop) -> None:
    """A1: the tie of two states at v100 ends at the sender's present one, with its change."""
    await shop.take(shop.event(version=100, status="new", paid=False, amount=5))
    await shop.take(shop.event(version=100, status="new", paid=True, amount=5))
    started = await shop.now()

    result = await shop.take(shop.read(100, started=started, status="new", paid=True, amount=5))

    assert (Outcome.APPLIED, Change.UPDATED) == (result.outcome, result.change)
    assert DriftKind.CONFLICT == result.drift
    assert 1 == await shop.charges()
    assert [] == await shop.requested()


async def test_a_tie_is_resolved_there_and_back_again(shop: Shop) -> None:
    """A1: A, B and A again at one version. No claim of an earlier repair is in the way."""
    await shop.take(shop.event(version=100, status="A"))
    for status in ("B", "A", "B"):
        result = await shop.take(shop.read(100, started=await shop.now(), status=status))

        assert Outcome.APPLIED == result.outcome
        order = await shop.order()
        assert order is not None
        assert (100, status) == (order["version"], order["state"]["status"])


async def test_a_read_after_ours_that_says_the_same_closes_the_request(shop: Shop) -> None:
    """In sync: nothing is written but that the request is answered."""
    await shop.take(shop.event(version=100, status="A"))
    await shop.take(shop.event(version=100, status="B"))
    before = await shop.order()

    result = await shop.take(shop.read(100, started=await shop.now(), status="A"))

    assert Outcome.STALE == result.outcome
    assert before == await shop.order()
    assert [] == await shop.requested()
    assert [] == await shop.rows("select * from corrections")


async def test_a_read_that_started_before_ours_does_nothing_at_an_equal_version(
    shop: Shop,
) -> None:
    """It may have read the state before: neither does it write, nor is the request answered."""
    started = await shop.now()
    await shop.take(shop.event(version=100, status="A"))
    await shop.take(shop.event(version=100, status="B"))

    result = await shop.take(shop.read(100, started=started, status="B"))

    assert Outcome.STALE == result.outcome
    order = await shop.order()
    assert order is not None
    assert "A" == order["state"]["status"]
    assert ["ord_42"] == await shop.requested()


async def test_a_newer_state_from_a_read_that_started_before_ours(shop: Shop) -> None:
    """It is newer by its version, whenever it began; but what was asked since stays asked."""
    started = await shop.now()
    await shop.take(shop.event(version=100, status="A"))
    await shop.take(shop.event(version=100, status="B"))

    result = await shop.take(shop.read(101, started=started, status="C"))

    assert (Outcome.APPLIED, DriftKind.BEHIND) == (result.outcome, result.drift)
    assert ["ord_42"] == await shop.requested()


async def test_a_newer_state_from_a_read_after_ours_closes_the_request(shop: Shop) -> None:
    """The usual way: a read is asked for, made, applied and done with."""
    await shop.take(shop.event(version=100, status="A"))
    await shop.take(shop.event(version=100, status="B"))

    result = await shop.take(shop.read(101, started=await shop.now(), status="C"))

    assert Outcome.APPLIED == result.outcome
    assert [] == await shop.requested()


async def test_an_older_state_from_a_read_changes_nothing(shop: Shop) -> None:
    """A `get` may lag too. What named a version is not answered by an older one."""
    await shop.take(shop.event(version=100, status="A"))
    await shop.take(shop.event(version=100, status="B"))
    before = await shop.order()

    result = await shop.take(shop.read(99, started=await shop.now(), status="old"))

    assert Outcome.STALE == result.outcome
    assert before == await shop.order()
    assert ["ord_42"] == await shop.requested()
    (request,) = await shop.rows("select * from fetch_requests")
    assert request["last_error"]


async def test_a_get_that_may_lag_must_start_later(engine: AsyncEngine) -> None:
    """A1 (c): within the sender's lag an equal version is not believed, however it differs."""
    config = SHOP.replace("[senders.shop.signature]", 'lag = "1h"\n[senders.shop.signature]', 1)
    shop = await Shop.open(engine, config + LIST + GET + CAPTURE + RECEIPT)
    await shop.take(shop.event(version=100, status="paid", paid=True, amount=5))

    lagging = shop.read(100, started=await shop.now(), status="new", paid=False, amount=5)
    await shop.take(lagging)
    order = await shop.order()
    assert order is not None
    assert "paid" == order["state"]["status"]

    later = await shop.now() + timedelta(hours=2)
    await shop.take(shop.read(100, started=later, status="new", paid=False, amount=5))
    order = await shop.order()
    assert order is not None
    assert "new" == order["state"]["status"]


async def test_two_items_of_one_resource_on_one_page(shop: Shop) -> None:
    """C56: the page drifted and shows the order at v3 and at v4, in either order: v4, one call."""
    for page in ((3, 4), (4, 3)):
        key = f"ord_{page[0]}"
        await shop.takes(
            *(
                shop.listed(version, key=key, status="new", paid=True, amount=version)
                for version in page
            ),
            shop.listed(1, key=f"{key}_beside", status="new", paid=False),
        )

        order = await shop.order(key)
        assert order is not None
        assert 4 == order["version"]
        beside = await shop.order(f"{key}_beside")
        assert beside is not None
    assert 2 == await shop.charges()


async def test_what_a_person_asked_for_is_found_out_like_anything_else(shop: Shop) -> None:
    """The read of a person's trigger has its run in the correction."""
    result = await shop.take(
        shop.read(7, started=await shop.now(), by_person=True, status="new", paid=True, amount=5)
    )

    assert Outcome.APPLIED == result.outcome
    assert result.event.event_id.startswith("read:order:ord_42:7:")


async def test_an_id_that_is_taken_does_not_stop_a_correction(shop: Shop) -> None:
    """An operator removed the row by hand; the claim of its correction is still there."""
    await shop.take(shop.listed(7, status="new"))
    await shop.do("delete from resources")

    again = await shop.take(shop.listed(7, status="new"))

    assert Outcome.APPLIED == again.outcome
    assert again.event.event_id.startswith("correction:order:ord_42:7:")
