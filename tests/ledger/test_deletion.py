"""Deleted things stay deleted until a read says otherwise, and only an answer deletes."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger.event import Change, Outcome
from reconciler.ledger.guard import DriftKind
from tests.ledger.shop import CAPTURE, GET, LIST, RECEIPT, SHOP, Shop

pytestmark = pytest.mark.anyio

WELCOME = """
[effects.farewell]
on_change = ["shop:order"]
when = "change == 'deleted'"
destination = "payments"
request = "POST /v1/farewells"
json = { order = "{{ key }}", was = "{{ previous.status }}" }
"""


@pytest.fixture
async def shop(engine: AsyncEngine) -> Shop:
    return await Shop.open(engine, SHOP + LIST + GET + CAPTURE + RECEIPT + WELCOME)


@pytest.fixture
async def blind(engine: AsyncEngine) -> Shop:
    """The same shop, but single orders cannot be read."""
    return await Shop.open(engine, SHOP + LIST + CAPTURE + RECEIPT)


async def held(shop: Shop) -> tuple[int, bool, object]:
    order = await shop.order()
    assert order is not None
    return order["version"], order["deleted"], (order["state"] or {}).get("status")


async def test_a_late_update_does_not_raise_the_dead(shop: Shop) -> None:
    """C54: v4, deleted at v5, v4 again under a new id. It stays deleted, at v5."""
    await shop.take(shop.event(version=4, status="new"))
    deleted = await shop.take(shop.event("order.deleted", 5, status="bin"))
    again = await shop.take(shop.event(version=4, status="new", amount=1))

    assert (Outcome.APPLIED, Change.DELETED) == (deleted.outcome, deleted.change)
    assert Outcome.STALE == again.outcome
    assert (5, True, "new") == await held(shop)
    assert ["farewell"] == [effect for effect, _, _ in await shop.calls()]


async def test_deletion_of_what_was_never_seen_is_remembered(shop: Shop) -> None:
    """The deletion overtakes everything: what comes after it is older and stays out."""
    await shop.take(shop.event("order.deleted", 5))
    older = await shop.take(shop.event(version=4, status="new", paid=True))

    assert Outcome.STALE == older.outcome
    assert (5, True, None) == await held(shop)
    assert 0 == await shop.charges()


async def test_a_newer_webhook_over_a_tombstone_waits_for_a_read(shop: Shop) -> None:
    """Deleted at v5, and v6 says that it lives: only a read revives it, and only then."""
    await shop.take(shop.event(version=4, status="new", paid=False))
    await shop.take(shop.event("order.deleted", 5))
    event = shop.event("order.paid", 6, status="back", paid=True, amount=5)

    assert Outcome.DEFERRED == (await shop.take(event)).outcome
    assert (5, True, "new") == await held(shop)
    assert ["ord_42"] == await shop.requested()
    assert "deferred" == await shop.outcome(event)

    read = shop.read(6, started=await shop.now(), status="back", paid=True, amount=5)
    result = await shop.take(read)

    assert (Outcome.APPLIED, Change.REVIVED) == (result.outcome, result.change)
    assert {"status": "new", "paid": False} == result.previous
    assert (6, False, "back") == await held(shop)
    assert "applied" == await shop.outcome(event)
    assert [] == await shop.requested()
    assert ["capture", "note", "receipt"] == sorted(
        effect for effect, _, _ in await shop.calls() if effect != "farewell"
    )


async def test_without_a_get_a_newer_webhook_revives_by_itself(blind: Shop) -> None:
    """There is nobody to ask, so that the newer version has to do."""
    await blind.take(blind.event(version=4, status="new"))
    await blind.take(blind.event("order.deleted", 5))
    result = await blind.take(blind.event(version=6, status="back"))

    assert (Outcome.APPLIED, Change.REVIVED) == (result.outcome, result.change)
    assert (6, False, "back") == await held(blind)


async def test_a_newer_listed_item_over_a_tombstone_asks_for_a_read(shop: Shop) -> None:
    """A listing may lag behind a deletion by more than a version."""
    await shop.take(shop.event("order.deleted", 5))
    result = await shop.take(shop.listed(6, status="back"))

    assert Outcome.DEFERRED == result.outcome
    assert (5, True, None) == await held(shop)
    assert ["ord_42"] == await shop.requested()


async def test_a_newer_listed_item_revives_where_there_is_no_get(blind: Shop) -> None:
    await blind.take(blind.event("order.deleted", 5))
    result = await blind.take(blind.listed(6, status="back"))

    assert (Outcome.APPLIED, Change.REVIVED) == (result.outcome, result.change)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_listed_item_that_is_not_newer_leaves_a_tombstone(shop: Shop, version: int) -> None:
    await shop.take(shop.event("order.deleted", 5))
    result = await shop.take(shop.listed(version, status="back"))

    assert Outcome.STALE == result.outcome
    assert (5, True, None) == await held(shop)
    assert [] == await shop.requested()


async def test_a_second_deletion_moves_the_version_and_changes_nothing(shop: Shop) -> None:
    """Deleted at v5 and at v8: what is older than v8 stays out from now on."""
    await shop.take(shop.event(version=4, status="new"))
    await shop.take(shop.event("order.deleted", 5))
    again = await shop.take(shop.event("order.deleted", 8))

    assert (Outcome.APPLIED, None) == (again.outcome, again.change)
    assert (8, True, "new") == await held(shop)
    assert Outcome.STALE == (await shop.take(shop.event(version=7, status="x"))).outcome
    assert ["farewell"] == [effect for effect, _, _ in await shop.calls()]


async def test_a_deletion_at_the_version_of_a_live_row_is_a_tie(shop: Shop) -> None:
    """Whether the deletion or the update came last only a read can tell."""
    await shop.take(shop.event(version=5, status="new"))
    tied = await shop.take(shop.event("order.deleted", 5))

    assert Outcome.TIED == tied.outcome
    assert (5, False, "new") == await held(shop)
    assert ["ord_42"] == await shop.requested()

    gone = await shop.take(shop.gone(started=await shop.now()))

    assert (Outcome.APPLIED, Change.DELETED) == (gone.outcome, gone.change)
    assert (5, True, "new") == await held(shop)


@pytest.mark.parametrize("get", ["", GET.replace('absent = "deleted"', "")], ids=["none", "unsaid"])
async def test_a_deletion_at_our_version_that_no_read_could_confirm(
    engine: AsyncEngine, get: str
) -> None:
    """
    No `get`, or one whose 404 says nothing: the sender's own word is all there will ever be. Where
    there is a `get`, it is asked all the same, and whoever it finds alive is revived.
    """
    shop = await Shop.open(engine, SHOP + LIST + get + CAPTURE)
    await shop.take(shop.event(version=5, status="new"))
    deleted = await shop.take(shop.event("order.deleted", 5))

    assert (Outcome.APPLIED, Change.DELETED) == (deleted.outcome, deleted.change)
    assert (5, True, "new") == await held(shop)
    if get:
        assert ["ord_42"] == await shop.requested()
        back = await shop.take(shop.read(5, started=await shop.now(), status="new"))
        assert Change.REVIVED == back.change


async def test_the_same_deletion_twice(shop: Shop) -> None:
    """Two subscriptions tell of one deletion (C35)."""
    await shop.take(shop.event(version=4, status="new"))
    await shop.take(shop.event("order.deleted", 5))
    again = await shop.take(shop.event("order.deleted", 5))

    assert Outcome.STALE == again.outcome
    assert ["farewell"] == [effect for effect, _, _ in await shop.calls()]


async def test_a_confirmed_absence_is_a_tombstone_at_our_version(shop: Shop) -> None:
    """
    A2, P14: the deletion's webhook was lost. A 404 has no version of its own, so the row keeps
    the one it has, and the correction says `absent`.
    """
    await shop.take(shop.event(version=5, status="new"))
    gone = await shop.take(shop.gone(started=await shop.now()))

    assert (Outcome.APPLIED, Change.DELETED) == (gone.outcome, gone.change)
    assert (5, True, "new") == await held(shop)
    (correction,) = await shop.rows("select * from corrections")
    assert ("absent", 5, 5) == (
        correction["drift"],
        correction["old_version"],
        correction["new_version"],
    )
    assert ["farewell"] == [effect for effect, _, _ in await shop.calls()]
    (entry,) = await shop.rows("select * from outbox")
    assert "shop:order:ord_42:5:farewell:deleted" == entry["idempotency_key"]


async def test_a_404_from_before_our_last_write_deletes_nothing(shop: Shop) -> None:
    """P14: the row was written since that read began, so it says nothing about it."""
    started = await shop.now()
    await shop.take(shop.event(version=5, status="new"))

    assert Outcome.STALE == (await shop.take(shop.gone(started=started))).outcome
    assert (5, False, "new") == await held(shop)


async def test_a_404_about_nothing_leaves_nothing(shop: Shop) -> None:
    """No row, no claim, no correction: not even the placeholder that was locked."""
    gone = await shop.take(shop.gone(started=await shop.now()))

    assert Outcome.STALE == gone.outcome
    assert await shop.order() is None
    assert [] == await shop.rows("select * from processed_events")
    assert [] == await shop.rows("select * from corrections")


async def test_a_404_that_was_a_hiccup_is_undone_by_the_next_read(shop: Shop) -> None:
    """A2: it comes back at the version that it had, and a later read revives it there."""
    await shop.take(shop.event(version=5, status="new", paid=True, amount=5))
    await shop.take(shop.gone(started=await shop.now()))
    back = shop.read(5, started=await shop.now(), status="new", paid=True, amount=5)
    result = await shop.take(back)

    assert (Outcome.APPLIED, Change.REVIVED) == (result.outcome, result.change)
    assert DriftKind.CONFLICT == result.drift
    assert (5, False, "new") == await held(shop)
    assert 1 == await shop.charges()  # it was paid before: nothing has become true


async def test_an_earlier_read_does_not_revive_at_an_equal_version(shop: Shop) -> None:
    started = await shop.now()
    await shop.take(shop.event(version=5, status="new"))
    await shop.take(shop.gone(started=await shop.now()))

    assert Outcome.STALE == (await shop.take(shop.read(5, started=started, status="new"))).outcome
    assert (5, True, "new") == await held(shop)
