"""Webhooks, scans, reads and a person find out about one thing: late, early or at once."""

import asyncio
from collections.abc import AsyncIterator
from itertools import permutations
from random import Random
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.database import engine_for
from reconciler.errors import BusyError
from reconciler.polling.report import End
from reconciler.polling.slots import Mode
from tests.cases.listing import Paged, at, listed
from tests.polling.test_fetching import reader_of
from tests.polling.world import World, a_world

pytestmark = pytest.mark.anyio

PATHS = ("webhook", "scan", "increment", "read", "by hand")


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[AsyncEngine]:
    """Another replica's connections."""
    engine = engine_for(database_url, pool_size=12)
    yield engine
    await engine.dispose()


async def find_out(world: World, path: str, order: dict[str, Any], *, id_: str = "") -> None:
    match path:
        case "webhook":
            await world.webhook(order, id_=id_ or None)
        case "scan":
            await world.scan()
        case "increment":
            await world.increment()
        case "by hand":
            await world.scan(by_person=True)
        case _:
            assert "failed" != (await world.reconcile(order["id"]))["result"]


@pytest.mark.parametrize(
    "order",
    [
        *permutations(("webhook", "scan", "read")),
        ("increment", "webhook", "by hand"),
        ("by hand", "read", "webhook"),
    ],
)
async def test_whoever_is_first_charges_and_the_others_find_it_so(
    engine: AsyncEngine, order: tuple[str, ...]
) -> None:
    """One change, found out three times one after the other: one charge, one correction at most."""
    shop = Paged()
    async with a_world(engine, shop=shop, listed=listed("cursor")) as world:
        await world.webhook(shop.put("ord_1", version=6))
        paid = shop.put("ord_1", version=7, paid=True)
        for path in order:
            await find_out(world, path, paid, id_="evt_7")
        assert ["ord_1"] == await world.calls()
        assert {"ord_1": 7} == await world.held()
        corrected = await world.rows("select late_event_at from reconciler.corrections")
        assert (0 if order[0] == "webhook" else 1) == len(corrected)
        assert all(one.late_event_at is not None for one in corrected)
        outcome = await world.value(
            "select outcome from reconciler.processed_events where event_id = 'evt_7'"
        )
        assert ("applied" if order[0] == "webhook" else "late") == outcome


async def test_everybody_at_once_and_again_and_again(
    engine: AsyncEngine, second: AsyncEngine
) -> None:
    """
    Eight orders change five times; each time two replicas scan, a person asks, requested reads
    are made, and webhooks come twice, reversed and older ones among them. Versions only grow,
    every order is charged once for the one time it became paid, and nothing deadlocks.
    """
    shop, chance = Paged(size=3), Random(7)
    async with (
        a_world(engine, shop=shop, listed=listed("cursor")) as world,
        a_world(second, shop=shop, listed=listed("cursor", "oldest")) as other,
    ):
        keys = [f"ord_{number}" for number in range(8)]
        told: list[dict[str, Any]] = []
        for version in range(1, 6):
            told += [
                shop.put(key, version=version, paid=version >= 3, changed=at(600 - version))
                for key in keys
            ]
            hooks = [one for one in told if chance.random() < 0.4]
            chance.shuffle(hooks)
            async with asyncio.TaskGroup() as group:
                for one in hooks:
                    group.create_task(one_of(world, other, one, chance))
                for scanning, mode in ((world, Mode.FULL), (other, Mode.INCREMENTAL),
                                       (other, Mode.FULL)):  # fmt: skip
                    group.create_task(scan_or_busy(scanning, mode))
                for key in chance.sample(keys, 3):
                    group.create_task(world.reconcile(key))
                group.create_task(reader_of(other).read_due())
            assert dict.fromkeys(keys, version) == await world.held()
        async with asyncio.timeout(10):
            while await world.value("select count(*) from reconciler.fetch_requests"):
                await world.run_sql("update reconciler.fetch_requests set due_at = now()")
                await reader_of(world).read_due()
        assert keys == await world.calls()
        states = await world.rows("select state->>'paid' as paid from reconciler.resources")
        assert ["true"] * 8 == [one.paid for one in states]
        deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
        assert 0 == await world.value(deadlocks)


async def one_of(world: World, other: World, order: dict[str, Any], chance: Random) -> None:
    """Its webhook, at one of the replicas, and under an id that may be new."""
    number = chance.randrange(3)
    where = chance.choice([world, other])
    result = await where.webhook(order, id_=f"evt_{order['id']}_{order['version']}_{number}")
    assert result.fault is None


async def scan_or_busy(world: World, mode: Mode) -> None:
    try:
        report = await world.scan(mode)
    except BusyError:
        return
    assert report.end is End.COMPLETED


@pytest.mark.parametrize("path", PATHS[1:])
async def test_a_sender_that_lags_behind_its_own_webhooks(engine: AsyncEngine, path: str) -> None:
    """
    Three orders are told by webhook: one newer, one deleted, one with other content at the same
    version. Listing and `get` still show what was before, for three cycles, and then catch up.
    Nothing flips, nothing is asked for twice.
    """
    kind = {"deleted_on": ["order.deleted"]}
    shop = Paged()
    async with a_world(engine, shop=shop, listed=listed("cursor"), kind=kind, lag="1h") as world:
        for key in ("newer", "deleted", "tied"):
            await world.webhook(shop.put(key, version=4))
        old = dict(shop.orders)
        await world.webhook(shop.put("newer", version=5, paid=True))
        await world.webhook(shop.put("deleted", version=5), type_="order.deleted")
        await world.webhook({**old["newer"], "id": "newer"}, id_="late")
        new = {**shop.orders, "tied": {**old["tied"], "amount": 7}}
        del new["deleted"]
        shop.orders = dict(old)
        before = await state(world)
        for _ in range(3):
            for key in old:
                await find_out(world, path, {"id": key})
            assert before == await state(world)
        assert ["newer"] == await world.calls()
        shop.orders = new
        for key in new:
            await find_out(world, path, {"id": key})
        assert before == await state(world)  # `tied` waits for a read behind the lag
        assert ["newer"] == await world.calls()


async def state(world: World) -> list[Any]:
    return await world.rows(
        "select key, version, revision, deleted, state, origin from reconciler.resources order by 1"
    )


async def test_a_webhook_that_comes_while_its_order_is_read(engine: AsyncEngine) -> None:
    """
    A read of v6 is under way when the webhook brings v7; the scan, with a page of v6 in its hand,
    comes after both. v7 stays, by hand it is said that we are ahead or read again.
    """
    shop = Paged()
    async with a_world(engine, shop=shop, listed=listed("cursor")) as world:
        await world.webhook(shop.put("ord_1", version=5))
        old = shop.put("ord_1", version=6, status="open")
        answer = shop.answer

        async def meanwhile(request: Any) -> Any:
            shop.orders["ord_1"] = old
            reply = await answer(request)
            newest = shop.put("ord_1", version=7, paid=True)
            await world.webhook(newest)
            return reply

        shop.answer = meanwhile  # type: ignore[method-assign]
        async with a_world(engine, shop=shop, listed=listed("cursor")) as busy:
            assert "ahead" == (await busy.reconcile("ord_1"))["result"]
            assert 1 == (await busy.scan()).ahead
            assert 1 == (await busy.increment()).ahead
        assert {"ord_1": 7} == await world.held()
        assert ["ord_1"] == await world.calls()
        assert [] == await world.rows("select * from reconciler.corrections")


async def test_a_trigger_by_hand_beside_a_slow_scan(
    engine: AsyncEngine, second: AsyncEngine
) -> None:
    """
    While the scheduled scan waits for a page, a person asks at another replica: for the kind, and
    is told who is at it; for one order, and is served. The scan goes on and finds it so already.
    """
    shop = Paged(size=1)
    go = asyncio.Event()
    answer = shop.answer

    async def slowly(request: Any) -> Any:
        if "cursor" in request.query:
            await go.wait()
        return await answer(request)

    shop.answer = slowly  # type: ignore[method-assign]
    async with (
        a_world(engine, shop=shop, listed=listed("cursor")) as world,
        a_world(second, shop=shop, listed=listed("cursor")) as other,
        asyncio.TaskGroup() as group,
    ):
        for number in range(2):
            shop.put(f"ord_{number}", version=1, paid=True, changed=at(60 - number))
        scan = group.create_task(world.scan())
        await world.served.reached(2)
        with pytest.raises(BusyError):
            await other.scan(by_person=True)
        assert "corrected" == (await other.reconcile("ord_1"))["result"]
        assert "in_sync" == (await other.reconcile("ord_0"))["result"]
        go.set()
        report = await scan
        assert (End.COMPLETED, 1, 1) == (report.end, report.corrected, report.in_sync)
        assert ["ord_0", "ord_1"] == await world.calls()
