"""Stories of requested reads: nothing that asked to be read is forgotten, nor holds others up."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from reconciler.ledger import fetches
from reconciler.polling import fetching
from reconciler.polling.fetching import Reader
from reconciler.polling.waiting import Waits
from reconciler.transactions import transact

from .server import Reply
from .world import a_world

pytestmark = pytest.mark.anyio

DRIP = Reply(json=["x" * 100_000], drip=True)


def reader_of(world, **found) -> Reader:
    return Reader(
        engine=world.engine,
        rules=world.rules,
        sources=world.sources,
        api=world.api,
        sender="shop",
        settings=world.policy,
        waits=Waits(stop=world.stop),
        **found,
    )


async def ask(world, *keys: str, kind: str = "order", reason: str = "no state") -> None:
    wishes = [fetches.Request(resource=("shop", kind, key), reason=reason) for key in keys]
    await transact(world.engine, lambda connection: fetches.request(connection, wishes))


async def open_requests(world) -> dict[str, str | None]:
    rows = await world.rows("select key, last_error from reconciler.fetch_requests")
    return {row.key: row.last_error for row in rows}


async def test_what_is_requested_is_read_and_applied(engine):
    """A read is a change like any other: state, correction, effect; the request is closed."""
    async with a_world(engine) as world:
        world.shop.put("ord_1", version=3, paid=True)
        await ask(world, "ord_1")
        heard: list = []
        assert 1 == await reader_of(world, found=heard.extend).read_due()

        assert {"ord_1": 3} == await world.held()
        assert ["ord_1"] == await world.calls()
        assert {} == await open_requests(world)
        assert ["applied"] == [result.outcome for result in heard]
        assert 0 == await reader_of(world).read_due()


async def test_a_newer_wish_outlives_the_read_under_way(engine):
    """B3: while the old state is on its way to us a webhook asks again; that read is made too."""
    async with a_world(engine) as world:
        world.shop.put("ord_1", version=1)
        await ask(world, "ord_1")
        answer = world.shop.answer

        async def meanwhile(request):
            reply = await answer(request)
            await ask(world, "ord_1")
            world.shop.put("ord_1", version=2)
            return reply

        world.shop.answer = meanwhile
        async with a_world(engine, shop=world.shop) as busy:
            await reader_of(busy).read_due()
            assert ["ord_1"] == list(await open_requests(world))
            world.shop.answer = answer
        async with a_world(engine, shop=world.shop) as quiet:
            await reader_of(quiet).read_due()

        assert {"ord_1": 2} == await world.held()
        assert {} == await open_requests(world)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500),
        Reply(status=403),
        Reply(body=b"<html>"),
        Reply(json={"id": "ord_other", "version": 1}),
        Reply(json={"id": "ord_1", "version": None}),
    ],
)
async def test_a_failing_read_backs_off_and_stays(engine, reply):
    """It says why, is due again later, and the one beside it is read."""
    async with a_world(engine) as world:
        world.shop.put("ord_2", version=1)
        answer = world.shop.answer

        async def sometimes(request):
            return reply if request.path.endswith("ord_1") else await answer(request)

        world.shop.answer = sometimes
        async with a_world(engine, shop=world.shop) as failing:
            await ask(failing, "ord_1", "ord_2")
            await reader_of(failing).read_due()

        assert ["ord_1"] == list(await open_requests(world))
        assert (await open_requests(world))["ord_1"]
        assert {"ord_2": 1} == await world.held()
        assert await world.value("select due_at > clock_timestamp() from reconciler.fetch_requests")


async def test_gone_buries_and_unknown_waits(engine):
    """404 buries where that is declared; elsewhere the request stays, and backs off."""
    async with a_world(engine) as world:
        await world.webhook(world.shop.put("ord_1", version=3))
        world.shop.orders.clear()
        await ask(world, "ord_1", reason="absent")
        await reader_of(world).read_due()
        assert {} == await world.held()
        assert {} == await open_requests(world)

    kind = {"get": {"path": "/v1/orders/{{ key }}", "key": "id"}}
    async with a_world(engine, kind=kind) as world:
        await world.webhook(world.shop.put("ord_2", version=3))
        world.shop.orders.clear()
        await ask(world, "ord_2")
        await reader_of(world).read_due()
        assert {"ord_2": 3} == await world.held()
        assert "404" in (await open_requests(world))["ord_2"]


async def test_a_correction_beside_it_makes_a_read_harmless(engine):
    """A scan and a read find the same change: it fires once."""
    async with a_world(engine) as world:
        world.shop.put("ord_1", version=2, paid=True)
        await ask(world, "ord_1")
        async with asyncio.TaskGroup() as both:
            both.create_task(world.scan())
            both.create_task(reader_of(world).read_due())

        assert ["ord_1"] == await world.calls()
        assert 1 == await world.value("select count(*) from reconciler.corrections")


async def test_what_can_no_longer_be_read_is_dropped(engine):
    """A kind that has lost its `get` since, or is not configured any more."""
    async with a_world(engine, get=False) as world:
        await ask(world, "ord_1")
        await ask(world, "inv_1", kind="invoice")
        await reader_of(world).read_due()

        assert {} == await open_requests(world)


async def test_a_failing_statement_of_the_users_keeps_the_request(engine):
    """It is put off with what went wrong, and read again once that is mended."""
    statement = {"on_change": ["order"], "sql": "insert into orders values (:key)",
                 "params": {"key": "key"}}  # fmt: skip
    async with a_world(engine, apply=(statement,)) as world:
        world.shop.put("ord_1", version=1)
        await ask(world, "ord_1")
        await reader_of(world).read_due()
        assert "orders" in (await open_requests(world))["ord_1"]
        await world.run_sql("create table orders (key text)")
        await world.run_sql("update reconciler.fetch_requests set due_at = now()")
        await reader_of(world).read_due()

        assert {} == await open_requests(world)
        assert {"ord_1": 1} == await world.held()


@asynccontextmanager
async def reading(world, hint: asyncio.Event):
    async with asyncio.TaskGroup() as group:
        group.create_task(
            fetching.run(
                world.engine,
                world.rules,
                world.sources,
                {"shop": world.api},
                settings=world.policy,
                stop=world.stop,
                hint=hint,
            )
        )
        yield
        world.stop.set()


async def test_the_loop_works_with_and_without_a_hint(engine):
    """A hint wakes it at once though it looks every hour; without one it looks by itself."""
    for poll, hinted in (("3600s", True), ("50ms", False)):
        async with a_world(engine, polling={"poll": poll}) as world:
            hint = asyncio.Event()
            async with asyncio.timeout(10), reading(world, hint):
                key = f"ord_{hinted}"
                world.shop.put(key, version=1)
                await ask(world, key)
                if hinted:
                    hint.set()
                while key not in await world.held():  # noqa: ASYNC110 - it asks the database
                    await asyncio.sleep(0)


async def test_a_stop_drops_what_is_under_way(engine):
    """The sender drips; a stop ends the waiting at once, and the read is due again."""
    async with a_world(engine, polling={"poll": "50ms"}) as world:
        world.shop.lies = [DRIP]
        await ask(world, "ord_1")
        async with asyncio.timeout(5), reading(world, asyncio.Event()):
            await world.served.reached(1)

        assert ["ord_1"] == list(await open_requests(world))
        assert await world.value(
            "select due_at <= clock_timestamp() from reconciler.fetch_requests"
        )


async def test_a_lease_bounds_a_read(engine):
    """After its lease a read is somebody else's: it is given up, and put off."""
    async with a_world(engine, polling={"lease": "300ms"}) as world:
        world.shop.lies = [DRIP] * 4
        await ask(world, "ord_1")
        async with asyncio.timeout(5):
            await reader_of(world).read_due()

        assert "lease" in (await open_requests(world))["ord_1"]


PROGRAM = """
import asyncio, sys
from reconciler.database import engine_for
from tests.polling.test_fetching import ask, reader_of
from tests.polling.world import a_world

async def main(url):
    engine = engine_for(url)
    async with a_world(engine, polling={"lease": "1s"}) as world:
        world.shop.put("ord_1", version=1, paid=True)
        await ask(world, "ord_1")
        await reader_of(world).read_due()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_read_killed_before_it_was_applied_is_made_again(engine, database_url):
    """SIGKILL between answer and transaction: the request comes back by its lease."""
    root = Path(__file__).parents[2]
    environ = {
        **os.environ,
        "RECONCILER_TEST_CRASH_AT": "read-between-fetch-and-apply",
        "PYTHONPATH": str(root),
    }
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROGRAM, database_url],
        env=environ,
        cwd=root,
        capture_output=True,
        check=False,
    )
    assert -signal.SIGKILL == killed.returncode, killed.stderr.decode()

    async with a_world(engine) as world:
        world.shop.put("ord_1", version=1, paid=True)
        wait = await world.value("select due_at - clock_timestamp() from reconciler.fetch_requests")
        assert wait <= timedelta(seconds=1)
        await world.run_sql("update reconciler.fetch_requests set due_at = now()")
        await reader_of(world).read_due()

        assert ["ord_1"] == await world.calls()
        assert {} == await open_requests(world)
