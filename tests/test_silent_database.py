"""
Stories of a database that says nothing: a black hole behind a connection that looks alive.

No limit of the server fires there, no keepalive and no TCP timeout, and a request to cancel would
be lost as well: what ends each wait is a limit of our own.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler import server_connection
from reconciler.database import engine_for
from reconciler.errors import DatabaseAwayError
from reconciler.server_connection import ServerConnection
from reconciler.server_slots import CONNECTS_WITHIN, slots_of
from reconciler.transactions import taking_up_to, transact
from tests.postgres_proxy import PostgresProxy, connected
from tests.world import eventually

pytestmark = pytest.mark.anyio

SECOND = timedelta(seconds=1)


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[PostgresProxy]:
    async with PostgresProxy(database_url) as proxy:
        yield proxy


@pytest.fixture
async def hasty(
    proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncEngine]:
    """An engine by way of the proxy; a statement may take 300 ms instead of ten seconds."""
    monkeypatch.setattr("reconciler.database.ANSWERED_WITHIN", timedelta(milliseconds=300))
    engine = engine_for(proxy.url, pool_size=3)
    yield engine
    await engine.dispose()


async def frozen_in(engine: AsyncEngine, proxy: PostgresProxy, step: str) -> None:
    """One transaction, whose peer falls silent just before *step*."""
    async with engine.connect() as connection:
        if step == "the first statement":
            proxy.freeze()
        await connection.execute(text("create temporary table t (i int) on commit drop"))
        if step == "a statement":
            proxy.freeze()
        await connection.execute(text("insert into t values (1)"))
        if step == "the commit":
            proxy.freeze()
            await connection.commit()
        if step == "the rollback":
            proxy.freeze()
            await connection.rollback()


@pytest.mark.parametrize("step", ["the first statement", "a statement", "the commit"])
async def test_every_wait_of_a_transaction_ends(
    hasty: AsyncEngine, proxy: PostgresProxy, step: str
) -> None:
    """Whoever waits is told so soon after the limit, and the connection is gone, not the pool."""
    await transact(hasty, lambda c: c.scalar(text("select 1")))
    began = time.monotonic()
    with pytest.raises(DBAPIError, match=r"did not answer within 0\.3 s"):
        await frozen_in(hasty, proxy, step)
    assert 5.0 > time.monotonic() - began
    proxy.thaw()
    assert 1 == await transact(hasty, lambda c: c.scalar(text("select 1")))
    assert 0 == hasty.pool.checkedout()


async def test_a_rollback_is_not_worth_waiting_for(database_url: str, proxy: PostgresProxy) -> None:
    """Nor is giving a connection back in the middle of a transaction: the server will find out."""
    engine = engine_for(proxy.url)
    began = time.monotonic()
    await frozen_in(engine, proxy, "the rollback")
    proxy.thaw()
    async with engine.connect() as connection:
        await connection.execute(text("select 1"))
        proxy.freeze()
    assert 8.0 > time.monotonic() - began
    await engine.dispose()


async def test_a_connection_that_nobody_answers(proxy: PostgresProxy) -> None:
    """TCP accepts, and then nothing: two seconds a server, and no more."""
    proxy.freeze()
    engine = engine_for(proxy.url)
    began = time.monotonic()
    with pytest.raises(DatabaseAwayError):
        await transact(engine, lambda c: c.scalar(text("select 1")), attempts=1)
    assert 8.0 > time.monotonic() - began
    proxy.thaw()
    assert 1 == await transact(engine, lambda c: c.scalar(text("select 1")))
    await engine.dispose()


@pytest.mark.parametrize(
    "work",
    [
        lambda c: c.execute(text("select pg_sleep(60)")),
        lambda _: asyncio.sleep(60),
    ],
    ids=["in a statement", "between two"],
)
async def test_who_is_cancelled_waits_for_nobody(
    proxy: PostgresProxy, work: Callable[[AsyncConnection], Awaitable[Any]]
) -> None:
    """
    A deadline of ours or a stop ends what is under way at once: psycopg would ask the silent
    server to cancel the statement, and wait for that for ten seconds.
    """
    engine = engine_for(proxy.url)

    async def begun(connection: AsyncConnection) -> None:
        await connection.execute(text("select 1"))
        await work(connection)

    task = asyncio.create_task(transact(engine, begun))
    await eventually(lambda: holding(engine))
    await asyncio.sleep(0.05)
    proxy.freeze()
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 5.0 > time.monotonic() - began
    await engine.dispose()


async def holding(engine: AsyncEngine) -> bool:
    return engine.pool.checkedout() > 0


async def test_a_commit_that_is_cancelled_is_no_success(proxy: PostgresProxy) -> None:
    """
    Its waiter gives up while the COMMIT is on its way. Nobody is told that it succeeded, whatever
    the server makes of it, and its connection is never used again.
    """
    engine = engine_for(proxy.url, pool_size=2)
    committing = asyncio.Event()

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(text("create temporary table t (i int) on commit drop"))
        proxy.freeze()
        committing.set()

    task = asyncio.create_task(transact(engine, work))
    await committing.wait()
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    proxy.thaw()
    pids = {await transact(engine, lambda c: c.scalar(text("select pg_backend_pid()")))}
    assert 1 == len(pids)
    assert 0 == engine.pool.checkedout()
    await engine.dispose()


async def test_what_is_meant_to_take_long_says_so(hasty: AsyncEngine) -> None:
    """An index, a purge, a script: longer than the usual limit, and then it holds again."""
    ended = []

    async def work(connection: AsyncConnection) -> None:
        with taking_up_to(connection, 60 * SECOND):
            await connection.execute(text("select pg_sleep(0.6)"))
        ended.append("long")
        await connection.execute(text("select pg_sleep(0.6)"))
        ended.append("usual")

    with pytest.raises(DatabaseAwayError, match=r"did not answer within 0\.3 s"):
        await transact(hasty, work, attempts=1)
    assert ["long"] == ended


async def test_a_silent_server_ends_what_waits_for_it(proxy: PostgresProxy) -> None:
    """
    Once a look has waited for four seconds in vain, nobody else waits out his ten: those who have
    waited as long fail now, and connections that were idle are not tried one after the other.
    """
    engine = engine_for(proxy.url, pool_size=5)

    async def idle_in_pool() -> None:
        async with asyncio.TaskGroup() as several:
            for _ in range(5):
                several.create_task(
                    transact(engine, lambda c: c.execute(text("select pg_sleep(0.05)")))
                )

    await idle_in_pool()
    before = set(await transact(engine, backends))
    assert 5 == len(before)
    proxy.freeze()
    task = asyncio.create_task(transact(engine, lambda c: c.scalar(text("select 1"))))
    await eventually(lambda: holding(engine))
    await asyncio.sleep(0.1)
    proxy.thaw()
    began = time.monotonic()
    slots_of(engine).condemn(before=asyncio.get_running_loop().time())
    assert 1 == await task
    assert 5.0 > time.monotonic() - began
    assert not before & {
        await transact(engine, lambda c: c.scalar(text("select pg_backend_pid()")))
    }
    await engine.dispose()


async def backends(connection: AsyncConnection) -> list[int]:
    found = await connection.scalars(
        text(
            "select pid from pg_stat_activity where application_name = 'reconciler'"
            " and datname = current_database()"
        )
    )
    return list(found)


# ---- slots at the server


@pytest.mark.parametrize(
    "statement", ["select pg_sleep(0.02)", "select pg_sleep(30)", "select count(*) from locked"]
)
async def test_a_storm_of_cancelled_requests_holds_no_more_than_the_pool(
    database_url: str, statement: str
) -> None:
    """
    C134: fifty requests are cancelled after 1 to 20 ms over three connections, and then more of
    them in the middle of quick statements, of slow ones, and of waiting for a lock. At no moment
    does the server hold more than three of ours, and the next three requests succeed.
    """
    engine = engine_for(database_url, pool_size=3)
    hang_up = partial(hung_up, engine, statement)

    async def one_after_the_other() -> None:
        for milliseconds in (5, 30, 60):
            await hang_up(milliseconds, in_statement=True)

    async with await onlooker(database_url) as holder:
        await holder.execute("create table locked (i int)")
        async with holder.transaction(), most_at_once(database_url) as counts:
            await holder.execute("lock table locked")
            async with asyncio.TaskGroup() as storm:
                for number in range(50):
                    storm.create_task(hang_up(number % 20 + 1, in_statement=False))
            async with asyncio.TaskGroup() as lanes:
                for _ in range(3):
                    lanes.create_task(one_after_the_other())
    async with asyncio.timeout(10), asyncio.TaskGroup() as normal:
        for _ in range(3):
            normal.create_task(transact(engine, lambda c: c.scalar(text("select 1"))))
    assert 1 <= max(counts) <= 3
    assert 0 == engine.pool.checkedout()
    await engine.dispose()


async def hung_up(
    engine: AsyncEngine, statement: str, milliseconds: int, *, in_statement: bool
) -> None:
    """A request whose sender hangs up after so long, counted from its statement or its coming."""
    begun = asyncio.Event()

    async def work(connection: AsyncConnection) -> None:
        begun.set()
        await connection.execute(text(statement))

    request = asyncio.create_task(transact(engine, work))
    if in_statement:
        await begun.wait()
    await asyncio.sleep(milliseconds / 1000)
    request.cancel()
    await asyncio.wait([request])


@asynccontextmanager
async def most_at_once(url: str) -> AsyncIterator[list[int]]:
    """How many connections of ours the server held, asked again and again."""
    counts: list[int] = []

    async def count() -> None:
        async with await onlooker(url) as looking:
            while True:
                cursor = await looking.execute(
                    "select count(*) from pg_stat_activity"
                    " where application_name = 'reconciler' and datname = current_database()"
                )
                counts.extend(await cursor.fetchone() or ())

    counting = asyncio.create_task(count())
    yield counts
    counting.cancel()
    await asyncio.wait([counting])


async def onlooker(url: str) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(url, autocommit=True, application_name="onlooker")


async def test_a_server_that_never_lets_go_is_asked(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    All slots are held by connections that were closed, and something between us and the server
    does not close its end. One new connection is let in after a while, and over it the server
    says that it knows none of the others: all slots are free again.
    """
    monkeypatch.setattr("reconciler.server_slots.DOUBTFUL_AFTER", timedelta(milliseconds=300))
    async with never_closing(database_url) as url:
        engine = engine_for(url, pool_size=2)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await transact(engine, lambda c: c.execute(text("select pg_sleep(30)")))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await transact(engine, backends)

        async def let_in() -> bool:
            try:
                # Far beyond DOUBTFUL_AFTER: who is cut off while it connects holds a slot again.
                async with asyncio.timeout(2):
                    return bool(await transact(engine, backends))
            except (TimeoutError, DatabaseAwayError):
                return False

        async def two_at_once() -> bool:
            await transact(engine, slots_of(engine).forget_gone)
            try:
                async with asyncio.timeout(2), engine.connect() as one, engine.connect() as two:
                    return 2 == await one.scalar(text("select 1 + 1")) and two is not one
            except TimeoutError:
                return False

        await eventually(let_in)
        await eventually(two_at_once)
        await engine.dispose()


@asynccontextmanager
async def never_closing(url: str) -> AsyncIterator[str]:
    """The URL of a way to *url* that closes its end towards the client only when the story ends."""
    kept: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(writer)
        there, to_there = await connected(url)
        back = asyncio.create_task(pour(there, writer))
        await pour(reader, to_there)
        back.cancel()
        to_there.transport.abort()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    known = make_url(url)
    ours = known.set(host="127.0.0.1", port=port, query={"sslmode": "disable"})
    try:
        yield ours.render_as_string(hide_password=False)
    finally:
        for writer in kept:
            writer.transport.abort()
        server.close()


async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def test_limits_come_with_the_beginning_of_every_transaction(engine: AsyncEngine) -> None:
    """The relay's own, a person's, a scan's lease: nobody can forget them; none costs a trip."""
    names = (
        "idle_in_transaction_session_timeout",
        "lock_timeout",
        "client_connection_check_interval",
        "jit",
    )

    async def limits() -> list[str]:
        async with engine.begin() as connection:
            return [str(await connection.scalar(text(f"show {name}"))) for name in names]

    assert ["1min", "5s", "500ms", "off"] == await limits()
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert isinstance(driver, ServerConnection)
        await driver.set_autocommit(True)
        outside = [str(await connection.scalar(text(f"show {name}"))) for name in names]
        await driver.set_autocommit(False)
    assert ["0", "0", "0"] == outside[:3]
    assert b"SET LOCAL" in server_connection.LIMITS


async def test_a_connection_that_was_given_up_before_it_began_takes_no_place(
    database_url: str,
) -> None:
    """The host stands still while somebody begins to connect; then the server is back."""
    engine = engine_for(database_url, pool_size=1)
    slots = slots_of(engine)
    asking = asyncio.create_task(slots.open())
    await asyncio.sleep(0)  # it has its place, and the connecting is still to begin
    time.sleep(2 * CONNECTS_WITHIN.total_seconds())  # noqa: ASYNC251 - nothing else runs
    slots.connect_again()

    with pytest.raises(psycopg.OperationalError, match="come back"):
        await asking
    connection = await slots.open()
    assert 1 == slots.taken
    await connection.close()
    await engine.dispose()


async def test_of_several_servers_the_one_that_answers_is_used(database_url: str) -> None:
    """
    The first server of the URL is a black hole, the second refuses, the third is there: it takes
    two seconds once, and in SQLAlchemy's form as in libpq's.
    """
    async with (
        PostgresProxy(database_url) as silent,
        PostgresProxy(database_url) as away,
        PostgresProxy(database_url) as there,
    ):
        silent.freeze()
        away.refuse()
        ports = (silent.port, away.port, there.port)
        known = make_url(there.url)
        many = [f"127.0.0.1:{port}" for port in ports]
        sqlalchemys = known.set(host=None, port=None, query={"host": many, "sslmode": "disable"})
        place = f"127.0.0.1:{known.port}"
        libpqs = there.url.replace(place, ",".join(many))
        for url in (libpqs, sqlalchemys.render_as_string(hide_password=False)):
            engine = engine_for(url)
            async with asyncio.timeout(15):
                assert 1 == await transact(engine, lambda c: c.scalar(text("select 1")))
                assert 1 == await transact(engine, lambda c: c.scalar(text("select 1")))
            await engine.dispose()
        assert there.connections > 0
