"""Transactions that run again, whole, when the database failed us."""

import asyncio
import random as randomness
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar

import psycopg
import structlog
from psycopg.pq import TransactionStatus
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler import faults
from reconciler.errors import BusyError, DatabaseAwayError, ReconcilerError, TablesGoneError
from reconciler.server_connection import ServerConnection
from reconciler.server_slots import slots_of

T = TypeVar("T")

log = structlog.get_logger()

BACKOFF_BASE: Final = timedelta(milliseconds=50)
BACKOFF_CAP: Final = timedelta(seconds=1)
RETRIES_FOR: Final = timedelta(seconds=20)  #: after that no further attempt begins

STATEMENT_TOO_LONG: Final = "57014"  #: SQLSTATE: a statement was not done in time
LOCK_NOT_AVAILABLE: Final = "55P03"  #: SQLSTATE: a lock was not to be had in time

MISSING: Final = frozenset({"3F000", "42P01"})  #: SQLSTATEs: no such schema or table
#: SQLSTATEs of our statements while `pg_restore --clean` runs: it makes the keys last of all, and
#: without its key a table has nothing to be in conflict with.
GONE: Final = MISSING | {"42P10"}

PASSING_STATES: Final = frozenset(
    {
        "25006",  # read-only: the server became a standby under us
        "25P03",  # we were idle in a transaction for too long
        "26000",  # a prepared statement that a pooler left behind at another server process
        "40001",  # serialization failure
        "40P01",  # deadlock
        "42P05",  # a prepared statement that somebody else has left there
        "53100",  # disk full
        "53200",  # out of memory
        "53300",  # too many connections
        LOCK_NOT_AVAILABLE,
        STATEMENT_TOO_LONG,
        "58030",  # input/output error
    }
)
PASSING_CLASSES: Final = ("08", "57P")  # connection lost; shut down, crashed, starting up


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

    Raises DatabaseAwayError when *attempts* are used up, or no connection came free in time; and
    TablesGoneError where `expect_tables` was said of *engine* and they are not there.
    """
    unknown = False
    failure: Exception | None = None
    cancelled = cancellations()
    clock = asyncio.get_running_loop().time
    give_up_at = clock() + RETRIES_FOR.total_seconds()
    for attempt in range(attempts):
        if clock() > give_up_at:
            break
        if failure is not None:
            log.debug("database.transaction_failed", attempt=attempt, error=told(failure))
            await sleep(pause_before(attempt, random=random()))
        try:
            return await transact_once(engine, work, settle=unknown)
        except PoolTimeoutError as error:
            raise DatabaseAwayError("all database connections are in use") from error
        except Exception as error:
            if cancellations() > cancelled:  # whatever cleaning up has made of it
                raise asyncio.CancelledError from error
            if tables_are_gone(engine, error):
                raise TablesGoneError(in_short(error)) from error
            if not is_transient(error):
                raise
            failure = error
            unknown = unknown or sqlstate_of(error) is None
            if sqlstate_of(error) == "25006":
                slots_of(engine).condemn()  # every pooled connection leads to that standby
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
                server = server_connection(connection)
                if settle:
                    await connection.execute(
                        select(func.pg_logical_emit_message(True, "reconciler", ""))
                    )
                result = await work(connection)
                if server.info.transaction_status == TransactionStatus.INERROR:
                    # PostgreSQL would answer our COMMIT with a ROLLBACK and no error.
                    raise SwallowedErrorError  # noqa: TRY301
        except Exception as error:
            if is_lost(connection) and not is_transient(error):
                raise ConnectionLostError from error
            raise
        return result


def expect_tables(engine: AsyncEngine) -> None:
    """
    Say that our tables were seen in the database of *engine*.

    If they are not there later, that passes like an outage: somebody is restoring them.
    """
    engine.update_execution_options(tables_expected=True)


def tables_are_gone(engine: AsyncEngine, error: BaseException) -> bool:
    """
    Whether *error* is that of a statement of ours whose tables were there before.

    (A step of the user's that lacks a table raises an error of its own: `UserStepError`.)
    """
    expected = engine.sync_engine.get_execution_options().get("tables_expected", False)
    return bool(expected) and sqlstate_of(error) in GONE


def cancellations() -> int:
    """How often this task has been asked to end and has not yet."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


@contextmanager
def taking_up_to(connection: AsyncConnection, bound: timedelta) -> Iterator[None]:
    """
    Let each statement in the block take *bound*, where the usual seconds are not enough.

    For what is meant to take long: an index, a batch of a purge, a person's script.
    """
    with server_connection(connection).bounded(bound):
        yield


def server_connection(connection: AsyncConnection) -> "ServerConnection":
    """The psycopg connection under *connection*."""
    assert connection.sync_connection is not None
    server = connection.sync_connection.connection.driver_connection
    assert isinstance(server, ServerConnection)
    return server


def crash_in_commit(connection: AsyncConnection, name: str) -> None:
    """The crash point *name*, with COMMIT on its way; in production nothing at all."""
    if faults.armed(name):
        wire = server_connection(connection).pgconn
        wire.send_query(b"COMMIT")
        wire.flush()
        faults.point(name)


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


def is_locked_out(error: BaseException) -> bool:
    """Whether another transaction kept us from a lock until we gave up."""
    cause = error.__cause__ if isinstance(error, DatabaseAwayError) else error
    return cause is not None and sqlstate_of(cause) == LOCK_NOT_AVAILABLE


def said_to_a_person(error: Exception) -> ReconcilerError | None:
    """*error* as a command reports it where the database failed us; else None."""
    if is_locked_out(error):
        return BusyError(
            "another transaction holds a lock that this needs",
            hint="try again when that transaction has ended",
        )
    match error:
        case DatabaseAwayError():
            return error
        case PoolTimeoutError():
            return DatabaseAwayError("all database connections are in use")
        case _ if is_transient(error):
            return DatabaseAwayError(f"the database is out of reach: {told(error)}")
        case _:
            return None


def told(error: BaseException | None) -> str:
    """*error* in one line, without statement and parameters."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return " ".join(str(cause).split()) or type(cause).__name__


def in_short(error: BaseException) -> str:
    """The server's own sentence, without the place in the statement."""
    return told(error).partition(" LINE ")[0]


def pause_before(attempt: int, *, random: float) -> float:
    """Seconds to wait before the *attempt*-th repetition: exponential, capped, full jitter."""
    longest: timedelta = min(BACKOFF_CAP, BACKOFF_BASE * 2 ** min(attempt, 16))
    return longest.total_seconds() * random


class ConnectionLostError(ReconcilerError):
    """The connection broke: what came of it is unknown."""

    def __init__(self) -> None:
        super().__init__("the connection to the database was lost")


class SwallowedErrorError(ReconcilerError):
    """A statement failed, and whoever sent it went on as if it had not."""

    def __init__(self) -> None:
        super().__init__(
            "a statement failed in this transaction and its error was caught: nothing can commit",
            hint="let the error of a failed statement pass, or use a savepoint",
        )
