"""
Order: calls of one lane happen one after the other.

An entry is in the lane that its effect names, whatever its destination; or, at an ordered
destination and without a name, in that of the calls about its resource there; or in none.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    FromClause,
    RowMapping,
    and_,
    case,
    func,
    or_,
    select,
    true,
    tuple_,
)

from outbox.store import DEAD, PENDING, UNCERTAIN, outbox

Which = Callable[[FromClause], ColumnElement[bool]]


def waits_for_another(wanted: FromClause) -> ColumnElement[bool]:
    """
    Whether an earlier call of the same lane is not through yet.

    *wanted* is the destination's limits in the statement around it (`hold`: a dead call holds
    its successors, unless the entry itself says otherwise).
    """
    return has_earlier(outbox, lambda earlier: _is_not_through(earlier, wanted))


def first_not_through(wanted: FromClause) -> ColumnElement[UUID | None]:
    """The id of the first call of the same lane that is not through yet; null: it is its turn."""
    earlier = outbox.alias("earlier")

    def first(in_order: ColumnElement[bool], *place: ColumnElement[Any]) -> ColumnElement[UUID]:
        found = select(earlier.c.id).where(in_order, _is_not_through(earlier, wanted))
        return found.order_by(*place).limit(1).correlate_except(earlier).scalar_subquery()

    by_name = first(goes_before_by_name(earlier, outbox), earlier.c.lane_position)
    by_resource = first(
        goes_before_by_resource(earlier, outbox),
        earlier.c.revision.nulls_first(),
        case((earlier.c.revision.is_(None), earlier.c.created_at)),
        earlier.c.position,
    )
    return func.coalesce(
        case((outbox.c.lane.is_not(None), by_name)), case((outbox.c.ordered, by_resource))
    )


def _is_not_through(earlier: FromClause, wanted: FromClause) -> ColumnElement[bool]:
    # No OR: for its arms the planner would look into every index, at every lease.
    return and_(
        earlier.c.state.in_([PENDING, UNCERTAIN, DEAD]),
        case(
            (earlier.c.state == PENDING, earlier.c.due_at.is_not(None)),  # else: unrendered
            (earlier.c.state == DEAD, func.coalesce(earlier.c.hold_after_dead, wanted.c.hold)),
            else_=true(),
        ),
    )


def has_earlier(entry: FromClause, which: Which) -> ColumnElement[bool]:
    """Whether a call that goes before *entry* in its lane is as *which* says."""
    earlier = outbox.alias("earlier")
    by_resource = goes_before_by_resource(earlier, entry)
    by_name = goes_before_by_name(earlier, entry)
    return _some(entry, earlier, by_resource=by_resource, by_name=by_name, which=which(earlier))


def has_later(entry: FromClause, which: Which) -> ColumnElement[bool]:
    """Whether a call that goes behind *entry* in its lane is as *which* says."""
    later = outbox.alias("later")
    by_resource = goes_before_by_resource(entry, later)
    by_name = goes_before_by_name(entry, later)
    return _some(entry, later, by_resource=by_resource, by_name=by_name, which=which(later))


def goes_before_by_name(earlier: FromClause, later: FromClause) -> ColumnElement[bool]:
    """Whether both are in one named lane, in this order: by places given under its row's lock."""
    return and_(
        earlier.c.lane == later.c.lane,
        earlier.c.lane_position < later.c.lane_position,
    )


def goes_before_by_resource(earlier: FromClause, later: FromClause) -> ColumnElement[bool]:
    """
    Whether both are calls about one resource to one ordered destination, in this order.

    By revision, which rises under the resource's lock, and by the effect's position in the
    configuration; where there is no revision, by the time of the insert. Never by our ids.
    """
    return and_(
        earlier.c.ordered,
        later.c.ordered,
        earlier.c.destination == later.c.destination,
        earlier.c.sender == later.c.sender,
        earlier.c.kind == later.c.kind,
        earlier.c.key == later.c.key,
        or_(
            and_(later.c.revision.is_not(None), earlier.c.revision.is_(None)),
            tuple_(earlier.c.revision, earlier.c.position)
            < tuple_(later.c.revision, later.c.position),
            and_(
                later.c.revision.is_(None),
                earlier.c.revision.is_(None),
                tuple_(earlier.c.created_at, earlier.c.position)
                < tuple_(later.c.created_at, later.c.position),
            ),
        ),
    )


def is_in_lane(entry: RowMapping) -> bool:
    """Whether others may wait for an entry, or it for others."""
    return bool(entry["ordered"]) or entry["lane"] is not None


def _some(
    entry: FromClause,
    other: FromClause,
    *,
    by_resource: ColumnElement[bool],
    by_name: ColumnElement[bool],
    which: ColumnElement[bool],
) -> ColumnElement[bool]:
    """Asked for the two kinds of lanes apart: each has an index of its own."""

    def some(in_order: ColumnElement[bool]) -> ColumnElement[bool]:
        found = select(other.c.id).where(in_order, which)
        return found.correlate_except(other).exists()

    return or_(
        and_(entry.c.ordered, some(by_resource)),
        and_(entry.c.lane.is_not(None), some(by_name)),
    )
