"""One resource's changes come in any order, over any path, tied, twice, or after its end."""

import asyncio
from collections.abc import AsyncIterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.database import engine_for
from reconciler.polling.report import End
from tests.cases.house import SHOP, House, a_house, item, order
from tests.cases.listing import Paged, at, listed
from tests.polling.server import Reply
from tests.polling.test_fetching import reader_of
from tests.polling.world import a_world

pytestmark = pytest.mark.anyio

DELETING = SHOP.replace(
    'on = ["order.*"]\n', 'on = ["order.*"]\ndeleted_on = ["order.deleted"]\n'
).replace('key = "id"\n\n[destinations', 'key = "id"\nabsent = "deleted"\n\n[destinations')
LIFE: list[dict[str, Any]] = [
    {"version": 1, "type_": "order.created", "paid": False, "amount": 5},
    {"version": 2, "paid": False, "amount": 7},
    {"version": 3, "paid": True, "amount": 7},
    {"version": 5, "paid": True, "amount": 7, "status": "shipped"},
]


async def takes(house: House, way: str, event: dict[str, Any], id_: str) -> None:
    """Let the house learn of one change by *way*."""
    about = {name: value for name, value in event.items() if name != "type_"}
    match way:
        case "webhook":
            assert 200 == (await house.deliver(order(id_, **event))).status_code
        case "listing":
            house.listed = [item(**about)]
            assert not (await house.reconcile(full=True)).failed
        case _:
            house.got = {"ord_42": item(**about)}
            assert not (await house.reconcile("ord_42")).failed


@pytest.mark.parametrize("ways", [("webhook",), ("listing",), ("read",),
                                  ("webhook", "listing", "read"), ("read", "webhook")])  # fmt: skip
async def test_every_order_ends_the_same(
    engine: AsyncEngine, tmp_path: Path, ways: tuple[str, ...]
) -> None:
    """
    Created, changed, paid, shipped: in each of their orders the row stands at the newest that was
    told, after every step, and the order was charged once, when it was first seen to be paid.
    """
    async with a_house(engine, tmp_path) as house:
        every = 1 if ways == ("webhook",) else 4
        for number, events in enumerate(list(permutations(LIFE))[::every]):
            newest: dict[str, Any] = {}
            for step, event in enumerate(events):
                await takes(house, ways[step % len(ways)], event, f"e{number}-{step}")
                newest = max(newest, event, key=lambda one: one.get("version", 0))
                (row,) = await house.rows("select version, state->>'amount' from resources")
                assert (newest["version"], str(newest["amount"])) == row
            paid = next(one["version"] for one in climb(events) if one["paid"])
            calls = await house.rows("select idempotency_key from outbox")
            assert [(f"shop:order:ord_42:{paid}:capture",)] == calls
            for table in ("resources", "outbox", "effect_keys", "processed_events"):
                await house.run_sql(f"delete from {table}")  # noqa: S608
            house.listed, house.got = [], {}


def climb(events: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """Those that were newer than all before them."""
    found: list[dict[str, Any]] = []
    for event in events:
        if not found or event["version"] > found[-1]["version"]:
            found.append(event)
    return found


@pytest.mark.parametrize("way", ["webhook", "listing", "read"])
async def test_what_is_deleted_stays_so_whoever_tells_what_was_before(
    engine: AsyncEngine, tmp_path: Path, way: str
) -> None:
    """
    Deleted at 5. What was true at 4 comes again under new ids, alone and in a batch, by a listing
    and by a `get` that lag. And where the deletion is all that we ever heard, it is the same.
    """
    async with a_house(engine, tmp_path, configuration=DELETING) as house:
        old = {"version": 4, "paid": True, "amount": 5}
        await house.outcome(order("e4", version=4, amount=5))
        for key in ("ord_42", "never_seen"):
            event = order(f"gone_{key}", key, version=5, type_="order.deleted")
            assert "applied" == await house.outcome(event)
            for number in range(3):
                if way == "webhook":
                    late = order(f"late_{key}_{number}", key, **old)
                    assert "stale" == await house.outcome(late)
                elif way == "listing":
                    house.listed = [item(key, **old)]
                    assert not (await house.reconcile(full=True)).failed
                else:
                    house.got = {key: item(key, **old)}
                    assert "ahead" == (await house.reconcile(key)).items[0]["result"]
        rows = await house.rows("select key, version, deleted from resources order by key")
        assert [("never_seen", 5, True), ("ord_42", 5, True)] == rows
        assert [] == await house.rows("select 1 from outbox")
        assert [] == await house.rows("select 1 from corrections")


async def test_only_the_sender_itself_revives(engine: AsyncEngine, tmp_path: Path) -> None:
    """
    Something newer than the deletion is asked about: 404 and it stays deleted, and its answer and
    it lives. The charge for it then is one of its own.
    """
    async with a_house(engine, tmp_path, configuration=DELETING) as house:
        await house.outcome(order("e5", version=5, type_="order.deleted"))
        newer = {"version": 6, "paid": True, "amount": 5}
        assert "deferred" == await house.outcome(order("e6", **newer))
        assert "gone" == (await house.reconcile("ord_42")).items[0]["result"]
        assert [(5, True)] == await house.rows("select version, deleted from resources")
        house.listed = [item(**newer)]
        house.got = {"ord_42": item(**newer)}
        assert not (await house.reconcile(full=True)).failed
        assert [(6, False)] == await house.rows("select version, deleted from resources")
        keys = await house.rows("select idempotency_key from outbox")
        assert [("shop:order:ord_42:6:capture:revived",)] == keys


TIES = ("first", "second", "first again", "listing", "second again")


@pytest.mark.parametrize("truth", ["first", "second"])
@pytest.mark.parametrize("steps", [TIES, TIES[::-1], ("first", "second", "first again"),
                                   ("second", "first", "second again"),
                                   ("second", "listing", "first"),
                                   ("listing", "first", "second", "first again")])  # fmt: skip
async def test_of_two_states_at_one_version_the_senders_own_answer_decides(
    engine: AsyncEngine, truth: str, steps: tuple[str, ...]
) -> None:
    """
    Two changes within one second, told in each order, repeated under old and new ids, and listed:
    once the sender is asked we hold what it holds, and stay with it. It is charged once at most.
    """
    shop = Paged()
    async with a_world(engine, shop=shop, listed=listed("cursor")) as world:
        states = {"first": shop.put("ord_1", version=100, status="open", paid=False),
                  "second": shop.put("ord_1", version=100, status="paid", paid=True)}  # fmt: skip
        shop.orders["ord_1"] = states[truth]
        for number, step in enumerate(steps * 2):
            name = step.split()[0]
            if name == "listing":
                await world.scan()
            else:
                id_ = f"new_{number}" if "again" in step else f"evt_{name}"
                await world.webhook(states[name], id_=id_)
        await settled(world)
        row = "select concat(version, ' ', state->>'status') from reconciler.resources"
        assert f"100 {states[truth]['status']}" == await world.value(row)
        written = await world.value("select revision from reconciler.resources")
        for name in ("second", "first", "second"):
            await world.webhook(states[name], id_=f"after_{name}_{written}")
            await world.scan()
            await settled(world)
        assert states[truth]["status"] == await world.value(
            "select state->>'status' from reconciler.resources"
        )
        assert len(await world.calls()) <= 1
        if truth == "second":
            assert ["ord_1"] == await world.calls()


async def settled(world: Any) -> None:
    """Make the reads that are asked for, until none is."""
    async with asyncio.timeout(10):
        while await world.value("select count(*) from reconciler.fetch_requests"):
            await world.run_sql("update reconciler.fetch_requests set due_at = now()")
            await reader_of(world).read_due()


def listed_order(key: str, version: int, **more: Any) -> dict[str, Any]:
    stamp = at(600).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"id": key, "version": version, "status": "open", "paid": version == 4, "amount": 5,
            "updated_at": stamp, "created_at": stamp, **more}  # fmt: skip


@pytest.mark.parametrize("versions", [(3, 4), (4, 3), (4, 4), (4, 3, 4)])
@pytest.mark.parametrize("spread", ["one page", "two pages", "beside a poisoned one"])
async def test_one_key_several_times_in_a_listing(
    engine: AsyncEngine, versions: tuple[int, ...], spread: str
) -> None:
    """It moved while the pages were made: the newest is held, once, and so are its neighbours."""
    items: list[Any] = []
    for number, version in enumerate(versions):
        items += [listed_order("ord_1", version), listed_order(f"other_{number}", 1)]
    if spread == "beside a poisoned one":
        unstorable = listed_order("ord_1", 9, status="\0")
        items = [unstorable, *items, {**listed_order("ord_1", 1), "version": True}]
    size = 2 if spread == "two pages" else len(items)
    pages = [items[start : start + size] for start in range(0, len(items), size)]
    shop = Paged()
    async with a_world(engine, shop=shop, listed=listed("cursor")) as world:
        shop.lies = [
            Reply(json={"data": page, "next": str(n) if n < len(pages) else None})
            for n, page in enumerate(pages, start=1)
        ]
        report = await world.scan()
        assert End.COMPLETED == report.end
        others = {f"other_{number}": 1 for number in range(len(versions))}
        assert {"ord_1": 4, **others} == await world.held()
        assert ["ord_1"] == await world.calls()


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = engine_for(database_url, pool_size=8)
    yield engine
    await engine.dispose()


async def test_pages_and_batches_in_opposite_orders(
    engine: AsyncEngine, second: AsyncEngine
) -> None:
    """
    Two replicas read the same twenty orders, from the oldest and from the newest, while webhooks
    and reads come from the middle: all are applied, nobody had to be shot, each was charged once.
    """
    up, down = Paged(sorting="oldest", size=7), Paged(sorting="newest", size=7)
    down.orders = up.orders
    async with (
        a_world(engine, shop=up, listed=listed("cursor")) as world,
        a_world(second, shop=down, listed=listed("cursor")) as other,
    ):
        keys = [f"ord_{number:02}" for number in range(20)]
        for version in (1, 2):
            for number, key in enumerate(keys):
                up.put(key, version=version, paid=True, changed=at(600 - number))
            async with asyncio.TaskGroup() as group:
                group.create_task(world.scan())
                group.create_task(other.increment())
                for key in [*keys[10:], *reversed(keys[:10])]:
                    group.create_task(other.webhook(up.orders[key]))
                for key in keys[::4]:
                    group.create_task(world.reconcile(key))
            assert dict.fromkeys(keys, version) == await world.held()
        assert keys == await world.calls()
        deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
        assert 0 == await world.value(deadlocks)


@pytest.mark.parametrize("how", ["again", "two replicas", "by hand", "webhooks again"])
async def test_what_is_known_already_is_not_news(
    engine: AsyncEngine, second: AsyncEngine, how: str
) -> None:
    """Sixty orders, one of them new to us: one correction and one charge, whoever looks again."""
    shop = Paged(size=20)
    async with (
        a_world(engine, shop=shop, listed=listed("cursor")) as world,
        a_world(second, shop=shop, listed=listed("cursor")) as other,
    ):
        for number in range(59):
            await world.webhook(shop.put(f"ord_{number:02}", version=1, changed=at(99)))
        shop.put("ord_new", version=1, paid=True, changed=at(9))
        if how == "two replicas":
            async with asyncio.TaskGroup() as group:
                group.create_task(world.scan())
                group.create_task(other.increment())
        for _ in range(2):
            await world.scan(by_person=how == "by hand")
            if how == "webhooks again":
                for one in shop.orders.values():
                    result = await other.webhook(one)
                    assert result.outcome in {"late", "duplicate"}
        assert ["ord_new"] == await world.calls()
        assert 1 == await world.value("select count(*) from reconciler.corrections")


@pytest.mark.parametrize("held", ["known rows", "new rows"])
async def test_who_waits_in_the_middle_holds_nothing_that_another_needs(
    engine: AsyncEngine, second: AsyncEngine, tmp_path: Path, held: str
) -> None:
    """
    Somebody holds the middle one of nine orders. A batch comes from the first to the last, one
    from the last to the first, and a page of the listing: all wait for each other in one order, and
    when the row is free all are applied. The database had nobody to shoot.
    """
    keys = [f"ord_{number}" for number in range(9)]
    grab = "select 1 from reconciler.resources where key = 'ord_4' for update"
    if held == "new rows":
        grab = (
            "insert into reconciler.resources (sender, kind, key, origin, updated_at)"
            " values ('shop', 'order', 'ord_4', 'webhook', now())"
        )
    async with a_house(engine, tmp_path, batches=True) as house:
        if held == "known rows":
            await house.outcomes([order(f"a{key}", key, version=1) for key in keys])
        up = [order(f"u{key}", key, version=2) for key in keys]
        down = [order(f"d{key}", key, version=3) for key in reversed(keys)]
        house.listed = [item(key, version=4) for key in keys[::2] + keys[1::2]]
        async with second.connect() as somebody, asyncio.TaskGroup() as group:
            transaction = await somebody.begin()
            await somebody.execute(text(grab))
            listing = group.create_task(house.reconcile(full=True))
            await waiting(house, 1)
            batches = [group.create_task(house.deliver({"events": each})) for each in (up, down)]
            await waiting(house, 2)
            await transaction.rollback()
        assert not listing.result().failed
        assert [200, 200] == [each.result().status_code for each in batches]
        assert dict.fromkeys(keys, 4) == await house.held()
        deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
        assert [(0,)] == await house.rows(deadlocks)


async def waiting(house: House, count: int) -> None:
    """Wait until so many transactions wait for a lock."""
    blocked = "select 1 from pg_locks where not granted"
    async with asyncio.timeout(5):
        while len(await house.rows(blocked)) < count:  # noqa: ASYNC110 - a lock wait tells nobody
            await asyncio.sleep(0.005)
