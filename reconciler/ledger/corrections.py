"""Corrections: what the reconciler found to differ and put right."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    and_,
    func,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import uuid7
from outbox.forgetting import Old
from reconciler.database import metadata
from reconciler.ledger.guard import DriftKind
from reconciler.ledger.rowsets import (
    RESOURCE_ID,
    AnyRow,
    C,
    ResourceId,
    Time,
    page,
    record_set,
)

corrections = Table(
    "corrections",
    metadata,
    Column("id", Uuid, nullable=False),
    Column("sender", C, nullable=False),
    Column("kind", C, nullable=False),
    Column("key", C, nullable=False),
    Column("drift", Text, nullable=False),
    Column("old_version", BigInteger),
    Column("new_version", BigInteger),
    Column("differences", JSONB, nullable=False),
    Column("run_id", Uuid),
    Column("found_at", Time, nullable=False, server_default=func.now()),
    Column("event_id", C),
    Column("late_event_at", Time),
    PrimaryKeyConstraint("id", name="corrections_pkey"),
)
_made = corrections.c
Index("corrections_found_at_idx", _made.found_at)
Index("corrections_resource_idx", _made.sender, _made.kind, _made.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """One resource that was put right, and how it had differed."""

    resource: ResourceId
    drift: DriftKind
    old_version: int | None
    new_version: int | None
    differences: list[dict[str, Any]]  #: `path`, `ours`, `theirs`
    run_id: UUID | None
    event_id: str


async def record(connection: AsyncConnection, made: Sequence[Correction]) -> None:
    """Write down what was corrected."""
    rows = [
        {
            "id": str(uuid7()),
            "sender": one.resource[0],
            "kind": one.resource[1],
            "key": one.resource[2],
            "drift": one.drift.value,
            "old_version": one.old_version,
            "new_version": one.new_version,
            "differences": one.differences,
            "run_id": None if one.run_id is None else str(one.run_id),
            "event_id": one.event_id,
        }
        for one in made
    ]
    if rows:
        await connection.execute(_RECORD, {"rows": rows})


async def mark_late(connection: AsyncConnection, late: Collection[tuple[ResourceId, int]]) -> None:
    """Note on the corrections of (resource, version) that the event they stood in for came."""
    rows = [
        {"sender": sender, "kind": kind, "key": key, "version": version}
        for (sender, kind, key), version in sorted(set(late))
    ]
    if rows:
        await connection.execute(_MARK_LATE, {"rows": rows})


def old(sender: str, keep: timedelta) -> Old:
    """Corrections older than *keep*: the event that one stands in for cannot be told any more."""
    return Old(
        table=corrections,
        by="found_at",
        keep=keep,
        among=lambda victim: [victim.c.sender == sender],
    )


async def list_corrections(  # noqa: PLR0913 - filters
    connection: AsyncConnection,
    *,
    sender: str | None = None,
    kind: str | None = None,
    key: str | None = None,
    run_id: UUID | None = None,
    after: UUID | None = None,
    limit: int = 50,
) -> Sequence[AnyRow]:
    """Corrections, the latest first; *after* is the id of the last one seen."""
    statement = page(
        tuple(_made),
        (_made.id,),
        equal={_made.sender: sender, _made.kind: kind, _made.key: key, _made.run_id: run_id},
        after=None if after is None else (after,),
        limit=limit,
        latest_first=True,
    )
    return (await connection.execute(statement)).all()


async def count_since(connection: AsyncConnection, sender: str, moment: datetime) -> int:
    """How many resources of *sender* were put right after *moment*, up to a thousand."""
    some = select(_made.id).where(_made.sender == sender, _made.found_at > moment).limit(1000)
    return await connection.scalar(select(func.count()).select_from(some.subquery("some"))) or 0


async def show(connection: AsyncConnection, id_: UUID) -> AnyRow | None:
    return (await connection.execute(select(corrections).where(_made.id == id_))).one_or_none()


_TYPES = {
    "id": Uuid(),
    **RESOURCE_ID,
    "drift": Text(),
    "old_version": BigInteger(),
    "new_version": BigInteger(),
    "differences": JSONB(),
    "run_id": Uuid(),
    "event_id": C,
}
_given = record_set("given", _TYPES).c
_RECORD = insert(corrections).from_select(list(_TYPES), select(*_given).order_by(_given.id))

_late = record_set("late", {**RESOURCE_ID, "version": BigInteger()}).c
_MARK_LATE = (
    update(corrections)
    .where(
        and_(_made.sender == _late.sender, _made.kind == _late.kind, _made.key == _late.key),
        _made.new_version == _late.version,
        _made.late_event_at.is_(None),
        _made.drift != DriftKind.ABSENT.value,  # stands in for no event of that version
    )
    .values(late_event_at=func.clock_timestamp())
)
