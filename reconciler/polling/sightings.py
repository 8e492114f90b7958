"""Since when a drift has stood: what grace is measured by where the sender gives no time."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from sqlalchemy import (
    BigInteger,
    Column,
    PrimaryKeyConstraint,
    Table,
    Text,
    case,
    delete,
    func,
    literal,
    select,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.forgetting import Old
from reconciler.database import metadata
from reconciler.ledger.rowsets import C, Time, record_set

sightings = Table(
    "sightings",
    metadata,
    Column("sender", C, nullable=False),
    Column("kind", C, nullable=False),
    Column("key", C, nullable=False),
    Column("held_version", BigInteger),
    Column("seen_at", Time, nullable=False),
    PrimaryKeyConstraint("sender", "kind", "key", name="sightings_pkey"),
)

_given = record_set("given", {"key": C, "held_version": BigInteger()})


async def see(
    connection: AsyncConnection, sender: str, kind: str, held: Mapping[str, int | None]
) -> dict[str, datetime]:
    """
    Note that these keys drift while we hold these versions; return since when they have.

    A row that has moved on since (another held version) starts anew.
    """
    if not held:
        return {}
    proposed = insert(sightings).from_select(
        ["sender", "kind", "key", "held_version", "seen_at"],
        select(
            literal(sender, Text),
            literal(kind, Text),
            _given.c.key,
            _given.c.held_version,
            func.clock_timestamp(),
        ).order_by(_given.c.key),
    )
    same = sightings.c.held_version.is_not_distinct_from(proposed.excluded.held_version)
    statement = proposed.on_conflict_do_update(
        index_elements=[sightings.c.sender, sightings.c.kind, sightings.c.key],
        set_={
            "held_version": proposed.excluded.held_version,
            "seen_at": case((same, sightings.c.seen_at), else_=proposed.excluded.seen_at),
        },
    ).returning(sightings.c.key, sightings.c.seen_at)
    rows = [{"key": key, "held_version": held[key]} for key in sorted(held)]
    return {row.key: row.seen_at for row in await connection.execute(statement, {"rows": rows})}


async def forget(
    connection: AsyncConnection, sender: str, kind: str, keys: Collection[str]
) -> None:
    """These keys have been corrected: they drift no more."""
    if keys:
        await connection.execute(
            delete(sightings).where(
                sightings.c.sender == sender,
                sightings.c.kind == kind,
                sightings.c.key == _given.c.key,
            ),
            {"rows": [{"key": key} for key in sorted(keys)]},
        )


async def of(
    connection: AsyncConnection, sender: str, kind: str, key: str, *, held: int | None
) -> datetime | None:
    """Since when a resource drifts while we hold version *held*; None where it does not."""
    statement = select(sightings.c.seen_at).where(
        sightings.c.sender == sender,
        sightings.c.kind == kind,
        sightings.c.key == key,
        sightings.c.held_version.is_not_distinct_from(held),
    )
    return await connection.scalar(statement)


def old(keep: timedelta) -> Old:
    """
    What was seen first longer ago than *keep*: of kinds that nobody scans any more.

    There are few of these rows: what drifts is corrected, and then forgotten.
    """
    return Old(table=sightings, by="seen_at", keep=keep)


async def forget_before(
    connection: AsyncConnection, sender: str, kind: str, moment: datetime
) -> None:
    """What was seen before *moment* and still drifted would have been corrected by now."""
    await connection.execute(
        delete(sightings).where(
            sightings.c.sender == sender,
            sightings.c.kind == kind,
            sightings.c.seen_at < moment,
        )
    )
