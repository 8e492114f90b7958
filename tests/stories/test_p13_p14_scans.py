"""P13, progress is durable, and P14, absence is not deletion."""

import asyncio

import pytest

from reconciler.proving.misbehaving_http import Answer, Request
from tests.world import World, eventually

pytestmark = pytest.mark.anyio

ORDERS = 24  # so many that all of them missing is more than a few
EVERY = [f"ord_{number:02}" for number in range(ORDERS)]


def many_orders(world: World) -> None:
    world.sender.page_size = 6
    for number, key in enumerate(EVERY):
        world.sender.sets(key, age=7200 - 60 * number, status="paid", paid=True)


async def all_held(world: World) -> None:
    await world.baseline_over()
    held = await world.rows("select key from reconciler.resources order by key")
    assert EVERY == [row["key"] for row in held]
    assert ORDERS == await world.value("select count(*) from reconciler.corrections")


async def test_p13_a_scan_killed_between_two_pages_goes_on_where_it_was(world: World):
    """
    kill -9 while the third of four pages is under way. The next daemon takes the scan over once
    its lease is over, and does not begin again: pages that were committed are not read again.
    """
    many_orders(world)
    asked = asyncio.Event()

    async def hangs_at_the_third(request: Request) -> None:
        if request.query.get("cursor") == "12":
            asked.set()
            await asyncio.Event().wait()

    world.sender.before = hangs_at_the_third
    daemon = await world.start()
    await asyncio.wait_for(asked.wait(), 20)
    daemon.process.kill()
    await daemon.dies()
    assert 12 == await world.value("select count(*) from reconciler.resources")
    assert ["", "6", "12"] == world.sender.pages

    world.sender.before = None
    world.sender.requests.clear()
    async with world.serving():
        await all_held(world)
    assert ["12", "18"] == world.sender.pages[:2]


@pytest.mark.parametrize(
    "at", ["scan-after-page", "scan-before-checkpoint", "scan-before-complete"]
)
async def test_p13_a_scan_that_dies_at_any_place_is_made_good(world: World, at: str):
    """Whatever had been committed: in the end each order is held, by one correction each."""
    many_orders(world)
    await world.dies_at(at, "--role", "reconciler")
    assert await world.rows("select 1 from reconciler.baselines where completed_at is null")
    async with world.serving():
        await all_held(world)


async def test_p13_a_scan_that_hangs_ends_at_its_deadline(world: World):
    """The sender answers never; the run ends, says so, and is tried again, while webhooks go on."""
    many_orders(world)

    async def hangs(_request: Request) -> None:
        await asyncio.Event().wait()

    world.sender.before = hangs
    async with world.serving(RECONCILER_POLLING__DEADLINE="1s"):

        async def told() -> str | None:
            (kind,) = (await world.document("status"))["senders"]["shop"]["kinds"].values()
            return kind["last_error"]

        assert await eventually(told)
        world.sender.before = None
        await world.rows("update reconciler.scans set due_at = now()")
        await all_held(world)


async def test_p13_the_watermark_is_the_senders_and_stays_where_a_listing_breaks(world: World):
    """It is the newest change that was read; an outage of the listing does not move it."""
    many_orders(world)
    async with world.serving():
        await world.baseline_over()
        newest = max(order["updated_at"] for order in world.sender.orders.values())
        assert newest == await watermark(world)
        world.sender.broken = Answer(body={"error": "maintenance", "data": None})
        world.sender.sets("ord_new", age=1, status="created")

        async def broken() -> bool:
            (kind,) = (await world.document("status"))["senders"]["shop"]["kinds"].values()
            return bool(kind["last_error"])

        await eventually(broken)
        assert newest == await watermark(world)
        assert ORDERS == await world.value("select count(*) from reconciler.resources")


async def watermark(world: World) -> str:
    (kind,) = (await world.document("status"))["senders"]["shop"]["kinds"].values()
    return str(kind["watermark"])


async def test_p14_what_is_not_listed_any_more_is_asked_for_before_it_counts_as_deleted(
    world: World,
):
    """
    Two orders vanish from the listing. One is there when asked for by itself, and stays; the
    other is answered 404, which this sender's `get` declares to mean deleted: a tombstone, at
    the version that we held, and a correction that says `absent`.
    """
    many_orders(world)
    async with world.serving():
        await world.baseline_over()
        world.sender.unlisted = {"ord_03"}
        del world.sender.orders["ord_07"]
        await full_scan(world)

        async def buried() -> bool:
            return bool(
                await world.rows("select 1 from reconciler.resources where deleted")
                and not await world.rows("select 1 from reconciler.fetch_requests")
            )

        await eventually(buried)
    assert ["ord_07"] == [
        row["key"] for row in await world.rows("select key from reconciler.resources where deleted")
    ]
    assert ["ord_07"] == [
        row["key"]
        for row in await world.rows("select key from reconciler.corrections where drift = 'absent'")
    ]
    assert 1 == await world.value("select version from reconciler.resources where key = 'ord_07'")


async def errors(world: World) -> list[str | None]:
    rows = await world.rows("select last_error from reconciler.scans where mode = 'full'")
    return [row["last_error"] for row in rows]


async def full_scan(world: World, *, to: str = "false") -> None:
    """Make a full scan due, and wait until it is complete, or has come *to* something else."""
    since = await world.value("select now()")
    await world.rows("update reconciler.scans set due_at = now() where mode = 'full'")

    async def done() -> bool:
        return bool(
            await world.rows(
                "select 1 from reconciler.scans"  # noqa: S608 - a condition of this file
                f" where mode = 'full' and (last_completed_at > %s or {to})",
                since,
            )
        )

    await eventually(done)


async def test_p14_a_listing_that_is_empty_all_at_once_deletes_nothing(world: World):
    """An outage that looks like "no orders": the scan stops and says so, and asks for nothing."""
    many_orders(world)
    async with world.serving():
        await world.baseline_over()
        world.sender.unlisted = set(EVERY)
        await full_scan(world, to="last_error is not null")
        assert [None] != await errors(world)
        assert [] == await world.rows("select 1 from reconciler.resources where deleted")
        assert [] == await world.rows("select 1 from reconciler.fetch_requests")
