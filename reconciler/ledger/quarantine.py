"""Quarantine: authentic events that could not be applied, kept whole to be replayed."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    Column,
    ColumnElement,
    FromClause,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    and_,
    bindparam,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from outbox.entry import uuid7
from outbox.forgetting import Old
from reconciler.database import metadata
from reconciler.ledger.rowsets import (
    EVENT_ID,
    AnyRow,
    C,
    EventId,
    Time,
    event_rows,
    page,
    record_set,
    storable,
)

# Written out: only then can the planner see that the partial indexes apply.
OPEN: ColumnElement[str] = literal_column("'open'", Text)
LOOKED_THROUGH = 1000  #: open copies, for what they may be about
LISTED = "listed-kind"  #: the header of an item that a listing had
FAULT_LIMIT = 2000  #: characters kept of what went wrong

quarantine = Table(
    "quarantine",
    metadata,
    Column("id", Uuid, nullable=False),
    Column("sender", C, nullable=False),
    Column("event_id", C),
    Column("body_digest", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("headers", JSONB, nullable=False),
    Column("fault", Text, nullable=False),
    Column("failures", Integer, nullable=False, server_default=text("1")),
    Column("first_seen_at", Time, nullable=False, server_default=func.now()),
    Column("last_seen_at", Time, nullable=False, server_default=func.now()),
    Column("state", Text, nullable=False, server_default="open"),
    PrimaryKeyConstraint("id", name="quarantine_pkey"),
    CheckConstraint("fault <> ''", name="quarantine_fault_said"),
    CheckConstraint(
        "state in ('open','replayed','superseded','discarded')", name="quarantine_state_known"
    ),
)
_kept = quarantine.c
Index(
    "quarantine_open_idx",
    _kept.sender,
    _kept.body_digest,
    unique=True,
    postgresql_where=text("state = 'open'"),
)
Index("quarantine_event_idx", _kept.sender, _kept.event_id, postgresql_where=text("state = 'open'"))
Index("quarantine_closed_idx", _kept.last_seen_at, postgresql_where=text("state <> 'open'"))


async def keep(  # noqa: PLR0913, PLR0917 - the parts of one delivery
    connection: AsyncConnection,
    sender: str,
    raw: bytes,
    headers: Mapping[str, str],
    fault: str,
    event_id: str | None = None,
) -> int:
    """
    Keep a delivery that could not be applied; return how often it has failed by now.

    An event has one open copy, and so has a body without an event: it counts its failures and
    says the last fault. Nothing in the content can make this fail.
    """
    values = {
        "sender": sender,
        "event_id": None if event_id is None else storable(event_id),
        "body": raw,
        "headers": {storable(name): storable(value) for name, value in headers.items()},
        "fault": storable(fault)[:FAULT_LIMIT] or "unknown",
    }
    if event_id is not None:
        again = (
            update(quarantine)
            .where(_kept.sender == sender, _kept.event_id == values["event_id"])
            .where(_kept.state == "open")
            .values(failures=_kept.failures + 1, fault=values["fault"], last_seen_at=func.now())
            .returning(_kept.failures)
        )
        if found := await connection.scalar(again):
            return int(found)
    digest = hashlib.sha256(raw).hexdigest()
    if failures := await _insert(connection, values, digest):
        return failures
    # another event of the same delivery is kept under these bytes
    digest = hashlib.sha256(raw + b"\x00" + repr(event_id).encode()).hexdigest()
    return await _insert(connection, values, digest) or 1


async def _insert(
    connection: AsyncConnection, values: Mapping[str, Any], digest: str
) -> int | None:
    proposed = insert(quarantine).values(
        id=uuid7(), body_digest=digest, last_seen_at=func.now(), **values
    )
    statement = proposed.on_conflict_do_update(
        index_elements=["sender", "body_digest"],
        index_where=text("state = 'open'"),
        set_={
            "failures": _kept.failures + 1,
            "fault": proposed.excluded.fault,
            "last_seen_at": proposed.excluded.last_seen_at,
        },
        where=_kept.event_id.is_not_distinct_from(proposed.excluded.event_id),
    )
    failures: int | None = await connection.scalar(statement.returning(_kept.failures))
    return failures


async def close(connection: AsyncConnection, ids: Collection[EventId], *, state: str) -> None:
    """Close the open copies of events that were claimed at last, as *state*."""
    if ids:
        await _CLOSE.count(connection, rows=event_rows(ids), closed_as=state)


async def count_failure(connection: AsyncConnection, id_: UUID, fault: str) -> int | None:
    """Count one more failure of a copy and keep its fault; None where it is not open any more."""
    said = storable(fault)[:FAULT_LIMIT] or "unknown"
    statement = (
        update(quarantine)
        .where(_kept.id == id_, _kept.state == "open")
        .values(failures=_kept.failures + 1, fault=said, last_seen_at=func.now())
    )
    failures: int | None = await connection.scalar(statement.returning(_kept.failures))
    return failures


async def find_open(  # noqa: PLR0913 - filters
    connection: AsyncConnection,
    *,
    sender: str | None = None,
    fault: str | None = None,
    since: datetime | None = None,
    before: datetime | None = None,
    after: UUID | None = None,
    limit: int,
) -> Sequence[UUID]:
    """
    The ids of open copies in the order in which they came, beginning behind *after*.

    *fault* is part of what is said of them; *since* and *before* are held against when they
    failed last.
    """
    place, equal = None if after is None else (after,), {_kept.sender: sender}
    ids = page((_kept.id,), (_kept.id,), equal=equal, after=place, limit=limit)
    statement = ids.where(_kept.state == OPEN)
    if fault is not None:
        statement = statement.where(_kept.fault.icontains(fault, autoescape=True))
    if since is not None:
        statement = statement.where(_kept.last_seen_at >= since)
    if before is not None:
        statement = statement.where(_kept.last_seen_at < before)
    return (await connection.scalars(statement)).all()


async def naming(
    connection: AsyncConnection, sender: str, texts: Collection[bytes], *, limit: int
) -> Sequence[AnyRow]:
    """
    Open copies of *sender*, whole, whose bytes contain one of *texts*, the latest first.

    Only the latest thousand are looked through.
    """
    latest = (
        select(quarantine)
        .where(_kept.sender == sender, _kept.state == "open")
        .order_by(_kept.id.desc())
        .limit(LOOKED_THROUGH)
        .subquery("latest")
    )
    contained = [
        func.position(literal(text_, LargeBinary()).op("in")(latest.c.body)) > 0 for text_ in texts
    ]
    statement = select(latest).where(or_(*contained)).order_by(latest.c.id.desc()).limit(limit)
    return (await connection.execute(statement)).all()


async def settle(connection: AsyncConnection, id_: UUID, *, state: str) -> bool:
    """Close one copy, as `replayed`, `superseded` or `discarded`; False where it is not open."""
    statement = update(quarantine).where(_kept.id == id_, _kept.state == "open")
    return (await connection.execute(statement.values(state=state))).rowcount == 1


def old(sender: str, keep: timedelta) -> Old:
    """Closed copies that were seen last longer ago than *keep*."""
    return _old(sender, keep, is_open=False)


def old_open(sender: str, keep: timedelta) -> Old:
    """Copies that nobody has decided about, although they were seen last so long ago."""
    return _old(sender, keep, is_open=True)


def _old(sender: str, keep: timedelta, *, is_open: bool) -> Old:
    def among(victim: FromClause) -> list[ColumnElement[bool]]:
        state = victim.c.state
        return [victim.c.sender == sender, state == OPEN if is_open else state != OPEN]

    return Old(table=quarantine, by="last_seen_at", keep=keep, among=among)


async def show(connection: AsyncConnection, id_: UUID) -> AnyRow | None:
    """One copy, whole; None where there is none."""
    return (await connection.execute(select(quarantine).where(_kept.id == id_))).one_or_none()


async def of_event(connection: AsyncConnection, sender: str, event_id: str) -> AnyRow | None:
    """The latest copy of an event, an open one before others."""
    statement = (
        select(quarantine)
        .where(_kept.sender == sender, _kept.event_id == event_id)
        .order_by((_kept.state == "open").desc(), _kept.last_seen_at.desc())
        .limit(1)
    )
    return (await connection.execute(statement)).one_or_none()


async def list_quarantine(  # noqa: PLR0913 - filters
    connection: AsyncConnection,
    *,
    sender: str | None = None,
    event_id: str | None = None,
    state: str | None = None,
    after: UUID | None = None,
    limit: int = 50,
) -> Sequence[AnyRow]:
    """Copies without their bodies, the latest first; *after* is the id of the last one seen."""
    columns = [column for column in _kept if column.name not in {"body", "headers"}]
    equal = {_kept.sender: sender, _kept.event_id: event_id, _kept.state: state}
    statement = page(
        columns,
        (_kept.id,),
        equal=equal,
        after=None if after is None else (after,),
        limit=limit,
        latest_first=True,
    )
    return (await connection.execute(statement)).all()


async def last_delivery_at(connection: AsyncConnection, sender: str) -> datetime | None:
    """When a delivery was kept last that is open; what a scan has kept was not delivered."""
    scanned = or_(_kept.headers.has_key(LISTED), _kept.event_id.startswith("correction:"))
    last = select(func.max(_kept.last_seen_at)).where(_kept.sender == sender, _kept.state == OPEN)
    heard: datetime | None = await connection.scalar(last.where(scanned.is_not(True)))
    return heard


async def count_open(connection: AsyncConnection) -> dict[str, int]:
    """How many open copies there are by sender."""
    counted = select(_kept.sender, func.count()).where(_kept.state == OPEN).group_by(_kept.sender)
    return {row[0]: row[1] for row in await connection.execute(counted)}


_claimed = record_set("claimed", EVENT_ID).c
_CLOSE = Compiled(
    update(quarantine)
    .where(
        and_(_kept.sender == _claimed.sender, _kept.event_id == _claimed.event_id),
        _kept.state == "open",
    )
    .values(state=bindparam("closed_as"))
)
