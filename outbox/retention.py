"""Which events still have entries, and the removal of entries that are long over."""

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Interval,
    Text,
    Uuid,
    delete,
    false,
    func,
    literal,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import State
from outbox.forgetting import BATCH, Gone, Old, Place, forget
from outbox.lanes import has_earlier
from outbox.overtaking import may_have_gone_out
from outbox.positions import forget_lanes
from outbox.store import (
    DEAD,
    PENDING,
    UNCERTAIN,
    effect_keys,
    outbox,
    outbox_attempts,
    record_set,
)

OVER = (State.DELIVERED, State.SKIPPED, State.DISCARDED)  #: nothing can come of these any more

HasEntry = Callable[[ColumnElement[str], ColumnElement[str]], ColumnElement[bool]]


def has_entry(sender: ColumnElement[str], event_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether the event that these columns name has an entry, in whatever state."""
    entry = outbox.alias("entry")
    return select(entry.c.id).where(entry.c.sender == sender, entry.c.event_id == event_id).exists()


def has_entry_after(keep: timedelta) -> HasEntry:
    """As `has_entry`, once entries that were over longer ago than *keep* are gone."""

    def has_one(sender: ColumnElement[str], event_id: ColumnElement[str]) -> ColumnElement[bool]:
        entry = outbox.alias("entry")
        found = select(entry.c.id).where(entry.c.sender == sender, entry.c.event_id == event_id)
        return found.where(~_goes(entry, keep)).exists()

    return has_one


def _goes(entry: FromClause, keep: timedelta) -> ColumnElement[bool]:
    """Whether `purge` will remove this entry."""
    old = entry.c.completed_at < func.now() - literal(keep, Interval())
    over = entry.c.state.in_(_OVER) & func.coalesce(old, false())
    return over & ~_shows_order(entry)


def _shows_order(entry: FromClause) -> ColumnElement[bool]:
    """
    Whether it is what shows that a call that stopped before it has been overtaken.

    Without it, that one would go out behind it as soon as somebody redrives or replays it. By the
    index of what is not through in a lane, which is small however much there is that is over.
    """

    def stopped(earlier: FromClause) -> ColumnElement[bool]:
        return earlier.c.state.in_([PENDING, UNCERTAIN, DEAD])

    return may_have_gone_out(entry) & has_earlier(entry, stopped)


def old_entries(sender: str, keep: timedelta) -> Old:
    """
    Entries that were over longer ago than *keep*.

    Pending ones have no time of their end and are not even looked at, however many wait for a
    destination; dead and uncertain ones stay: a person may still act. So does what went out behind
    one of those in an ordered lane: at most the lane's, until the person has acted.
    """
    return Old(
        table=outbox,
        by="completed_at",
        keep=keep,
        among=lambda victim: [victim.c.sender == sender],
        spared=lambda victim: victim.c.state.not_in(_OVER) | _shows_order(victim),
    )


def old_keys(sender: str, keep: timedelta, *, gone: timedelta | None = None) -> Old:
    """
    Idempotency keys used longer ago than *keep*.

    Not those that name neither version nor event, which outlive their entries, and none whose
    entry is still there; with *gone*, once entries that were over so long ago are not.
    """

    def has_its_entry(victim: FromClause) -> ColumnElement[bool]:
        entry = outbox.alias("entry")
        found = select(entry.c.id).where(entry.c.id == victim.c.entry_id)
        return (found if gone is None else found.where(~_goes(entry, gone))).exists()

    return Old(
        table=effect_keys,
        by="created_at",
        keep=keep,
        among=lambda victim: [victim.c.sender == sender, ~victim.c.lasting],
        spared=has_its_entry,
    )


async def purge(
    connection: AsyncConnection,
    sender: str,
    *,
    keep: timedelta,
    after: Place | None = None,
    batch: int = BATCH,
) -> Gone:
    """Remove what may go of the next *batch* old entries, their attempts, and emptied lanes."""
    old = old_entries(sender, keep)
    gone = await forget(connection, old, after=after, batch=batch, columns=("id", "lane"))
    if gone.rows:
        rows = [{"id": str(id_)} for id_ in gone.values["id"]]
        await connection.execute(_DROP_ATTEMPTS, {"rows": rows})
        await forget_lanes(connection, {lane for lane in gone.values["lane"] if lane is not None})
    return gone


_OVER = [literal(state.value, Text) for state in OVER]
_gone = record_set("gone", {"id": Uuid()}).c
_DROP_ATTEMPTS = delete(outbox_attempts).where(outbox_attempts.c.entry_id == _gone.id)
