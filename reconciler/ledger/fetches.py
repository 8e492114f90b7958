"""Requested reads: which resources the reconciler still has to read by their `get`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Index,
    Integer,
    Interval,
    PrimaryKeyConstraint,
    Table,
    Text,
    and_,
    case,
    delete,
    func,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler.database import metadata
from reconciler.ledger.rowsets import (
    RESOURCE_ID,
    AnyRow,
    C,
    ResourceId,
    Time,
    interval,
    moment_text,
    page,
    record_set,
    storable,
)

RETRY_BASE = timedelta(seconds=2)
RETRY_CAP = timedelta(minutes=10)
ERROR_LIMIT = 500  #: characters kept of what went wrong

fetch_requests = Table(
    "fetch_requests",
    metadata,
    Column("sender", C, nullable=False),
    Column("kind", C, nullable=False),
    Column("key", C, nullable=False),
    Column("requested_at", Time, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at_least", BigInteger),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("due_at", Time, nullable=False),
    Column("last_error", Text),
    PrimaryKeyConstraint("sender", "kind", "key", name="fetch_requests_pkey"),
)
_requests = fetch_requests.c
Index("fetch_requests_due_at_idx", _requests.due_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A wish to have one resource read."""

    resource: ResourceId
    reason: str
    at_least: int | None = None  #: the version that was named: an older answer does not do
    lag: timedelta = timedelta(0)  #: how far the sender's `get` may be behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one read came to, for the requests made before it started."""

    resource: ResourceId
    started: datetime
    version: int | None  #: that the read found; None: it is gone, or there are no versions


async def request(connection: AsyncConnection, requests: Collection[Request]) -> None:
    """
    Ask for reads. Asking again renews the request, so that a read that is already under way
    does not close it, and keeps the back-off.

    Where the sender's `get` may lag, only a read that starts after the lag will do.
    """
    rows = [
        {
            "sender": resource[0],
            "kind": resource[1],
            "key": resource[2],
            "reason": storable(one.reason),
            "at_least": one.at_least,
            "lag": f"{one.lag // timedelta(microseconds=1)} microseconds",
        }
        for resource, one in sorted(_strictest(requests).items())
    ]
    if rows:
        await connection.execute(_REQUEST, {"rows": rows})


def _strictest(requests: Collection[Request]) -> dict[ResourceId, Request]:
    """One request a resource: the highest version named, for the last reason."""
    found: dict[ResourceId, Request] = {}
    for one in requests:
        before = found.get(one.resource)
        named = [each.at_least for each in (before, one) if each and each.at_least is not None]
        found[one.resource] = Request(
            resource=one.resource,
            reason=one.reason,
            at_least=max(named, default=None),
            lag=one.lag,
        )
    return found


async def lease_due(
    connection: AsyncConnection, sender: str, *, limit: int, lease: timedelta
) -> Sequence[AnyRow]:
    """
    Take up to *limit* due requests of *sender*; unless closed they are due again after *lease*.

    By sender: the requests of one that is down must not stand before those of another.

    Counts the attempt: a resource that kills its reader uses up its turns too.
    """
    due = (
        select(_requests.sender, _requests.kind, _requests.key)
        .where(_requests.sender == sender, _requests.due_at <= func.clock_timestamp())
        .order_by(_requests.due_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
        # a CTE, or the planner may lock and take more rows than the limit says
        .cte("due")
    )
    statement = (
        update(fetch_requests)
        .where(_requests.sender == due.c.sender, _requests.kind == due.c.kind)
        .where(_requests.key == due.c.key)
        .values(due_at=func.clock_timestamp() + interval(lease), attempts=_requests.attempts + 1)
        .returning(*_requests)
    )
    return (await connection.execute(statement)).all()


async def close(connection: AsyncConnection, answers: Collection[Answer]) -> set[ResourceId]:
    """
    Close the requests that *answers* satisfy; return their resources.

    That is: made before the read started, and naming no later version than it found. What stays
    is due again: at once where it was renewed meanwhile, else after a back-off.
    """
    if not answers:
        return set()
    closed = await connection.execute(_CLOSE, {"rows": _answer_rows(answers)})
    found = {(row.sender, row.kind, row.key) for row in closed}
    await put_off(connection, [answer for answer in answers if answer.resource not in found])
    return found


async def put_off(connection: AsyncConnection, answers: Collection[Answer]) -> None:
    """Keep requests that *answers* did not satisfy; see `close` for when they are due again."""
    if answers:
        await connection.execute(_PUT_OFF, {"rows": _answer_rows(answers)})


def _answer_rows(answers: Collection[Answer]) -> list[dict[str, Any]]:
    return [
        {
            "sender": answer.resource[0],
            "kind": answer.resource[1],
            "key": answer.resource[2],
            "started": moment_text(answer.started),
            "version": answer.version,
        }
        for answer in sorted(answers, key=lambda answer: answer.resource)
    ]


async def fail(
    connection: AsyncConnection,
    resource: ResourceId,
    error: str,
    *,
    wait: timedelta | None = None,
) -> None:
    """Put a read off that failed: by *wait*, else by a back-off that doubles up to a cap."""
    sender, kind, key = resource
    pause = _backed_off if wait is None else interval(wait)
    await connection.execute(
        update(fetch_requests)
        .where(_requests.sender == sender, _requests.kind == kind, _requests.key == key)
        .values(
            due_at=func.clock_timestamp() + pause,
            last_error=storable(error)[:ERROR_LIMIT] or "unknown",
        )
    )


async def forget(connection: AsyncConnection, resource: ResourceId) -> None:
    """Drop a request whatever came of it, for kinds that can no longer be read."""
    sender, kind, key = resource
    await connection.execute(
        delete(fetch_requests).where(
            _requests.sender == sender, _requests.kind == kind, _requests.key == key
        )
    )


async def list_requests(  # noqa: PLR0913 - filters
    connection: AsyncConnection,
    *,
    sender: str | None = None,
    kind: str | None = None,
    key: str | None = None,
    after: ResourceId | None = None,
    limit: int = 50,
) -> Sequence[AnyRow]:
    """Open requests in key order; *after* is (sender, kind, key) of the last one seen."""
    equal = {_requests.sender: sender, _requests.kind: kind, _requests.key: key}
    place = (_requests.sender, _requests.kind, _requests.key)
    statement = page(tuple(_requests), place, equal=equal, after=after, limit=limit)
    return (await connection.execute(statement)).all()


async def count(connection: AsyncConnection) -> int:
    return await connection.scalar(select(func.count()).select_from(fetch_requests)) or 0


_wish = record_set(
    "wish", {**RESOURCE_ID, "reason": Text(), "at_least": BigInteger(), "lag": Interval()}
).c
_proposed = insert(fetch_requests).from_select(
    ["sender", "kind", "key", "requested_at", "reason", "at_least", "due_at"],
    select(
        _wish.sender,
        _wish.kind,
        _wish.key,
        func.clock_timestamp() + _wish.lag,
        _wish.reason,
        _wish.at_least,
        func.clock_timestamp() + _wish.lag,
    ).order_by(_wish.sender, _wish.kind, _wish.key),
)
_REQUEST = _proposed.on_conflict_do_update(
    index_elements=["sender", "kind", "key"],
    set_={
        "requested_at": func.greatest(_requests.requested_at, _proposed.excluded.requested_at),
        "at_least": func.greatest(_requests.at_least, _proposed.excluded.at_least),
        "reason": _proposed.excluded.reason,
    },
)

_answer = record_set("answer", {**RESOURCE_ID, "started": Time, "version": BigInteger()}).c
_is_answered = and_(
    _requests.sender == _answer.sender,
    _requests.kind == _answer.kind,
    _requests.key == _answer.key,
)
_CLOSE = (
    delete(fetch_requests)
    .where(_is_answered, _requests.requested_at < _answer.started)
    .where(
        or_(
            _requests.at_least.is_(None),
            _answer.version.is_(None),
            _answer.version >= _requests.at_least,
        )
    )
    .returning(_requests.sender, _requests.kind, _requests.key)
)

_doublings = func.least(func.greatest(_requests.attempts, 1) - 1, 20)
_backed_off_s = func.least(
    RETRY_CAP.total_seconds(), RETRY_BASE.total_seconds() * func.power(2, _doublings)
)
_backed_off: ColumnElement[timedelta] = func.make_interval(0, 0, 0, 0, 0, 0, _backed_off_s)
_was_renewed = _requests.requested_at >= _answer.started
_PUT_OFF = (
    update(fetch_requests)
    .where(_is_answered)
    .values(
        due_at=case(
            (_was_renewed, func.greatest(_requests.requested_at, func.clock_timestamp())),
            else_=func.clock_timestamp() + _backed_off,
        ),
        attempts=case((_was_renewed, 0), else_=_requests.attempts),
        last_error=case((_was_renewed, None), else_="the read did not settle it"),
    )
)
