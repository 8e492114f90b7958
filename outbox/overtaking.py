"""Whether later calls about a resource went out before one that stopped."""

from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Interval,
    Uuid,
    and_,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.lanes import comes_before, shares_lane
from outbox.store import DELIVERED, PENDING, outbox, record_set

# For a relay whose statement began before our commit.
HELD_BACK: ColumnElement[timedelta] = literal_column("interval '2 seconds'", Interval)


async def overtaken(connection: AsyncConnection, ids: Collection[UUID]) -> set[UUID]:
    """
    Which of *ids* are behind a later call about their resource that may have taken effect.

    What could still go is held back first, for a moment: a relay whose statement began before
    our commit would not see that it has to wait. Whoever is just leasing it is waited for.
    """
    if not ids:
        return set()
    rows = [{"id": str(id_)} for id_ in sorted(ids)]
    await connection.execute(_HOLD_BACK, {"rows": rows})
    return set(await connection.scalars(_OVERTAKEN, {"rows": rows}))


def may_have_gone_out(entry: FromClause) -> ColumnElement[bool]:
    """Whether a call may have taken effect."""
    return or_(entry.c.state == DELIVERED, entry.c.first_attempt_at.is_not(None))


_given = record_set("given", {"id": Uuid()}).c
_head = outbox.alias("head")
_is_successor = and_(outbox.c.ordered, shares_lane(outbox, _head), comes_before(_head, outbox))
_HOLD_BACK = (
    update(outbox)
    .where(_head.c.id == _given.id, _is_successor)
    .where(outbox.c.state == PENDING, ~outbox.c.call_open)
    .values(due_at=func.greatest(outbox.c.due_at, func.clock_timestamp() + HELD_BACK))
)
_later = outbox.alias("later")
_OVERTAKEN = (
    select(_head.c.id)
    .where(_head.c.id == _given.id)
    .where(
        select(_later.c.id)
        .where(_later.c.ordered, shares_lane(_later, _head), comes_before(_head, _later))
        .where(may_have_gone_out(_later))
        .exists()
    )
)
