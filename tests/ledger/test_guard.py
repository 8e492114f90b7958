"""What a delivered event comes to: one story for each cell of the webhook's row."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger.event import Change, Outcome
from tests.ledger.shop import CAPTURE, LIST, RECEIPT, SHOP, Shop

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop(engine: AsyncEngine) -> Shop:
    return await Shop.open(engine)


async def effects(shop: Shop) -> list[str]:
    return [effect for effect, state, _ in await shop.calls() if state == "pending"]


async def test_a_newer_webhook_is_applied(shop: Shop) -> None:
    """An order is created, then paid: state follows, and paying it is charged once."""
    created = await shop.take(shop.event("order.created", 1, status="new", paid=False, amount=5))
    paid = await shop.take(shop.event("order.updated", 2, status="new", paid=True, amount=5))

    assert (Outcome.APPLIED, Change.CREATED) == (created.outcome, created.change)
    assert (Outcome.APPLIED, Change.UPDATED) == (paid.outcome, paid.change)
    assert {"status": "new", "paid": False, "amount": 5} == paid.previous
    order = await shop.order()
    assert order is not None
    assert (2, 2, True) == (order["version"], order["revision"], order["state"]["paid"])
    assert ["capture"] == await effects(shop)


async def test_an_older_webhook_changes_nothing(shop: Shop) -> None:
    """
    v6 is here, v5 comes late: it is claimed and changes no state (P5, C45). Of its facts only
    those count for which the configuration says so.
    """
    await shop.take(shop.event("order.updated", 6, status="sent", paid=False, amount=5))
    before = await shop.order()
    late = shop.event("order.paid", 5, status="new", paid=True, amount=5)

    assert Outcome.STALE == (await shop.take(late)).outcome

    after = await shop.order()
    assert before is not None
    assert after is not None
    assert before["state"] == after["state"]
    assert (before["version"], before["updated_at"]) == (after["version"], after["updated_at"])
    assert "stale" == await shop.outcome(late)
    assert ["receipt"] == await effects(shop)


async def test_a_stale_event_without_facts_leaves_the_row_as_it_was(shop: Shop) -> None:
    """P5: nothing hangs on this type, so that not even the revision moves."""
    await shop.take(shop.event("order.updated", 6, status="sent"))
    before = await shop.order()

    await shop.take(shop.event("order.updated", 5, status="new"))

    assert before == await shop.order()


async def test_the_older_creation_of_a_row_that_was_updated_first(shop: Shop) -> None:
    """C46: v2 comes before v1. The row is there at v2 after each of them."""
    await shop.take(shop.event("order.updated", 2, status="new"))
    created = await shop.take(shop.event("order.created", 1, status="draft"))

    assert Outcome.STALE == created.outcome
    order = await shop.order()
    assert order is not None
    assert (2, "new") == (order["version"], order["state"]["status"])


async def test_versions_are_numbers(shop: Shop) -> None:
    """C48: the counter gains a digit, and the longer one is the newer one."""
    await shop.take(shop.event(version=999_999, status="a"))
    gained = await shop.take(shop.event(version=1_000_000, status="b"))

    assert Outcome.APPLIED == gained.outcome


async def test_the_same_fact_under_two_ids_counts_once(shop: Shop) -> None:
    """C35: evt_1 and evt_2 say the same thing of v7, so there is one set of effects."""
    one = shop.event("order.paid", 7, status="new", paid=True, amount=5)
    other = shop.event("order.paid", 7, status="new", paid=True, amount=5)

    assert Outcome.APPLIED == (await shop.take(one)).outcome
    assert Outcome.STALE == (await shop.take(other)).outcome
    assert ["capture", "note", "receipt"] == sorted(await effects(shop))


async def test_the_same_fact_twice_in_one_batch_counts_once(shop: Shop) -> None:
    """C35, and both come in the same breath."""
    one = shop.event("order.paid", 7, status="new", paid=True, amount=5)
    other = shop.event("order.paid", 7, status="new", paid=True, amount=5)

    results = await shop.takes(one, other)

    assert [Outcome.APPLIED, Outcome.STALE] == [result.outcome for result in results]
    assert ["capture", "note", "receipt"] == sorted(await effects(shop))


async def test_a_repeated_stale_fact_counts_once(shop: Shop) -> None:
    """An event that is too old counts under its first id only, however `if_stale` is set."""
    await shop.take(shop.event(version=9, status="sent"))
    await shop.take(shop.event("order.paid", 5, status="new", paid=True))
    again = await shop.take(shop.event("order.paid", 5, status="new", paid=True))

    assert Outcome.STALE == again.outcome
    assert ["receipt"] == await effects(shop)


async def test_another_fact_about_a_state_that_is_here_already(shop: Shop) -> None:
    """Two types tell of one version: the state was already so, and both facts count."""
    await shop.take(shop.event("order.updated", 7, status="new", paid=True, amount=5))
    paid = await shop.take(shop.event("order.paid", 7, status="new", paid=True, amount=5))

    assert (Outcome.APPLIED, None) == (paid.outcome, paid.change)
    assert ["capture", "note", "receipt"] == sorted(await effects(shop))
    order = await shop.order()
    assert order is not None
    assert 2 == order["revision"]  # its calls come after the first event's


async def test_a_late_webhook_counts_its_facts_and_no_change(shop: Shop) -> None:
    """
    C119: the reconciler found v7 first and charged; evt_7 turns up. Nothing is charged again, the
    facts that only the event could tell count, and the correction knows what it stood in for.
    """
    await shop.take(shop.listed(7, status="new", paid=True, amount=5))
    late = await shop.take(shop.event("order.paid", 7, status="new", paid=True, amount=5))

    assert Outcome.LATE == late.outcome
    assert ["capture", "note", "receipt"] == sorted(await effects(shop))
    (correction,) = await shop.rows("select * from corrections")
    assert correction["late_event_at"] is not None
    assert [] == await shop.requested()


async def test_a_late_webhook_that_says_something_else_leaves_the_state_alone(shop: Shop) -> None:
    """The correction said otherwise about v7: the state stays, and a read will tell."""
    await shop.take(shop.listed(7, status="new", paid=True, amount=5))
    late = await shop.take(shop.event("order.paid", 7, status="other", paid=True, amount=5))

    assert Outcome.LATE == late.outcome
    order = await shop.order()
    assert order is not None
    assert "new" == order["state"]["status"]
    assert ["ord_42"] == await shop.requested()


async def test_the_same_late_fact_twice_counts_once(shop: Shop) -> None:
    """evt_7 and evt_7b both come after the correction (model B5)."""
    await shop.take(shop.listed(7, status="new", paid=True, amount=5))
    await shop.take(shop.event("order.paid", 7, status="new", paid=True, amount=5))
    again = await shop.take(shop.event("order.paid", 7, status="new", paid=True, amount=5))

    assert Outcome.STALE == again.outcome
    assert ["capture", "note", "receipt"] == sorted(await effects(shop))


@pytest.mark.parametrize("first", ["A", "B"])
async def test_a_tie_keeps_the_first_and_asks(shop: Shop, first: str) -> None:
    """C47: two states at v100. In either order the first stays, facts count, a read decides."""
    second = {"A": "B", "B": "A"}[first]
    await shop.take(shop.event("order.updated", 100, status=first))
    tied = await shop.take(shop.event("order.paid", 100, status=second, paid=True))

    assert Outcome.TIED == tied.outcome
    order = await shop.order()
    assert order is not None
    assert first == order["state"]["status"]
    assert ["note", "receipt"] == sorted(await effects(shop))
    assert ["ord_42"] == await shop.requested()


async def test_a_tie_without_a_get_asks_nobody(engine: AsyncEngine) -> None:
    """There is nothing to ask: the tie is recorded, and that is all."""
    shop = await Shop.open(engine, SHOP + LIST + CAPTURE + RECEIPT)
    await shop.take(shop.event(version=100, status="A"))

    assert Outcome.TIED == (await shop.take(shop.event(version=100, status="B"))).outcome
    assert [] == await shop.requested()


async def test_amounts_are_equal_as_numbers(shop: Shop) -> None:
    """12.30 is 12.3: the same fact in other digits is no tie."""
    one = shop.event("order.updated", 7, status="new", amount=0)
    body = one.raw.replace(b'"amount": 0', b'"amount": 12.30')
    assert one.observation is not None
    await shop.take(await redelivered(shop, body, "evt_a"))
    again = await shop.take(
        await redelivered(shop, body.replace(b"12.30", b"12.3"), "evt_b", type_=b"order.paid")
    )

    assert Outcome.APPLIED == again.outcome


async def redelivered(shop: Shop, raw: bytes, id_: str, *, type_: bytes = b"order.updated"):  # type: ignore[no-untyped-def]
    from reconciler.receiver.envelope import read_delivery

    raw = raw.replace(b"evt_1", id_.encode()).replace(b"order.updated", type_)
    (event,) = read_delivery(shop.contracts["shop"], raw, {}).events
    return event
