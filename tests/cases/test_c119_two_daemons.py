"""Two daemons, a person and a sender at one order at once, and one of the daemons is killed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.world import World, a_world, eventually, order_event

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    async with a_world(tmp_path, database_url) as world:
        yield world


async def test_an_order_that_everybody_works_on(world: World) -> None:
    """
    One order climbs four versions and is paid at the second. Each version is listed, told by
    webhooks to two daemons, late ones among them, read by a person or scanned by one; while it is
    paid one daemon gets kill -9. One charge; the user's own table agrees; nothing is left over.
    """
    world.sender.sets("ord_other", age=100)
    first = await world.start()
    await world.baseline_over()
    second = await world.start()
    told = []
    for version in range(1, 5):
        told.append(world.sender.sets("ord_42", status=f"s{version}", paid=version >= 2))
        events = [order_event(f"evt_{at}_{version % 2}", data) for at, data in enumerate(told)]
        async with asyncio.TaskGroup() as group:
            for at, event in enumerate(reversed(events)):
                to = second if at % 2 or version > 2 else first
                group.create_task(delivered(world, event, to=to))
            key = ["ord_42"] if version in {2, 3} else []
            by_hand = group.create_task(world.command("reconcile", "shop", "order", *key))
            if version == 2:
                first.process.kill()
                group.create_task(first.dies())
        busy = set() if key else {75}  # the daemon's own scan may be under way
        assert by_hand.result()[0] in {0, *busy}, by_hand.result()
        held = "select version from reconciler.resources where key = 'ord_42'"
        if key:
            assert version == await world.value(held)

    await world.effects("capture ord_42")
    assert ["shop:order:ord_42:2:capture"] == sorted(set(world.destination.keys))

    async def nothing_asked() -> bool:
        return not await world.rows("select 1 from reconciler.fetch_requests")

    await eventually(nothing_asked)
    await world.scans()
    await world.effects("capture ord_42")
    row = await world.rows("select status, status_version from orders where id = 'ord_42'")
    assert [{"status": "s4", "status_version": 4}] == row
    assert not await world.rows("select 1 from reconciler.quarantine")
    await second.stops()


async def delivered(world: World, event: dict[str, object], **to: object) -> None:
    """A webhook; its daemon may be killed just now, and then the sender does not know."""
    try:
        answer = await world.deliver(event, **to)  # type: ignore[arg-type]
    except httpx.TransportError:
        return
    assert 200 == answer.status_code, answer.text
