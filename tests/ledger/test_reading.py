"""What others read of the ledger: comparing a page, and lists for operators."""

from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.ledger import claims, corrections, fetches, quarantine, resources
from reconciler.ledger.drifts import Drift, Found
from reconciler.ledger.event import Event, Observation
from reconciler.transactions import transact
from tests.ledger.shop import GET, LIST, SHOP, Shop

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop(engine: AsyncEngine) -> Shop:
    return await Shop.open(engine)


def seen(*events: Event) -> list[Observation]:
    return [event.observation for event in events if event.observation is not None]


async def compare(shop: Shop, *events: Event) -> list[Drift]:
    async def work(connection: AsyncConnection) -> list[Drift]:
        return await resources.compare(connection, "shop", "order", seen(*events), declared=True)

    return await transact(shop.engine, work)


async def test_a_page_is_compared_in_one_go(shop: Shop) -> None:
    """Each way in which a listed item can stand to our row, and nothing about what is in sync."""
    for key in ("same", "behind", "conflict", "ahead", "abridged"):
        await shop.take(shop.event(version=5, key=key, status="a", paid=False, amount=1))
    for key in ("buried", "dead"):
        await shop.take(shop.event("order.deleted", 5, key=key))

    drifts = await compare(
        shop,
        shop.listed(5, key="same", status="a", paid=False, amount=1),
        shop.listed(6, key="behind", status="a", paid=False, amount=1),
        shop.listed(5, key="conflict", status="b", paid=False, amount=1),
        shop.listed(4, key="ahead", status="b"),
        shop.listed(5, key="abridged", status="a"),
        shop.listed(1, key="missing", status="a"),
        shop.listed(6, key="buried", status="a"),
        shop.listed(5, key="dead", status="a"),
    )

    assert [
        (1, Found.BEHIND),
        (2, Found.CONFLICT),
        (3, Found.AHEAD),
        (5, Found.MISSING),
        (6, Found.BURIED),
    ] == [(drift.n, drift.found) for drift in drifts]
    held = drifts[1].held
    assert held is not None
    assert held.state is not None
    assert "a" == held.state["status"]


async def test_an_item_that_is_listed_twice_is_compared_twice(shop: Shop) -> None:
    await shop.take(shop.event(version=5, status="a"))
    drifts = await compare(shop, shop.listed(6, status="a"), shop.listed(7, status="a"))

    assert [0, 1] == [drift.n for drift in drifts]


async def test_without_versions_contents_are_compared(engine: AsyncEngine) -> None:
    observed = SHOP.replace('version = "version"\n', 'version = { kind = "observed" }\n')
    shop = await Shop.open(engine, observed + LIST + GET)
    await shop.take(shop.listed(None, started=await shop.now(), status="a", paid=True, amount=1))

    same = shop.listed(None, status="a", paid=True, amount=1)
    other = shop.listed(None, status="b", paid=True, amount=1)
    new = shop.listed(None, key="new", status="b")

    assert [(1, Found.BEHIND), (2, Found.MISSING)] == [
        (drift.n, drift.found) for drift in await compare(shop, same, other, new)
    ]


async def test_candidates_for_absence_are_live_and_untouched(shop: Shop) -> None:
    """Rows written before the pass began and not since, in key order, page by page (B7)."""
    for key in ("a", "b", "c", "d"):
        await shop.take(shop.event(version=1, key=key, status="x"))
    await shop.take(shop.event("order.deleted", 2, key="b"))
    began = await shop.now()
    await shop.take(shop.event(version=2, key="c", status="y"))
    await shop.take(shop.event(version=1, key="e", status="x"))

    async def page(connection: AsyncConnection) -> list[list[str]]:
        first = await resources.unseen(connection, "shop", "order", before=began, limit=1)
        rest = await resources.unseen(
            connection, "shop", "order", before=began, after=first[-1], limit=10
        )
        return [first, rest]

    assert [["a"], ["d"]] == await transact(shop.engine, page)
    assert 4 == await transact(
        shop.engine, lambda connection: resources.count_live(connection, "shop", "order")
    )


async def test_lists_go_on_where_they_were(shop: Shop) -> None:
    """Every list turns its pages by the place of the last row, and never shows one twice."""
    for n in range(5):
        await shop.take(shop.listed(1, key=f"ord_{n}", status="x"))
    await shop.take(shop.event("unheard.of"))

    async def work(connection: AsyncConnection) -> None:
        held = await resources.list_resources(connection, sender="shop", limit=2)
        last = held[-1]
        rest = await resources.list_resources(connection, after=(last.sender, last.kind, last.key))
        assert [f"ord_{n}" for n in range(5)] == [row.key for row in (*held, *rest)]

        wanted = await fetches.list_requests(connection, limit=2)
        last = wanted[-1]
        more = await fetches.list_requests(connection, after=(last.sender, last.kind, last.key))
        assert [f"ord_{n}" for n in range(5)] == [row.key for row in (*wanted, *more)]

        made = await corrections.list_corrections(connection, kind="order", limit=2)
        before = await corrections.list_corrections(connection, after=made[-1].id)
        assert [f"ord_{n}" for n in (4, 3, 2, 1, 0)] == [row.key for row in (*made, *before)]

        claimed = await claims.list_claims(connection, outcome="applied", limit=2)
        last = claimed[-1]
        earlier = await claims.list_claims(
            connection, outcome="applied", after=(last.processed_at, last.sender, last.event_id)
        )
        assert [4, 3, 2, 1, 0] == [int((row.key or "")[-1]) for row in (*claimed, *earlier)]
        assert await claims.last_delivery_at(connection, "shop")
        assert await claims.last_delivery_at(connection, "market") is None
        assert await claims.show(connection, "shop", claimed[0].event_id)
        assert await resources.show(connection, "shop", "order", "ord_9") is None

    await transact(shop.engine, work)


async def test_the_quarantine_is_listed_without_its_bodies(shop: Shop) -> None:
    async def work(connection: AsyncConnection) -> None:
        for n in range(3):
            await quarantine.keep(connection, "shop", b"%d" % n, {}, "fault", f"evt_{n}")
        first = await quarantine.list_quarantine(connection, state="open", limit=2)
        rest = await quarantine.list_quarantine(connection, after=first[-1].id)
        assert ["evt_2", "evt_1", "evt_0"] == [row.event_id for row in (*first, *rest)]
        whole = await quarantine.show(connection, first[0].id)
        assert whole is not None
        assert b"2" == bytes(whole.body)
        assert await quarantine.show(connection, UUID(int=0)) is None
        kept = await quarantine.of_event(connection, "shop", "evt_1")
        assert kept is not None
        assert {"shop": 3} == await quarantine.count_open(connection)

    await transact(shop.engine, work)
