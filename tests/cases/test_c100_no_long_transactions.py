"""Nobody holds a transaction open while somebody else's server makes up its mind."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.database import engine_for
from tests.cases.house import House, a_house, item, order
from tests.outbox.pretend import Misbehaves
from tests.polling.server import Reply, Request
from tests.receiver.senders import signed

pytestmark = pytest.mark.anyio

OPEN = text(
    "select state, query from pg_stat_activity where datname = current_database()"
    " and pid <> pg_backend_pid() and (state like 'idle in transaction%'"
    " or backend_xmin is not null) and backend_type = 'client backend'"
)


async def watched(database_url: str, reached: asyncio.Event) -> list[Any]:
    """Wait for the moment, then look at what is open in the database several times."""
    onlooker = engine_for(database_url)
    async with asyncio.timeout(10):
        await reached.wait()
    seen = []
    for _ in range(5):
        async with onlooker.connect() as connection:
            seen += (await connection.execute(OPEN)).all()
        await asyncio.sleep(0.01)
    await onlooker.dispose()
    return seen


def delay(house: House, path: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Let the sender's API think about *path*: (it was asked, it may answer)."""
    asked, go = asyncio.Event(), asyncio.Event()
    answer = house.answer

    async def slowly(request: Request) -> Reply:
        if request.path == path:
            asked.set()
            await go.wait()
        return await answer(request)

    house.answer = slowly  # type: ignore[method-assign]
    return asked, go


WAYS: dict[str, tuple[str, Callable[[House], Awaitable[Any]]]] = {
    "a scan": ("/orders", lambda house: house.reconcile()),
    "a full scan": ("/orders", lambda house: house.reconcile(full=True)),
    "a scan that is only tried": ("/orders", lambda house: house.reconcile(dry_run=True)),
    "a read": ("/orders/ord_42", lambda house: house.reconcile("ord_42")),
    "a read that is only tried": (
        "/orders/ord_42",
        lambda house: house.reconcile("ord_42", dry_run=True),
    ),
}


@pytest.mark.parametrize("way", WAYS)
async def test_none_is_open_while_the_sender_is_asked(
    engine: AsyncEngine, database_url: str, tmp_path: Path, way: str
) -> None:
    path, work = WAYS[way]
    async with a_house(engine, tmp_path) as house:
        house.listed, house.got = [item(version=2)], {"ord_42": item(version=2)}
        await house.outcome(order("e1"))
        asked, go = delay(house, path)
        running = asyncio.ensure_future(work(house))
        assert [] == await watched(database_url, asked)
        assert not running.done()
        go.set()
        (told,) = (await running).items
        assert told["result"] in {"corrected", "would_correct"}


async def test_none_is_open_while_a_destination_is_called(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    async with a_house(engine, tmp_path) as house:
        called = asyncio.Event()

        def behave(_number: int, _call: object) -> Misbehaves:
            called.set()
            return Misbehaves("answers_late")

        house.pretend.behave = behave
        await house.outcome(order("e1", paid=True, amount=1))
        running = asyncio.create_task(house.call())
        assert [] == await watched(database_url, called)
        house.pretend.release.set()
        assert 1 == await running


async def test_none_is_open_while_a_delivery_arrives(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    """A sender that stops in the middle of its body holds a connection of its own, none of ours."""
    async with a_house(engine, tmp_path) as house:
        lines = "".join(f"{name}: {value}\r\n" for name, value in signed(b"{}").items())
        reader, writer = await asyncio.open_connection("127.0.0.1", house.receiver.port)
        head = f"POST /webhooks/shop HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: 900\r\n\r\n"
        writer.write(head.encode() + b"{")
        await writer.drain()
        reached = asyncio.Event()
        reached.set()
        assert [] == await watched(database_url, reached)
        writer.close()
        del reader


async def test_who_holds_rows_lets_go_of_them_in_time(engine: AsyncEngine, tmp_path: Path) -> None:
    """
    Every transaction that locks something has a limit on idling: a process that is stopped in
    the middle of it, or cut off from the network, keeps neither rows nor vacuum waiting for ever.
    """
    limits: set[tuple[str, str]] = set()

    def look(connection: Any) -> None:
        found = connection.exec_driver_sql(
            "select current_setting('idle_in_transaction_session_timeout'), exists (select"
            " from pg_locks where pid = pg_backend_pid() and mode = 'RowExclusiveLock')"
        ).one()
        limits.add((found[0], str(found[1])))

    async with a_house(engine, tmp_path) as house:
        event.listen(engine.sync_engine, "commit", look)
        try:
            await house.outcome(order("e1", paid=True, amount=1))
            await house.outcome(b"no JSON")
            await house.call()
        finally:
            event.remove(engine.sync_engine, "commit", look)
    assert {"10s", "1min"} == {limit for limit, wrote in limits if wrote == "True"}
