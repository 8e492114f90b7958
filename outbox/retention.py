"""Which events still have entries, and the removal of entries that are long over."""

from datetime import timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Delete,
    Interval,
    any_,
    delete,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import State
from outbox.store import effect_keys, outbox, outbox_attempts

OVER = (State.DELIVERED, State.SKIPPED, State.DISCARDED)  #: nothing can come of these any more


def has_entry(sender: ColumnElement[str], event_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether the event that these columns name has an entry, in whatever state."""
    entry = outbox.alias("entry")
    return select(entry.c.id).where(entry.c.sender == sender, entry.c.event_id == event_id).exists()


async def purge(
    connection: AsyncConnection, sender: str, *, keep: timedelta, batch: int = 10_000
) -> int:
    """
    Remove up to *batch* entries that were over longer ago than *keep*; return how many.

    Their attempts go too. Pending, dead and uncertain entries stay: a person may still act.
    """
    gone = _purge_entries(sender, keep=keep, batch=batch).returning(outbox.c.id).cte("gone")
    ids = list(await connection.scalars(select(gone.c.id)))
    if ids:
        await connection.execute(delete(outbox_attempts).where(outbox_attempts.c.entry_id.in_(ids)))
    return len(ids)


async def purge_keys(
    connection: AsyncConnection, sender: str, *, keep: timedelta, batch: int = 10_000
) -> int:
    """
    Forget up to *batch* idempotency keys used longer ago than *keep*; return how many.

    Not those that name neither version nor event, which outlive their entries, and none whose
    entry is still there.
    """
    key = effect_keys.alias("victim")
    entry = outbox.alias("entry")
    victims: Any = (
        select(literal_column("victim.ctid"))
        .select_from(key)
        .where(key.c.sender == sender, ~key.c.lasting, key.c.created_at < func.now() - _ago(keep))
        .where(~select(entry.c.id).where(entry.c.id == key.c.entry_id).exists())
        .limit(batch)
    )
    address: ColumnElement[Any] = literal_column("effect_keys.ctid")
    statement = delete(effect_keys).where(address == any_(func.array(victims.scalar_subquery())))
    return (await connection.execute(statement)).rowcount


def _purge_entries(sender: str, *, keep: timedelta, batch: int) -> Delete:
    entry = outbox.alias("victim")
    victims: Any = (
        select(literal_column("victim.ctid"))
        .select_from(entry)
        .where(entry.c.sender == sender, entry.c.state.in_([state.value for state in OVER]))
        .where(entry.c.completed_at < func.now() - _ago(keep))
        .limit(batch)
    )
    address: ColumnElement[Any] = literal_column("outbox.ctid")
    return delete(outbox).where(address == any_(func.array(victims.scalar_subquery())))


def _ago(duration: timedelta) -> ColumnElement[timedelta]:
    return literal(duration, type_=Interval())
