"""Where the transaction begins and ends: a batch, or its events one by one when it fails."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import structlog
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox.entry import bounded
from reconciler import faults
from reconciler.database import prepare_transaction
from reconciler.errors import DatabaseAwayError, ReconcilerError
from reconciler.ledger import bodies
from reconciler.ledger.alerts import set_aside
from reconciler.ledger.apply import apply
from reconciler.ledger.batch import DELIVERED, Result
from reconciler.ledger.deferred import quarantine_deferred
from reconciler.ledger.event import OWN_PREFIXES, Event, Outcome
from reconciler.ledger.reactions import UserStepError
from reconciler.ledger.rules import Rules
from reconciler.transactions import LOCK_NOT_AVAILABLE, crash_in_commit, sqlstate_of, told, transact

LOCK_WAIT = timedelta(seconds=2)  #: for a twin in flight; then 503, and the sender tries again
STATEMENT_WAIT = timedelta(seconds=5)  #: for one statement of the user's; then it has failed

#: What one event alone can cause: its content, or what the user's own code makes of it.
BLAMED = (
    ReconcilerError,
    SQLAlchemyError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
CONTENT = ("22", "54")  #: SQLSTATE classes: data exceptions, limits of the server
CONSTRAINT = ("23", "44", "P0")  #: of the user's own tables, checked when the commit began

log = structlog.get_logger()


async def commit(
    engine: AsyncEngine,
    rules: Rules,
    events: Sequence[Event],
    *,
    lock_timeout: timedelta = LOCK_WAIT,
    statement_timeout: timedelta = STATEMENT_WAIT,
) -> list[Result]:
    """
    Apply *events* and commit them; one result an event, in their order.

    A batch that fails is halved until the guilty event is alone; that one goes to quarantine (or,
    held up by another transaction, comes back `busy`), and everything else is applied.

    Raises DatabaseAwayError: then nothing of what has no result is stored.
    """
    if not events:
        return []

    async def work(connection: AsyncConnection) -> list[Result]:
        await set_limits(
            connection, rules, lock_timeout=lock_timeout, statement_timeout=statement_timeout
        )
        faults.point("after-begin")
        results = await apply_unless_locked(connection, rules, events)
        faults.point("before-commit")
        crash_in_commit(connection, "commit-sent")
        return results

    try:
        results = await transact(engine, work)
    except DatabaseAwayError:
        raise
    except BLAMED as error:
        if is_ours(error):
            raise
        if len(events) == 1:
            return await blame(engine, rules, events[0], error, lock_timeout=lock_timeout)
        log.info("ledger.batch_halved", events=len(events), fault=type(error).__name__)
        wait = lock_timeout / 4 if isinstance(error, LockedError) else lock_timeout
        middle = len(events) // 2
        half = partial(
            commit, engine, rules, lock_timeout=wait, statement_timeout=statement_timeout
        )
        return await half(events[:middle]) + await half(events[middle:])
    faults.point("after-commit")
    return results


async def set_limits(
    connection: AsyncConnection,
    rules: Rules,
    *,
    lock_timeout: timedelta = LOCK_WAIT,
    statement_timeout: timedelta = STATEMENT_WAIT,
) -> None:
    """
    Say how long the transaction that applies events waits, and where the user's tables are.

    A statement of the user's that never ends is to fail, and not the connection under it: that
    looks like an outage, and the same statement would be sent again and again.
    """
    await prepare_transaction(
        connection,
        lock_timeout=lock_timeout,
        statement_timeout=statement_timeout,
        search_path=rules.search_path,
    )


async def apply_unless_locked(
    connection: AsyncConnection, rules: Rules, events: Sequence[Event]
) -> list[Result]:
    """Apply *events*; LockedError where another transaction holds for too long what one needs."""
    with unless_locked():
        return await apply(connection, rules, events)


@contextmanager
def unless_locked() -> Iterator[None]:
    """Tell a lock that is not to be had from every other trouble: LockedError."""
    try:
        yield
    except DBAPIError as error:
        if sqlstate_of(error) == LOCK_NOT_AVAILABLE:
            raise LockedError from error
        raise


async def blame(
    engine: AsyncEngine,
    rules: Rules,
    event: Event,
    error: BaseException,
    *,
    lock_timeout: timedelta,
) -> list[Result]:
    """Settle what one event alone could not be applied for."""
    if isinstance(error, LockedError):
        return [Result(event=event, outcome=Outcome.QUARANTINED, fault=str(error), busy=True)]
    fault = bounded(told(error))
    if isinstance(error, UserStepError) and is_other(error.event, event):
        await put_aside(engine, rules, error.event, fault)
        return await commit(engine, rules, [event], lock_timeout=lock_timeout)
    if event.origin not in DELIVERED:
        log.error(
            "ledger.correction_failed",
            sender=event.sender,
            kind=event.kind,
            key=event.key,
            fault=fault,
        )
        return [Result(event=event, outcome=Outcome.QUARANTINED, fault=fault, retryable=True)]

    async def keep(connection: AsyncConnection) -> int:
        failures = await set_aside(
            connection,
            rules.alerts,
            event.sender,
            event.raw,
            event.headers,
            fault,
            event.event_id,
        )
        faults.point("in-quarantine")
        return failures

    failures = await transact(engine, keep)
    by_user = isinstance(error, UserStepError) or has_class(error, CONSTRAINT)
    retryable = by_user and failures < rules.senders[event.sender].max_failures
    log.error(
        "ledger.event_quarantined",
        sender=event.sender,
        event_id=event.event_id,
        fault=fault,
        failures=failures,
        retryable=retryable,
    )
    return [Result(event=event, outcome=Outcome.QUARANTINED, fault=fault, retryable=retryable)]


async def put_aside(engine: AsyncEngine, rules: Rules, event: Event, fault: str) -> None:
    """A deferred event whose facts fail must not hold up the read that it waited for."""
    id_ = (event.sender, event.event_id)

    async def aside(connection: AsyncConnection) -> None:
        kept = await bodies.load(connection, [id_])
        await quarantine_deferred(connection, rules.alerts, id_, kept.get(id_), fault)

    await transact(engine, aside)


def is_other(guilty: Event, event: Event) -> bool:
    """Whether a deferred event failed inside the read that answered it."""
    return event.origin not in DELIVERED and not guilty.event_id.startswith(OWN_PREFIXES)


def is_ours(error: BaseException) -> bool:
    """Whether the database refused something that neither content nor the user can cause."""
    if isinstance(error, UserStepError) or not isinstance(error, DBAPIError):
        return False
    return sqlstate_of(error) is not None and not has_class(error, CONTENT + CONSTRAINT)


def has_class(error: BaseException, classes: tuple[str, ...]) -> bool:
    state = sqlstate_of(error)
    return state is not None and state.startswith(classes)


class LockedError(ReconcilerError):
    """Another transaction held what this event needs for longer than it may wait."""

    def __init__(self) -> None:
        super().__init__("another transaction is applying it, or holds its resource")
