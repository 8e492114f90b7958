"""Order: calls about one resource to one destination happen one after the other."""

from sqlalchemy import ColumnElement, FromClause, and_, or_, select, tuple_

from outbox.store import DEAD, PENDING, UNCERTAIN, outbox


def waits_for_another(wanted: FromClause) -> ColumnElement[bool]:
    """
    Whether an earlier call for the same resource to the same destination is not through yet.

    *wanted* is the destination's limits in the statement around it (`hold`: a dead call holds
    its successors). Earlier by revision, which rises under the resource's lock, and by the
    effect's position in the configuration; where there is no revision, by the time of the
    insert. Never by our ids.
    """
    earlier = outbox.alias("earlier")
    comes_before = or_(
        and_(outbox.c.revision.is_not(None), earlier.c.revision.is_(None)),
        tuple_(earlier.c.revision, earlier.c.position)
        < tuple_(outbox.c.revision, outbox.c.position),
        and_(
            outbox.c.revision.is_(None),
            earlier.c.revision.is_(None),
            tuple_(earlier.c.created_at, earlier.c.position)
            < tuple_(outbox.c.created_at, outbox.c.position),
        ),
    )
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
            earlier.c.destination == outbox.c.destination,
            earlier.c.sender == outbox.c.sender,
            earlier.c.kind == outbox.c.kind,
            earlier.c.key == outbox.c.key,
            comes_before,
            not_through,
        )
        .correlate(outbox, wanted)
        .exists()
    )
