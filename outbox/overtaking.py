"""Whether later calls of a lane went out before one that stopped."""

from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Interval,
    Uuid,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.lanes import goes_before_by_name, goes_before_by_resource, has_later
from outbox.store import DELIVERED, PENDING, outbox, record_set

# For a relay whose statement began before our commit.
HELD_BACK: ColumnElement[timedelta] = literal_column("interval '2 seconds'", Interval)


async def overtaken(connection: AsyncConnection, ids: Collection[UUID]) -> set[UUID]:
    """
    Which of *ids* are behind a later call of their lane that may have taken effect.

    What could still go is held back first, for a moment: a relay whose statement began before
    our commit would not see that it has to wait. Whoever is just leasing it is waited for.
    """
    if not ids:
        return set()
    rows = [{"id": str(id_)} for id_ in sorted(ids)]
    for hold_back in _HOLD_BACK:
        await connection.execute(hold_back, {"rows": rows})
    return set(await connection.scalars(_OVERTAKEN, {"rows": rows}))


def may_have_gone_out(entry: FromClause) -> ColumnElement[bool]:
    """Whether a call may have taken effect."""
    return or_(entry.c.state == DELIVERED, entry.c.first_attempt_at.is_not(None))


_given = record_set("given", {"id": Uuid()}).c
_head = outbox.alias("head")
_HOLD_BACK = [
    update(outbox)
    .where(_head.c.id == _given.id, goes_before(_head, outbox))
    .where(outbox.c.state == PENDING, ~outbox.c.call_open)
    .values(due_at=func.greatest(outbox.c.due_at, func.clock_timestamp() + HELD_BACK))
    for goes_before in (goes_before_by_name, goes_before_by_resource)
]
_OVERTAKEN = (
    select(_head.c.id).where(_head.c.id == _given.id).where(has_later(_head, may_have_gone_out))
)
