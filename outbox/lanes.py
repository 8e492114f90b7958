"""Order: calls about one resource to one destination happen one after the other."""

from sqlalchemy import ColumnElement, FromClause, and_, or_, select, tuple_

from outbox.store import DEAD, PENDING, UNCERTAIN, outbox


def waits_for_another(wanted: FromClause) -> ColumnElement[bool]:
    """
    Whether an earlier call for the same resource to the same destination is not through yet.

    *wanted* is the destination's limits in the statement around it (`hold`: a dead call holds
    its successors).
    """
    earlier = outbox.alias("earlier")
    not_through = or_(
        and_(earlier.c.state == PENDING, earlier.c.due_at.is_not(None)),  # else: unrendered
        earlier.c.state == UNCERTAIN,
        and_(earlier.c.state == DEAD, wanted.c.hold),
    )
    return (
        select(earlier.c.id)
        .where(
            earlier.c.ordered,
            earlier.c.state.in_([PENDING, UNCERTAIN, DEAD]),
            shares_lane(earlier, outbox),
            comes_before(earlier, outbox),
            not_through,
        )
        .correlate(outbox, wanted)
        .exists()
    )


def shares_lane(one: FromClause, other: FromClause) -> ColumnElement[bool]:
    """Whether two entries are calls about one resource to one destination."""
    return and_(
        one.c.destination == other.c.destination,
        one.c.sender == other.c.sender,
        one.c.kind == other.c.kind,
        one.c.key == other.c.key,
    )


def comes_before(earlier: FromClause, later: FromClause) -> ColumnElement[bool]:
    """
    Whether one entry of a lane goes before another.

    By revision, which rises under the resource's lock, and by the effect's position in the
    configuration; where there is no revision, by the time of the insert. Never by our ids.
    """
    return or_(
        and_(later.c.revision.is_not(None), earlier.c.revision.is_(None)),
        tuple_(earlier.c.revision, earlier.c.position) < tuple_(later.c.revision, later.c.position),
        and_(
            later.c.revision.is_(None),
            earlier.c.revision.is_(None),
            tuple_(earlier.c.created_at, earlier.c.position)
            < tuple_(later.c.created_at, later.c.position),
        ),
    )
