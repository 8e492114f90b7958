"""The database: engine, durable-commit check, and transactions that run again when they must."""

import asyncio
import os
import random as randomness
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import psycopg
import structlog
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.json import set_json_dumps, set_json_loads
from sqlalchemy import MetaData, Select, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from reconciler import exact_json
from reconciler.errors import ConfigError, DatabaseAwayError, ReconcilerError

if TYPE_CHECKING:
    from reconciler.settings.models import Settings
    from reconciler.settings.secrets import Secrets

T = TypeVar("T")

log = structlog.get_logger()

metadata = MetaData(schema="reconciler")
"""Our tables; the schema is a token that every engine translates to the configured one."""

NETWORK: Final = {
    "application_name": "reconciler",
    "connect_timeout": "3",
    "tcp_user_timeout": "3000",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "target_session_attrs": "read-write",
}
"""What a URL does not say itself: without these a client hangs for a whole network partition."""

POOL_WAIT: Final = timedelta(seconds=5)
CONNECTION_AGE: Final = timedelta(minutes=30)
IDLE_IN_TRANSACTION: Final = timedelta(seconds=60)
LOCK_WAIT: Final = timedelta(seconds=5)
BACKOFF_BASE: Final = timedelta(milliseconds=50)
BACKOFF_CAP: Final = timedelta(seconds=1)

PASSING_STATES: Final = frozenset(
    {
        "25006",  # read-only: the server became a standby under us
        "25P03",  # we were idle in a transaction for too long
        "40001",  # serialization failure
        "40P01",  # deadlock
        "53100",  # disk full
        "53200",  # out of memory
        "53300",  # too many connections
        "55P03",  # a lock was not to be had in time
        "58030",  # input/output error
    }
)
PASSING_CLASSES: Final = ("08", "57P")  # connection lost; shut down, crashed, starting up


async def connect(settings: "Settings", secrets: "Secrets", *, url: str | None = None) -> AsyncEngine:
    """
    Make the engine that *settings* describe; *url* is that of the private PostgreSQL, if it runs.

    Nothing is connected yet: the first transaction does that.
    """
    target = url or settings.database.url
    if target is None:
        raise ConfigError("database.url is absent and no private PostgreSQL runs")
    reference = settings.database.password
    password = secrets.resolve(reference) if reference and url is None else None
    return engine_for(
        target,
        schema=settings.database.schema_,
        pool_size=settings.database.pool_size,
        search_path=settings.database.search_path,
        password=password.decode() if isinstance(password, bytes) else password,
    )


def engine_for(
    url: str,
    *,
    schema: str = "reconciler",
    pool_size: int = 10,
    search_path: str | None = None,
    password: str | None = None,
) -> AsyncEngine:
    """
    An engine for the PostgreSQL at *url*, whose tables of ours live in *schema*.

    Works through PgBouncer in transaction mode: no prepared statements, no startup options.
    JSON comes back with int and Decimal, numeric as Decimal, never as float.
    """
    conninfo = conninfo_for(url, password=password)

    async def open_connection() -> ServerConnection:
        connection = await ServerConnection.connect(conninfo, prepare_threshold=None)
        set_json_loads(exact_json.parse, connection)
        set_json_dumps(exact_json.dumps, connection)
        connection.add_notice_handler(connection.notice)
        return connection

    return create_async_engine(
        "postgresql+psycopg://",
        async_creator=open_connection,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_WAIT.total_seconds(),
        pool_recycle=int(CONNECTION_AGE.total_seconds()),
        pool_use_lifo=True,
        hide_parameters=True,
        execution_options={
            "schema_translate_map": {"reconciler": schema, "outbox": schema},
            "user_search_path": search_path,
        },
    )


def schema_of(engine: AsyncEngine) -> str:
    """The schema that *engine* translates our token to."""
    translations = engine.sync_engine.get_execution_options()["schema_translate_map"]
    return str(translations["reconciler"])


def conninfo_for(url: str, *, password: str | None = None) -> str:
    """
    The libpq connection string for *url*, with our network limits where it has none.

    Takes what libpq takes, and SQLAlchemy's driver suffix and repeated `host=a:5432&host=b:5432`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.partition("+")[0] not in {"postgresql", "postgres"}:
        raise ConfigError("database.url is not a PostgreSQL URL", hint='like "postgresql:///app"')
    address, _, query = rest.partition("?")
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if pair]
    hosts = [host for name, host in pairs if name == "host"]
    if len(hosts) > 1:  # libpq would silently keep the last one
        places = [host.rpartition(":") if ":" in host else (host, ":", "5432") for host in hosts]
        pairs = [(name, value) for name, value in pairs if name not in {"host", "port"}]
        pairs += [("host", ",".join(place[0] for place in places))]
        pairs += [("port", ",".join(place[2] for place in places))]
    query = "&".join(f"{name}={value}" for name, value in pairs)
    try:
        said = conninfo_to_dict(f"postgresql://{address}" + (f"?{query}" if query else ""))
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"database.url cannot be read: {str(error).strip()}") from None
    merged: dict[str, Any] = {**NETWORK, **said}
    if password is not None:
        merged["password"] = password
    return make_conninfo("", **merged)


async def transact(
    engine: AsyncEngine,
    work: Callable[[AsyncConnection], Awaitable[T]],
    *,
    attempts: int = 5,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    random: Callable[[], float] = randomness.random,
) -> T:
    """
    Run *work* in one transaction and commit it; run it whole again when the database failed us.

    *work* may run several times and must leave no trace but in its transaction. A commit whose
    outcome is unknown is run again too: its claims are found, and nothing happens twice.
    Errors that repeating cannot cure are raised at once, untouched.

    Raises DatabaseAwayError when *attempts* are used up, or no connection came free in time.
    """
    unknown = False
    failure: Exception | None = None
    for attempt in range(attempts):
        if failure is not None:
            log.warning("database.transaction_failed", attempt=attempt, error=told(failure))
            await sleep(pause_before(attempt, random=random()))
        try:
            return await transact_once(engine, work, settle=unknown)
        except PoolTimeoutError as error:
            raise DatabaseAwayError("all database connections are in use") from error
        except Exception as error:
            if not is_transient(error):
                raise
            failure = error
            unknown = unknown or sqlstate_of(error) is None
            if sqlstate_of(error) == "25006":
                await engine.dispose()  # every pooled connection leads to that standby
    raise DatabaseAwayError(f"the database is out of reach: {told(failure)}") from failure


async def transact_once(
    engine: AsyncEngine, work: Callable[[AsyncConnection], Awaitable[T]], *, settle: bool
) -> T:
    """
    Run *work* once. With *settle* the commit waits for all that was committed before it.

    (A commit that writes nothing does not wait for a synchronous standby, so finding the claims
    of an earlier commit, whose outcome we did not learn, would not show that they are safe.)
    """
    async with engine.connect() as connection:
        try:
            async with connection.begin():
                server = await server_connection(connection)
                server.commit_unconfirmed = False
                if settle:
                    await connection.execute(
                        select(func.pg_logical_emit_message(True, "reconciler", ""))
                    )
                result = await work(connection)
                if server.info.transaction_status == TransactionStatus.INERROR:
                    # PostgreSQL would answer our COMMIT with a ROLLBACK and no error.
                    raise SwallowedErrorError
        except Exception as error:
            if is_lost(connection) and not is_transient(error):
                raise ConnectionLostError from error
            raise
        if server.commit_unconfirmed:
            await connection.invalidate()
            raise ConnectionLostError
        return result


async def server_connection(connection: AsyncConnection) -> "ServerConnection":
    """The psycopg connection under *connection*."""
    pooled = await connection.get_raw_connection()
    server = pooled.driver_connection
    assert isinstance(server, ServerConnection)
    return server


def is_lost(connection: AsyncConnection) -> bool:
    """Whether nothing can be said any more over *connection*."""
    if connection.invalidated or connection.sync_connection is None:
        return True
    server = connection.sync_connection.connection.driver_connection
    return isinstance(server, ServerConnection) and server.closed


def is_transient(error: BaseException) -> bool:
    """
    Whether the database failed us in a way that running the whole transaction again may cure.

    SQLSTATE classes from PostgreSQL's appendix A. Losing the connection has no SQLSTATE.
    """
    match error:
        case ConnectionLostError():
            return True
        case DBAPIError(connection_invalidated=True):
            return True
        case DBAPIError(orig=psycopg.Error() as cause):
            return is_transient(cause)
        case psycopg.Error(sqlstate=str(state)):
            return state in PASSING_STATES or state.startswith(PASSING_CLASSES)
        case psycopg.OperationalError():
            return True
        case _:
            return False


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE that *error* carries, if it comes from the server."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return cause.sqlstate if isinstance(cause, psycopg.Error) else None


def told(error: BaseException | None) -> str:
    """*error* in one line, without statement and parameters."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return " ".join(str(cause).split()) or type(cause).__name__


def pause_before(attempt: int, *, random: float) -> float:
    """Seconds to wait before the *attempt*-th repetition: exponential, capped, full jitter."""
    longest = min(BACKOFF_CAP, BACKOFF_BASE * 2**attempt)
    return longest.total_seconds() * random


async def prepare_transaction(
    connection: AsyncConnection,
    *,
    lock_timeout: timedelta = LOCK_WAIT,
    search_path: str | None = None,
) -> None:
    """
    Set the limits of this transaction, and the search path of the user's statements.

    Once per transaction and for it alone: PgBouncer keeps no session for us. *search_path*
    defaults to the engine's, which is the configured one.
    """
    path = search_path or connection.get_execution_options().get("user_search_path")
    limits = {
        "lock_timeout": milliseconds(lock_timeout),
        "idle_in_transaction_session_timeout": milliseconds(IDLE_IN_TRANSACTION),
        **({"search_path": path} if path else {}),
    }
    statement: Select[Any] = select(
        *(func.set_config(name, value, True) for name, value in limits.items())
    )
    await connection.execute(statement)


def milliseconds(duration: timedelta) -> str:
    return f"{max(1, duration // timedelta(milliseconds=1))}ms"


async def check_durable(engine: AsyncEngine) -> None:
    """
    See that a commit of ours is on disk, and on every synchronous standby, when it returns.

    Raises DatabaseAwayError on a standby or without a server, ConfigError where
    `synchronous_commit` is weaker than `on`. `fsync = off` is only warned of.
    """

    async def look(connection: AsyncConnection) -> tuple[bool, str, str]:
        row = await connection.execute(
            select(
                func.pg_is_in_recovery(),
                func.current_setting("synchronous_commit"),
                func.current_setting("fsync"),
            )
        )
        standby, commit, fsync = row.one()
        return standby, commit, fsync

    standby, commit, fsync = await transact(engine, look)
    if standby:
        raise DatabaseAwayError("this server is a standby: it takes no writes")
    if commit not in {"on", "remote_apply"}:
        raise ConfigError(
            f"synchronous_commit is {commit}: an acknowledged event could be lost in a crash",
            hint="alter role or database: set synchronous_commit = on",
        )
    if fsync != "on":
        log.warning("database.fsync_off", consequence="a power cut loses acknowledged events")


async def now(connection: AsyncConnection) -> datetime:
    """The database's clock at this moment, not that of the transaction's start."""
    moment = await connection.scalar(select(func.clock_timestamp()))
    assert isinstance(moment, datetime)
    return moment.astimezone(UTC)


def uuid7(
    *,
    time_ns: Callable[[], int] = time.time_ns,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> UUID:
    """A UUIDv7 (RFC 9562): 48 bits of milliseconds since 1970, then 74 random bits."""
    milliseconds_since_1970 = (time_ns() // 1_000_000) & (2**48 - 1)
    noise = int.from_bytes(random_bytes(10))
    high = milliseconds_since_1970 << 16 | 0x7000 | noise >> 68 & 0xFFF
    low = 0b10 << 62 | noise & (2**62 - 1)
    return UUID(int=high << 64 | low)


class ServerConnection(psycopg.AsyncConnection[Any]):
    """A connection that notices when a commit came back without its standby's word."""

    commit_unconfirmed: bool = False

    def notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        # "canceling wait for synchronous replication": COMMIT succeeds all the same. The text
        # is translated and the SQLSTATE is that of any warning; the place is neither.
        if diagnostic.source_function == "SyncRepWaitForLSN":
            self.commit_unconfirmed = True


class ConnectionLostError(ReconcilerError):
    """The connection broke, or a commit was not confirmed: what came of it is unknown."""

    def __init__(self) -> None:
        super().__init__("the connection to the database was lost")


class SwallowedErrorError(ReconcilerError):
    """A statement failed, and whoever sent it went on as if it had not."""

    def __init__(self) -> None:
        super().__init__(
            "a statement failed in this transaction and its error was caught: nothing can commit",
            hint="let the error of a failed statement pass, or use a savepoint",
        )
