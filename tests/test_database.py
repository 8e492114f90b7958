"""Transactions that run again when they must, and what comes back from the database."""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, timedelta
from decimal import Decimal
from itertools import count
from uuid import UUID

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import bindparam, func, literal_column, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from structlog.testing import capture_logs

from outbox.entry import uuid7
from reconciler import database, embedded
from reconciler.database import engine_for, prepare_transaction
from reconciler.errors import ConfigError, DatabaseAwayError, TablesGoneError
from reconciler.server_connection import conninfo_for
from reconciler.transactions import (
    SwallowedErrorError,
    expect_tables,
    is_transient,
    pause_before,
    transact,
)

pytestmark = pytest.mark.anyio

CLAIM = "insert into claims values (:id) on conflict do nothing"


async def at_once(_seconds: float) -> None:
    """Instead of sleeping between attempts."""


@pytest.fixture
async def claims(engine: AsyncEngine) -> AsyncEngine:
    async with engine.begin() as connection:
        await connection.execute(text("create table claims (id int primary key)"))
    return engine


async def number_of_claims(engine: AsyncEngine) -> int:
    return await transact(engine, lambda c: c.scalar(text("select count(*) from claims")))


# ---- what comes back


async def test_numbers_come_back_exactly(engine):
    """jsonb and numeric, over a column and over a bare statement: int and Decimal, never float."""
    sent = {"amount": Decimal("12.30"), "id": 2**60 + 1, "nested": [Decimal("0.1"), 1, None]}

    async def there_and_back(connection: AsyncConnection) -> tuple[object, ...]:
        value = bindparam("value", sent, JSONB)
        row = (await connection.execute(select(value, literal_column("1.50::numeric")))).one()
        raw = await connection.get_raw_connection()
        bare = await raw.driver_connection.execute(
            "select %s::jsonb, %s::json", ('{"a": 0.1}', "[1e2]")
        )
        return *row, *(await bare.fetchone())

    jsonb, numeric, bare_jsonb, bare_json = await transact(engine, there_and_back)
    assert sent == jsonb
    assert repr(sent) == repr({name: jsonb[name] for name in sent})
    assert Decimal("1.50") == numeric
    assert repr({"a": Decimal("0.1")}) == repr(bare_jsonb)
    assert isinstance(bare_json[0], Decimal)


async def test_the_databases_clock(engine):
    """It moves within a transaction, and is UTC."""

    async def twice(connection: AsyncConnection):
        return await database.now(connection), await database.now(connection)

    first, second = await transact(engine, twice)
    assert first < second
    assert UTC == first.tzinfo


def test_ids_grow_with_time_and_are_version_7():
    """RFC 9562's own example: 2022-02-22 14:22:22 -05:00 and its random bits."""
    noise = (0xCC3 << 68 | 0x18C4DC0C0C07398F).to_bytes(10)
    known = uuid7(time_ns=lambda: 1645557742000 * 10**6, random_bytes=lambda _: noise)
    assert UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F") == known
    earlier = uuid7(time_ns=lambda: 10**18)
    later = uuid7(time_ns=lambda: 10**18 + 10**6)
    assert earlier < later
    assert {7} == {uuid7().version}
    assert 1000 == len({uuid7() for _ in range(1000)})


# ---- limits of a connection and of a transaction


async def test_limits_hold_for_one_transaction_and_nothing_stays_behind(database_url):
    """
    The lock timeout and the search path of the user's statements end with the transaction, and
    no statement is left prepared: PgBouncer gives the next one to somebody else.
    """
    engine = engine_for(database_url, search_path="shop, public", pool_size=1)
    names = ("lock_timeout", "idle_in_transaction_session_timeout", "search_path")

    async def limits(connection: AsyncConnection) -> tuple[str, ...]:
        return tuple((await connection.execute(select(*map(func.current_setting, names)))).one())

    async def prepared(connection: AsyncConnection) -> tuple[str, ...]:
        await prepare_transaction(connection, lock_timeout=timedelta(milliseconds=1500))
        return await limits(connection)

    before = await transact(engine, limits)
    for _ in range(10):
        assert ("1500ms", "1min", "shop, public") == await transact(engine, prepared)
    assert before == await transact(engine, limits)
    left = text(
        "select (select count(*) from pg_prepared_statements), current_setting('search_path')"
    )
    assert (0, before[2]) == await transact(engine, lambda c: one(c, left))
    await engine.dispose()


async def one(connection: AsyncConnection, statement) -> tuple[object, ...]:
    return tuple((await connection.execute(statement)).one())


def test_a_url_gets_our_limits_where_it_has_none():
    """Without keepalives and timeouts a client hangs for as long as a partition lasts."""
    found = conninfo_to_dict(conninfo_for("postgresql+psycopg://app@db:6432/app?connect_timeout=9"))
    assert ("db", "6432", "app", "app") == tuple(
        found[name] for name in ("host", "port", "user", "dbname")
    )
    assert "9" == found["connect_timeout"]
    assert {"3000", "2", "1", "3", "reconciler", "read-write"} == {
        found[name]
        for name in (
            "tcp_user_timeout",
            "keepalives_idle",
            "keepalives_interval",
            "keepalives_count",
            "application_name",
            "target_session_attrs",
        )
    }
    assert "options" not in found


def test_several_hosts_either_way():
    """libpq's way of naming several hosts, and SQLAlchemy's, of which libpq would drop one."""
    for url in (
        "postgresql://app@a:5432,b:5433/app",
        "postgresql+psycopg://app@/app?host=a:5432&host=b:5433",
        "postgresql+psycopg://app@/app?host=a%3A5432&host=b%3A5433",
    ):
        found = conninfo_to_dict(conninfo_for(url))
        assert ("a,b", "5432,5433") == (found["host"], found["port"])


def test_hosts_as_sqlalchemy_writes_them():
    """One with its port, one without, a socket's directory, and an address with colons."""
    for written, expected in {
        "host=a:5433": ("a", "5433"),
        "host=a&host=b:6000": ("a,b", "5432,6000"),
        "host=[::1]:5433&host=%2Frun%2Fpostgresql:5434": ("::1,/run/postgresql", "5433,5434"),
        "host=::1": ("::1", None),
        "host=/run/postgresql&port=5433": ("/run/postgresql", "5433"),
        "host=a,b&port=1,2": ("a,b", "1,2"),
    }.items():
        found = conninfo_to_dict(conninfo_for(f"postgresql://app@/app?{written}"))
        assert expected == (found["host"], found.get("port"))


@pytest.mark.parametrize("url", ["sqlite:///x", "mysql://a/b", "app", "", "postgresql://a/b?x=1"])
def test_what_is_no_url_is_refused(url):
    """A mistake in the configuration is 78, not an attempt to connect somewhere."""
    with pytest.raises(ConfigError):
        conninfo_for(url)


def test_a_password_goes_beside_the_url():
    """It comes from a reference, and odd characters in it are nobody's concern."""
    password = "a b'c\\d@e/f%20"  # noqa: S105
    found = conninfo_to_dict(conninfo_for("postgresql://app@db/app", password=password))
    assert password == found["password"]


# ---- transactions that run again


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (errors.SerializationFailure(), True),
        (errors.DeadlockDetected(), True),
        (errors.ReadOnlySqlTransaction(), True),
        (errors.AdminShutdown(), True),
        (errors.CrashShutdown(), True),
        (errors.CannotConnectNow(), True),
        (errors.ConnectionException(), True),
        (errors.ProtocolViolation(), True),  # how PgBouncer says that no server is to be had
        (errors.TooManyConnections(), True),
        (errors.DiskFull(), True),
        (errors.LockNotAvailable(), True),
        (errors.QueryCanceled(), True),  # of a statement of ours: there was no time for it
        (psycopg.OperationalError("the connection is lost"), True),
        (errors.UniqueViolation(), False),
        (errors.CheckViolation(), False),
        (errors.UndefinedTable(), False),
        (errors.InFailedSqlTransaction(), False),
        (errors.InsufficientPrivilege(), False),
        (errors.DataException(), False),
        (psycopg.DataError("NUL in text"), False),
        (psycopg.ProgrammingError("no results"), False),
        (ValueError("a bug"), False),
        (OSError("a file"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_cured_by_running_again(error, transient):
    """The database's troubles pass; what content or a bug causes does not."""
    assert transient is is_transient(error)


@pytest.mark.parametrize(
    "statement",
    [
        "select 1 from dropped.claims",
        "insert into gone values (1)",
        "insert into claims values (1) on conflict (id) do nothing",  # its key is not there yet
    ],
)
async def test_tables_that_were_there_pass_like_an_outage(claims, statement):
    """Whoever never saw them is told what is missing; who did has its database away, at once."""
    ran = []

    async def work(connection):
        ran.append(statement)
        await connection.execute(text("alter table claims drop constraint if exists claims_pkey"))
        await connection.execute(text(statement))

    with pytest.raises(DBAPIError):
        await transact(claims, work)
    expect_tables(claims)
    with pytest.raises(TablesGoneError, match="a restore"):
        await transact(claims, work)
    assert 2 == len(ran)


async def test_two_transactions_that_lock_in_opposite_order_both_commit(claims):
    """PostgreSQL breaks the deadlock by failing one of them, which runs again (C57).

    It runs again when the other has committed: sooner, it may get its first row before the other
    wakes up, and the two stand in each other's way once more.
    """
    async with claims.begin() as connection:
        await connection.execute(text("insert into claims values (1), (2)"))
    both_hold_one = asyncio.Barrier(2)
    committed = asyncio.Event()
    runs = []

    async def lock(connection: AsyncConnection, order: tuple[int, int]) -> None:
        runs.append(order)
        statement = text("select id from claims where id = :id for update")
        await connection.execute(statement, {"id": order[0]})
        if len(runs) <= 2:
            await both_hold_one.wait()
        await connection.execute(statement, {"id": order[1]})

    async def until_the_other_has_committed(_seconds: float) -> None:
        await committed.wait()

    async def commit(order: tuple[int, int]) -> None:
        await transact(claims, lambda c: lock(c, order), sleep=until_the_other_has_committed)
        committed.set()

    async with asyncio.TaskGroup() as both:
        both.create_task(commit((1, 2)))
        both.create_task(commit((2, 1)))
    assert 3 == len(runs)


async def test_a_connection_lost_in_the_middle(claims):
    """The server ends our connection between two statements: all of it runs again, once counted."""
    runs = []

    async def work(connection: AsyncConnection) -> None:
        runs.append(1)
        await connection.execute(text(CLAIM), {"id": len(runs)})
        if len(runs) == 1:
            await connection.execute(text("select pg_terminate_backend(pg_backend_pid())"))

    await transact(claims, work, sleep=at_once)
    assert 2 == len(runs)
    assert 1 == await number_of_claims(claims)


async def test_a_handler_that_wraps_the_loss_of_the_connection_changes_nothing(claims):
    """The user's code turns every error into its own: the connection is lost all the same."""
    runs = []

    async def work(connection: AsyncConnection) -> None:
        runs.append(1)
        try:
            if len(runs) == 1:
                await connection.execute(text("select pg_terminate_backend(pg_backend_pid())"))
        except Exception:  # noqa: BLE001
            raise ValueError("something failed") from None

    await transact(claims, work, sleep=at_once)
    assert 2 == len(runs)


async def test_dead_connections_in_the_pool_do_not_show(claims, cluster):
    """The server was restarted while we were idle: the next transaction just works."""
    async with asyncio.TaskGroup() as several:
        for _ in range(3):
            several.create_task(number_of_claims(claims))
    with psycopg.connect(cluster, autocommit=True) as administrator:
        name = claims_database = await transact(
            claims, lambda c: c.scalar(text("select current_database()"))
        )
        administrator.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s",
            (name,),
        )
    assert claims_database
    assert 0 == await transact(
        claims, lambda c: c.scalar(text("select count(*) from claims")), attempts=2, sleep=at_once
    )


async def test_a_commit_whose_answer_never_came_happens_once(claims, database_url):
    """
    The server commits, and the connection breaks before it says so. The transaction runs
    again, finds its claim, and nothing happens twice.
    """
    async with losing_commits(database_url, losses=1) as url:
        engine = engine_for(url)
        claimed = []

        async def work(connection: AsyncConnection) -> int:
            claimed.append((await connection.execute(text(CLAIM), {"id": 7})).rowcount)
            return claimed[-1]

        assert 0 == await transact(engine, work, sleep=at_once)
        assert [1, 0] == claimed
        await engine.dispose()
    assert 1 == await number_of_claims(claims)


@asynccontextmanager
async def losing_commits(url: str, *, losses: int) -> AsyncIterator[str]:
    """The URL of a way to *url* that breaks after passing on a COMMIT, *losses* times."""
    with psycopg.connect(url) as known:
        info = known.info
        host, port, name, user = info.host, info.port, info.dbname, info.user
        password = f"&password={info.password}" if info.password else ""
    left = losses

    async def carry(reader, writer) -> None:
        nonlocal left
        if host.startswith("/"):
            there = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        else:
            there = await asyncio.open_connection(host, port)
        back = asyncio.create_task(pour(there[0], writer))
        try:
            while data := await reader.read(65536):
                there[1].write(data)
                if left and b"COMMIT" in data:
                    left -= 1
                    back.cancel()
                    await asyncio.wait([back])
                    await there[0].read(1)  # it has committed
                    break
        finally:
            back.cancel()
            there[1].close()
            writer.close()

    async def pour(reader, writer) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as place:
        server = await asyncio.start_unix_server(carry, f"{place}/.s.PGSQL.5432")
        yield f"postgresql://{user}@/{name}?host={place}{password}"
        server.close()
        await server.wait_closed()


async def test_a_mistake_is_raised_at_once_and_untouched(claims):
    """A constraint that the user's statement violates is no reason to try again."""
    runs = []

    async def work(connection: AsyncConnection) -> None:
        runs.append(1)
        await connection.execute(text("insert into claims values (1), (1)"))

    with pytest.raises(IntegrityError):
        await transact(claims, work, sleep=at_once)
    assert 1 == len(runs)


async def test_an_error_that_was_swallowed_does_not_become_a_success(claims):
    """
    A handler catches the error of its statement and goes on. PostgreSQL would answer COMMIT
    with ROLLBACK, silently, and the event would be acknowledged and lost.
    """

    async def work(connection: AsyncConnection) -> None:
        await connection.execute(text(CLAIM), {"id": 1})
        try:
            await connection.execute(text("select 1 / 0"))
        except Exception:  # noqa: BLE001
            return

    with pytest.raises(SwallowedErrorError):
        await transact(claims, work)
    assert 0 == await number_of_claims(claims)


async def test_a_database_that_stays_away_is_said_to_be_away():
    """Bounded attempts, growing pauses, then an error that exits with 69 and tells no secret."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    engine = engine_for(f"postgresql://app@127.0.0.1:{port}/app", password="s3cret")  # noqa: S106
    pauses = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    with pytest.raises(DatabaseAwayError) as caught:
        await transact(engine, number_of_claims, attempts=4, sleep=pause, random=lambda: 1.0)
    assert [0.1, 0.2, 0.4] == pauses
    assert 69 == caught.value.exit_code
    assert "s3cret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, Exception)
    await engine.dispose()


def test_pauses_are_bounded():
    """However many attempts, no pause is longer than a second."""
    assert 1.0 == max(pause_before(attempt, random=1.0) for attempt in range(100))
    assert 0.0 == pause_before(50, random=0.0)


async def test_cancelled_work_gives_its_connection_back(database_url, monkeypatch):
    """
    Fifty deliveries whose senders hang up after 1 to 20 ms, over three connections: the next
    ones succeed, and no connection is missing (C134).
    """
    engine = engine_for(database_url, pool_size=3)

    async def work(connection: AsyncConnection) -> int:
        return await connection.scalar(text("select 1 from pg_sleep(0.01)"))

    async def hung_up(milliseconds: int) -> None:
        async with asyncio.timeout(milliseconds / 1000):
            await transact(engine, work)

    results = []
    async with asyncio.TaskGroup() as deliveries:
        for number in range(50):
            task = deliveries.create_task(swallowing(hung_up(number % 20 + 1), results))
            assert task
    assert {TimeoutError} >= {kind for kind in results if kind}
    assert TimeoutError in results
    for _ in range(3):
        assert 1 == await transact(engine, work)
    assert 0 == engine.pool.checkedout()
    await engine.dispose()


async def swallowing(work, results: list[type[BaseException] | None]) -> None:
    try:
        await work
    except TimeoutError as error:
        results.append(type(error))
    else:
        results.append(None)


async def test_cancellation_passes(claims):
    """A stop is not an error to be tried again; what was begun is rolled back."""
    begun = asyncio.Event()
    runs = []

    async def work(connection: AsyncConnection) -> None:
        runs.append(1)
        await connection.execute(text(CLAIM), {"id": 1})
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(transact(claims, work))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (1, 0) == (len(runs), await number_of_claims(claims))


async def test_a_pool_in_full_use_is_overload(database_url, monkeypatch):
    """Waiting for a connection is bounded; then it is 503, not a queue without end."""
    monkeypatch.setattr(database, "POOL_WAIT", timedelta(milliseconds=50))
    engine = engine_for(database_url, pool_size=1)
    async with engine.connect():
        with pytest.raises(DatabaseAwayError):
            await transact(engine, number_of_claims, sleep=at_once)
    await engine.dispose()


async def test_errors_repeat_no_parameters(claims):
    """Bodies and keys are parameters; what is logged and shown has none of them."""
    statement = text("select 1 / 0 where cast(:body as text) is not null")
    with pytest.raises(DBAPIError) as caught:
        await transact(claims, lambda c: c.execute(statement, {"body": "who bought what"}))
    assert "who bought what" not in str(caught.value)


# ---- is a commit a commit


async def test_a_weak_synchronous_commit_is_refused(database_url):
    """An acknowledged event could be lost in a crash: 78, with what to do (P2)."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"alter database {connection.info.dbname} set synchronous_commit = off")
    engine = engine_for(database_url)
    with pytest.raises(ConfigError) as caught:
        await database.check_durable(engine)
    assert "synchronous_commit" in str(caught.value)
    await engine.dispose()


async def test_a_server_for_tests_is_only_warned_of(database_url, cluster):
    """fsync = off survives every crash but a power cut: said, not refused."""
    with psycopg.connect(cluster) as connection:
        fsync = connection.execute("show fsync").fetchone()[0]
    engine = engine_for(database_url)
    with capture_logs() as logs:
        await database.check_durable(engine)
        await database.check_collation(engine)
    assert (["database.fsync_off"] if fsync == "off" else []) == [line["event"] for line in logs]
    await engine.dispose()


async def test_another_order_of_letters_is_warned_of(engine, database_url):
    """The system's libraries changed under the database: our keys do not care, the user's may."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "update pg_database set datcollversion = 'old' where datname = current_database()"
        )
    with capture_logs() as logs:
        await database.check_collation(engine)
    assert ["database.collation_changed"] == [line["event"] for line in logs]


async def test_a_commit_without_its_standbys_word_is_not_believed(new_directory):
    """
    An administrator cancels the wait for a synchronous standby: PostgreSQL reports success
    with a warning. We run the transaction again, which waits again, until a standby is not
    asked for any more. And whoever opens a transaction of his own, like the relay, is told.
    """
    server = embedded.start(directory := new_directory())
    engine = engine_for(server.url)
    try:
        with psycopg.connect(server.url, autocommit=True) as administrator:
            administrator.execute("create table claims (id int primary key)")
            administrator.execute("alter system set synchronous_standby_names = 'nobody'")
            await commits_wait(engine, administrator)
            runs = []

            async def work(connection: AsyncConnection) -> int:
                runs.append((await connection.execute(text(CLAIM), {"id": 1})).rowcount)
                return runs[-1]

            waiting = asyncio.create_task(transact(engine, work, sleep=at_once))
            for run in (1, 2):
                await until(lambda: is_waiting(administrator))
                assert run == len(runs)
                administrator.execute(CANCEL)
                await until(lambda r=run: len(runs) > r)
            await until(lambda: is_waiting(administrator))
            assert not waiting.done()
            administrator.execute("alter system reset synchronous_standby_names")
            administrator.execute("select pg_reload_conf()")
            assert 0 == await waiting
            assert [1, 0, 0] == runs

            administrator.execute("alter system set synchronous_standby_names = 'nobody'")
            await commits_wait(engine, administrator)
            mark = asyncio.create_task(marked(engine, id_=2))
            await until(lambda: is_waiting(administrator))
            administrator.execute(CANCEL)
            with pytest.raises(DBAPIError, match="a standby's word for the commit did not come"):
                await mark
    finally:
        await engine.dispose()
        server.stop()
        shutil.rmtree(directory)


async def marked(engine: AsyncEngine, *, id_: int) -> None:
    """A transaction as the relay makes them, without anything of ours around it."""
    async with engine.begin() as connection:
        await connection.execute(text(CLAIM), {"id": id_})


async def commits_wait(engine: AsyncEngine, administrator: psycopg.Connection) -> None:
    """Have the server read its settings, which it does when it likes, and see that it has."""
    administrator.execute("select pg_reload_conf()")
    for id_ in count(administrator.execute("select count(*) + 1000 from claims").fetchone()[0]):
        commit = asyncio.create_task(marked(engine, id_=id_))
        await until(lambda c=commit: c.done() or is_waiting(administrator))
        if not commit.done():
            administrator.execute(CANCEL)
            with pytest.raises(DBAPIError):
                await commit
            return


CANCEL = "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'"


def is_waiting(administrator: psycopg.Connection) -> bool:
    """Whether a commit waits for its standby."""
    waiting = administrator.execute("select 1 from pg_stat_activity where wait_event = 'SyncRep'")
    return waiting.fetchone() is not None


async def until(met) -> None:
    async with asyncio.timeout(30):
        while not met():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
