"""Partial state, states as a whole, and kinds whose sender has no versions."""

from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger.event import Change, Outcome
from reconciler.ledger.versions import from_datetime
from tests.ledger.shop import CAPTURE, GET, LIST, SHOP, Shop

pytestmark = pytest.mark.anyio

OBSERVED = SHOP.replace('version = "version"\n', 'version = { kind = "observed" }\n')
OBSERVED_CAPTURE = CAPTURE + 'idempotency_key = "capture:{{ key }}"\n'


async def state(shop: Shop) -> object:
    order = await shop.order()
    assert order is not None
    return order["state"]


async def test_what_a_newer_state_lacks_is_kept(engine: AsyncEngine) -> None:
    """v6 does not speak of `amount`: ours stays, and a read is asked for. Null is null."""
    shop = await Shop.open(engine)
    await shop.take(shop.event(version=5, status="new", paid=False, amount=5))
    result = await shop.take(shop.event(version=6, status=None, paid=True))

    assert Outcome.APPLIED == result.outcome
    assert {"status": None, "paid": True, "amount": 5} == await state(shop)
    assert ["ord_42"] == await shop.requested()
    (entry,) = await shop.rows("select convert_from(body, 'utf8') as body from outbox")
    assert '"amount":5' in entry["body"].replace(" ", "")


@pytest.mark.parametrize("path", ["webhook", "listing"])
async def test_every_path_asks_for_what_it_lacks(engine: AsyncEngine, path: str) -> None:
    """Also the first state of all: a read fills in what nobody has said yet."""
    shop = await Shop.open(engine)
    event = shop.event(version=5, status="new") if path == "webhook" else shop.listed(5, status="n")
    await shop.take(event)
    assert ["ord_42"] == await shop.requested()

    read = shop.read(5, started=await shop.now(), status="new", paid=False, amount=9)
    result = await shop.take(read)

    assert (Outcome.APPLIED, Change.UPDATED) == (result.outcome, result.change)
    assert {"status": "new", "paid": False, "amount": 9} == await state(shop)
    assert [] == await shop.requested()


async def test_a_read_that_lacks_a_field_does_not_ask_again(engine: AsyncEngine) -> None:
    """The `get` does not have it either: asking for ever would bring nothing."""
    shop = await Shop.open(engine)
    await shop.take(shop.read(5, started=await shop.now(), status="new"))

    assert [] == await shop.requested()


async def test_nothing_is_asked_where_nobody_answers(engine: AsyncEngine) -> None:
    shop = await Shop.open(engine, SHOP + LIST + CAPTURE)
    await shop.take(shop.event(version=5, status="new"))

    assert [] == await shop.requested()


async def test_a_whole_object_is_compared_as_a_whole(engine: AsyncEngine) -> None:
    """Without `fields` all of it is the state, and a member more is other content."""
    config = SHOP.replace('fields = { status = "status", paid = "paid", amount = "amount" }\n', "")
    shop = await Shop.open(engine, config + LIST + GET + CAPTURE)
    await shop.take(shop.event(version=5, status="new"))

    assert Outcome.TIED == (await shop.take(shop.event(version=5, status="new", x=1))).outcome
    assert Outcome.STALE == (await shop.take(shop.listed(5, status="new", extra="e"))).outcome


async def test_an_observed_kind_goes_by_when_it_was_read(engine: AsyncEngine) -> None:
    """The version is the start of the read in nanoseconds; what is equal writes nothing (A6)."""
    shop = await Shop.open(engine, OBSERVED + LIST + GET + OBSERVED_CAPTURE)
    started = await shop.now()
    first = await shop.take(shop.listed(None, started=started, status="new", paid=False, amount=1))

    assert (Outcome.APPLIED, Change.CREATED) == (first.outcome, first.change)
    before = await shop.order()
    assert before is not None
    assert from_datetime(started) == before["version"]

    again = await shop.take(
        shop.listed(None, started=await shop.now(), status="new", paid=False, amount=1)
    )

    assert Outcome.STALE == again.outcome
    assert before == await shop.order()
    assert 1 == len(await shop.rows("select * from corrections"))

    paid = await shop.take(
        shop.read(None, started=await shop.now(), status="new", paid=True, amount=1)
    )
    assert (Outcome.APPLIED, Change.UPDATED) == (paid.outcome, paid.change)
    assert 1 == await shop.charges()


async def test_of_two_overlapping_reads_the_stored_one_stays(engine: AsyncEngine) -> None:
    """
    A6: F1 starts, F2 starts and reads `unpaid`, the order is paid, F1 reads `paid` and is
    stored, F2 comes last. It started before F1 had ended, so it writes nothing, another read is
    asked for, and nothing is charged twice.
    """
    shop = await Shop.open(engine, OBSERVED + LIST + GET + OBSERVED_CAPTURE)
    await shop.take(shop.read(None, started=await shop.now(), status="n", paid=False, amount=1))
    f1, f2 = await shop.now(), await shop.now()

    await shop.take(shop.read(None, started=f1, status="n", paid=True, amount=1))
    second = await shop.take(shop.read(None, started=f2, status="n", paid=False, amount=1))

    assert Outcome.DEFERRED == second.outcome
    assert {"status": "n", "paid": True, "amount": 1} == await state(shop)
    assert ["ord_42"] == await shop.requested()

    third = await shop.take(
        shop.read(None, started=await shop.now(), status="n", paid=True, amount=1)
    )
    assert Outcome.STALE == third.outcome
    assert [] == await shop.requested()
    assert 1 == await shop.charges()


async def test_a_clock_set_back_does_not_guard_for_ever(engine: AsyncEngine) -> None:
    """D: a read stored in the future must not keep the present out; versions grow all the same."""
    shop = await Shop.open(engine, OBSERVED + LIST + GET + OBSERVED_CAPTURE)
    future = await shop.now() + timedelta(hours=1)
    await shop.take(shop.read(None, started=future, status="a"))
    await shop.do("update resources set read_at = now() + interval '1 hour'")

    result = await shop.take(shop.read(None, started=await shop.now(), status="b"))

    assert Outcome.APPLIED == result.outcome
    order = await shop.order()
    assert order is not None
    assert from_datetime(future) + 1 == order["version"]


async def test_a_webhook_about_an_observed_kind_is_deferred(engine: AsyncEngine) -> None:
    """It has no version: receive time is never one."""
    shop = await Shop.open(engine, OBSERVED + LIST + GET + OBSERVED_CAPTURE)
    result = await shop.take(shop.event(status="new"))

    assert Outcome.DEFERRED == result.outcome
    assert await shop.order() is None
    assert ["ord_42"] == await shop.requested()


async def test_an_observed_kind_is_deleted_and_comes_back(engine: AsyncEngine) -> None:
    """A 404 keeps the version, only a later read revives, and not the one that began before."""
    shop = await Shop.open(engine, OBSERVED + LIST + GET + OBSERVED_CAPTURE)
    await shop.take(shop.read(None, started=await shop.now(), status="a"))
    early = await shop.now()
    gone = await shop.take(shop.gone(started=await shop.now()))
    late = await shop.take(shop.read(None, started=early, status="a"))
    back = await shop.take(shop.read(None, started=await shop.now(), status="a"))

    assert Change.DELETED == gone.change
    assert Outcome.DEFERRED == late.outcome
    assert Change.REVIVED == back.change
