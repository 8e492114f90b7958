"""Claims: the rows whose primary key lets an event happen once."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    FromClause,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from outbox.forgetting import Old
from reconciler.database import metadata
from reconciler.ledger.claim_rows import CLAIM_TYPES
from reconciler.ledger.event import OWN_PREFIXES, Outcome
from reconciler.ledger.rowsets import (
    EVENT_ID,
    RESOURCE_ID,
    AnyRow,
    C,
    EventId,
    ResourceId,
    Time,
    event_rows,
    moment_text,
    page,
    record_set,
)

processed_events = Table(
    "processed_events",
    metadata,
    Column("sender", C, nullable=False),
    Column("event_id", C, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("kind", C),
    Column("key", C),
    Column("version", BigInteger),
    Column("outcome", Text, nullable=False),
    Column("body_digest", Text, nullable=False),
    Column("state_digest", Text),
    Column("processed_at", Time, nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("sender", "event_id", name="processed_events_pkey"),
)
_claims = processed_events.c
Index("processed_events_processed_at_idx", _claims.processed_at)
Index("processed_events_resource_idx", _claims.sender, _claims.kind, _claims.key)


async def claim(connection: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> set[EventId]:
    """
    Claim events, in primary-key order; return those that were not claimed before.

    A twin in flight is waited for: if it rolls back, the claim is ours.
    """
    taken = await _CLAIM.rows(connection, rows=list(rows))
    return {(row.sender, row.event_id) for row in taken}


async def digests(connection: AsyncConnection, ids: Collection[EventId]) -> dict[EventId, str]:
    """The body digests of those of *ids* that are claimed."""
    found = await _DIGESTS.rows(connection, rows=event_rows(ids))
    return {(row.sender, row.event_id): row.body_digest for row in found}


async def set_outcomes(connection: AsyncConnection, outcomes: Mapping[EventId, Outcome]) -> None:
    """Write what events came to."""
    rows = [
        {"sender": sender, "event_id": event_id, "outcome": outcome.value}
        for (sender, event_id), outcome in sorted(outcomes.items())
    ]
    if rows:
        await _SET_OUTCOMES.count(connection, rows=rows)


async def unclaim(connection: AsyncConnection, ids: Collection[EventId]) -> None:
    """Take claims back: a quarantined event has none, so that a replay can claim it."""
    if ids:
        await connection.execute(_UNCLAIM, {"rows": event_rows(ids)})


async def told_before(
    connection: AsyncConnection, rows: Collection[Mapping[str, Any]], *, own: Collection[EventId]
) -> set[EventId]:
    """
    Which of *rows* (as `claim_row` makes them) tell a fact that another claim told before.

    The same fact is: delivered, of the same resource, type, version and state. `until` in a row
    is when it was claimed itself; without, every claim that is to be seen came before. *own* are
    claims that the caller judges by their order.
    """
    if not rows:
        return set()
    found = await _TOLD_BEFORE.rows(connection, rows=list(rows), own=event_rows(own))
    return {(row.sender, row.event_id) for row in found}


async def deferred(
    connection: AsyncConnection, reads: "Iterable[Telling]", *, limit: int
) -> Sequence[AnyRow]:
    """The deferred claims that *reads* have an answer for, the oldest first, locked."""
    rows = [
        {
            "sender": one.resource[0],
            "kind": one.resource[1],
            "key": one.resource[2],
            "before": moment_text(one.before),
            "up_to": one.up_to,
        }
        for one in reads
    ]
    return (await connection.execute(_DEFERRED, {"rows": rows, "limit": limit})).all()


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What one read can say about events that waited for it."""

    resource: ResourceId
    before: datetime  #: events claimed before that time
    up_to: int | None  #: that named no later version; None: whatever they named


def is_deferred(sender: ColumnElement[str], event_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether the event that these columns name still waits for a read."""
    claim = processed_events.alias("waiting")
    return (
        select(claim.c.event_id)
        .where(claim.c.sender == sender, claim.c.event_id == event_id)
        .where(claim.c.outcome == Outcome.DEFERRED.value)
        .exists()
    )


def old(
    sender: str,
    keep: timedelta,
    *,
    spared: Callable[[ColumnElement[str], ColumnElement[str]], ColumnElement[bool]],
) -> Old:
    """
    Claims older than *keep*.

    Deferred ones stay, and those for which *spared* (sender, event id) is true: a claim outlives
    its entries.
    """

    def stays(victim: FromClause) -> ColumnElement[bool]:
        waits = victim.c.outcome == Outcome.DEFERRED.value
        return or_(waits, spared(victim.c.sender, victim.c.event_id))

    return Old(
        table=processed_events,
        by="processed_at",
        keep=keep,
        among=lambda victim: [victim.c.sender == sender],
        spared=stays,
    )


async def senders(connection: AsyncConnection) -> list[str]:
    """Every sender that has claims, configured or not; as quick as there are few."""
    first = select(func.min(_claims.sender).label("sender"))
    found = first.cte("found", recursive=True)
    following = (
        select(func.min(_claims.sender)).where(_claims.sender > found.c.sender).scalar_subquery()
    )
    found = found.union_all(select(following).where(found.c.sender.is_not(None)))
    rows = await connection.scalars(select(found.c.sender).where(found.c.sender.is_not(None)))
    return list(rows)


async def show(connection: AsyncConnection, sender: str, event_id: str) -> AnyRow | None:
    """One claim; None where there is none."""
    statement = select(processed_events).where(
        _claims.sender == sender, _claims.event_id == event_id
    )
    return (await connection.execute(statement)).one_or_none()


async def list_claims(  # noqa: PLR0913 - filters
    connection: AsyncConnection,
    *,
    sender: str | None = None,
    kind: str | None = None,
    key: str | None = None,
    event_type: str | None = None,
    outcome: str | None = None,
    after: tuple[datetime, str, str] | None = None,
    limit: int = 50,
) -> Sequence[AnyRow]:
    """Claims, the latest first; *after* is (processed_at, sender, event_id) of the last seen."""
    equal = {
        _claims.sender: sender,
        _claims.kind: kind,
        _claims.key: key,
        _claims.event_type: event_type,
        _claims.outcome: outcome,
    }
    place = (_claims.processed_at, _claims.sender, _claims.event_id)
    statement = page(
        tuple(_claims), place, equal=equal, after=after, limit=limit, latest_first=True
    )
    return (await connection.execute(statement)).all()


async def count_about(
    connection: AsyncConnection, sender: str, kind: str, key: str
) -> dict[str, int]:
    """How many claims there are about one resource, by outcome."""
    statement = (
        select(_claims.outcome, func.count())
        .where(_claims.sender == sender, _claims.kind == kind, _claims.key == key)
        .group_by(_claims.outcome)
    )
    return {row[0]: row[1] for row in await connection.execute(statement)}


async def last_delivery_at(connection: AsyncConnection, sender: str) -> datetime | None:
    """When an event delivered by *sender* was claimed last."""
    statement = select(_claims.processed_at).where(_claims.sender == sender, _is_delivered)
    return await connection.scalar(statement.order_by(_claims.processed_at.desc()).limit(1))


_is_delivered = and_(*(~_claims.event_id.startswith(prefix) for prefix in OWN_PREFIXES))

_given = record_set("given", CLAIM_TYPES).c
_CLAIM = Compiled(
    insert(processed_events)
    .from_select(list(CLAIM_TYPES), select(*_given).order_by(_given.sender, _given.event_id))
    .on_conflict_do_nothing(index_elements=["sender", "event_id"])
    .returning(_claims.sender, _claims.event_id)
)

_asked = record_set("asked", {**EVENT_ID, "outcome": Text()}).c
_is_asked = and_(_claims.sender == _asked.sender, _claims.event_id == _asked.event_id)
_DIGESTS = Compiled(select(_claims.sender, _claims.event_id, _claims.body_digest).where(_is_asked))
_SET_OUTCOMES = Compiled(update(processed_events).where(_is_asked).values(outcome=_asked.outcome))
_UNCLAIM = delete(processed_events).where(_is_asked)

_fact = record_set("fact", {**CLAIM_TYPES, "until": Time}).c
_own = record_set("own", EVENT_ID, parameter="own").c
_is_own = and_(_own.sender == _claims.sender, _own.event_id == _claims.event_id)
_told = (
    select(_claims.event_id)
    .where(_claims.sender == _fact.sender, _claims.kind == _fact.kind)
    .where(_claims.key == _fact.key, _claims.event_type == _fact.event_type)
    .where(_claims.version == _fact.version, _is_delivered)
    .where(_claims.state_digest.is_not_distinct_from(_fact.state_digest))
    .where(or_(_fact.until.is_(None), _claims.processed_at <= _fact.until))
    .where(~select(_own.sender).where(_is_own).exists())
)
_TOLD_BEFORE = Compiled(select(_fact.sender, _fact.event_id).where(_told.exists()))

_read = record_set("read", {**RESOURCE_ID, "before": Time, "up_to": BigInteger()}).c
_DEFERRED = (
    select(processed_events)
    .where(_claims.sender == _read.sender, _claims.kind == _read.kind, _claims.key == _read.key)
    .where(_claims.outcome == Outcome.DEFERRED.value, _claims.processed_at < _read.before)
    .where(or_(_claims.version.is_(None), _read.up_to.is_(None), _claims.version <= _read.up_to))
    .order_by(_claims.processed_at, _claims.sender, _claims.event_id)
    .limit(bindparam("limit", type_=Integer()))
    .with_for_update(of=processed_events)
)
