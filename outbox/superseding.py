"""Entries that a newer one of their lane and effect replaces before anybody has called them."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Text,
    Update,
    Uuid,
    and_,
    cast,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from outbox.entry import NewEntry
from outbox.holding import current_generation
from outbox.lanes import goes_before_by_name, goes_before_by_resource
from outbox.store import DISCARDED, PENDING, outbox, record_set

SUPERSEDED = "superseded by "  #: and the id of the entry that took its place


async def supersede(
    connection: AsyncConnection, entries: Iterable[tuple[UUID, NewEntry]]
) -> dict[UUID, UUID]:
    """
    Discard what waits before those of *entries* that supersede, in their lanes for their effect.

    What may have been sent stays, and so does what the same event asked for. One that a relay is
    just leasing is waited for, and stays if it was leased. Returns what was discarded, and which
    entry took its place. The caller owns the transaction.
    """
    superseding = [(id_, entry) for id_, entry in entries if entry.supersedes]
    named = [id_ for id_, entry in superseding if entry.lane is not None]
    ordered = [id_ for id_, entry in superseding if entry.lane is None and entry.ordered]
    replaced: dict[UUID, UUID] = {}
    for statement, ids in ((_BY_NAME, named), (_BY_RESOURCE, ordered)):
        if ids:
            rows = [{"id": str(id_)} for id_ in sorted(ids)]
            found = await statement.rows(connection, rows=rows)
            replaced |= {row.id: row.newer for row in found}
    return replaced


def _statement(goes_before: Any) -> Update:
    given = record_set("given", {"id": Uuid()})
    newer, older = outbox.alias("newer"), outbox.alias("older")
    now = current_generation("now")
    by_another = tuple_(older.c.sender, older.c.event_id) != tuple_(
        newer.c.sender, newer.c.event_id
    )
    # In the order of their ids, as attempts are marked. Locked, what was changed meanwhile is
    # judged again by what it is then.
    replaced = (
        select(older.c.id, newer.c.id.label("newer"))
        .select_from(
            given.join(newer, newer.c.id == given.c.id)
            .join(older, goes_before(older, newer))
            .outerjoin(now, true())
        )
        .where(
            older.c.effect == newer.c.effect,
            by_another,
            newer.c.state == PENDING,
            newer.c.due_at.is_not(None),
            *_never_sent(older),
            ~_of_lost_future(older, now.c),
        )
        .order_by(older.c.id)
        .with_for_update(of=older)
        .cte("replaced")
    )
    last = (
        select(replaced.c.id, replaced.c.newer)
        .ext(distinct_on(replaced.c.id))
        .order_by(replaced.c.id, replaced.c.newer.desc())
        .subquery("last")
    )
    return (
        update(outbox)
        .where(outbox.c.id == last.c.id)
        .values(
            state=DISCARDED,
            due_at=None,
            completed_at=func.clock_timestamp(),
            last_error=literal(SUPERSEDED, Text) + cast(last.c.newer, Text),
        )
        .returning(outbox.c.id, last.c.newer)
    )


def _never_sent(entry: FromClause) -> list[ColumnElement[bool]]:
    """It waits for its first call, or for that to be rendered; or what was tried was not sent."""
    return [entry.c.state == PENDING, ~entry.c.call_open, entry.c.first_attempt_at.is_(None)]


def _of_lost_future(entry: FromClause, now: Any) -> ColumnElement[bool]:
    """Whether a future that was lost may have sent it, and nobody has looked at it since."""
    unseen = or_(now.settled_at.is_(None), entry.c.due_at.is_(None))
    return func.coalesce(
        and_(now.number > 1, entry.c.created_at < now.opened_at, unseen), literal(False)
    )


_BY_NAME = Compiled(_statement(goes_before_by_name))
_BY_RESOURCE = Compiled(_statement(goes_before_by_resource))
