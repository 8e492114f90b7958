"""Baselines: since when each kind is followed, and whether its first full scan is complete."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, PrimaryKeyConstraint, Table, Text, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from reconciler.database import metadata
from reconciler.ledger.rowsets import C, Time, record_set

Kind = tuple[str, str]  #: sender, kind

baselines = Table(
    "baselines",
    metadata,
    Column("sender", C, nullable=False),
    Column("kind", C, nullable=False),
    Column("born_at", Time, nullable=False),
    Column("completed_at", Time),
    Column("completed_by", Text),
    PrimaryKeyConstraint("sender", "kind", name="baselines_pkey"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """One kind's birthday, and what ended the time in which it fires nothing."""

    born_at: datetime
    completed_at: datetime | None = None
    completed_by: str | None = None  #: `scan`, or `person`


async def register(connection: AsyncConnection, kinds: Iterable[Kind]) -> None:
    """Give each of *kinds* that has none its birthday: now, by the database's clock."""
    rows = [{"sender": sender, "kind": kind} for sender, kind in sorted(set(kinds))]
    if rows:
        await connection.execute(_REGISTER, {"rows": rows})


async def complete(connection: AsyncConnection, sender: str, kind: str, *, by: str) -> bool:
    """Say that a kind's baseline is complete; False where it was already."""
    statement = (
        update(baselines)
        .where(baselines.c.sender == sender, baselines.c.kind == kind)
        .where(baselines.c.completed_at.is_(None))
        .values(completed_at=func.clock_timestamp(), completed_by=by)
    )
    return (await connection.execute(statement)).rowcount == 1


async def states(
    connection: AsyncConnection, kinds: Collection[Kind] | None = None
) -> dict[Kind, Baseline]:
    """The baselines of *kinds*; of all kinds without."""
    if kinds is None:
        found: Iterable[Any] = await connection.execute(select(baselines))
    else:
        rows = [{"sender": sender, "kind": kind} for sender, kind in kinds]
        found = await _OF_KINDS.rows(connection, rows=rows)
    return {
        (row.sender, row.kind): Baseline(
            born_at=row.born_at, completed_at=row.completed_at, completed_by=row.completed_by
        )
        for row in found
    }


_born = record_set("born", {"sender": C, "kind": C}).c
_REGISTER = (
    insert(baselines)
    .from_select(
        ["sender", "kind", "born_at"],
        select(_born.sender, _born.kind, func.clock_timestamp()).order_by(_born.sender, _born.kind),
    )
    .on_conflict_do_nothing(index_elements=["sender", "kind"])
)

_asked = record_set("asked", {"sender": C, "kind": C}).c
_OF_KINDS = Compiled(
    select(baselines).where(baselines.c.sender == _asked.sender, baselines.c.kind == _asked.kind)
)
