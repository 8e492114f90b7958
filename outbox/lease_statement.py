"""The statement that takes due entries, and gives up those that have used themselves up."""

from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Select,
    Text,
    Update,
    Uuid,
    and_,
    case,
    cast,
    false,
    func,
    null,
    or_,
    over,
    select,
    true,
    update,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.selectable import LateralFromClause

from outbox.compiled import Compiled
from outbox.entry import RESTORED
from outbox.flow_tables import LETS_GO_SOON, pauses
from outbox.lanes import waits_for_another
from outbox.picked import these
from outbox.resting import COLUMNS
from outbox.store import (
    DEAD,
    PENDING,
    SECOND,
    SKIPPED,
    UNCERTAIN,
    C,
    Time,
    outbox,
    record_set,
)

# What makes up a call, beside what is told of an entry that comes to rest.
CALLED = (
    *("ordered", "lane", "idempotent", "method", "path", "body"),
    *("attempts_before", "refusals", "due_at"),
)

AHEAD_BYTES = 8 * 1024 * 1024  # of the bodies of one destination that are leased ahead

Columns: TypeAlias = ReadOnlyColumnCollection[str, Any]

NEVER_ANSWERED = "the last call was never answered"
KEY_LIFE_OVER = "the key's lifetime is over, and an attempt may have taken effect"
USED_UP = "attempts used up"
EXPIRED = "expired"
EXPIRED_MAYBE_SENT = "expired, and an attempt may have taken effect"


def _lease_statement() -> Select[Any]:
    """
    One row for each entry that was taken or given up, and one for a destination without any.

    Each says how many could be taken of its destination, and how many slots were free for us.
    """
    wanted = record_set(
        "wanted",
        {
            "destination": C,
            "free": Integer(),
            "lease": Double(),
            "hold": Boolean(),
            "max_attempts": Integer(),
            "key_life": Double(),
            "concurrency": Integer(),
            "ahead": Integer(),
            "ahead_bytes": Integer(),
            "waiting": Integer(),
            "busy": Boolean(),
            "redriven": Boolean(),
            "probe": Boolean(),
            "after": Time,
            "upto": Time,
        },
    )
    room = _room(wanted)
    # Materialized: a second time it would count otherwise, and lock other rows, than the first.
    asked = (
        select(wanted, room.c.room, room.c.slots)
        .select_from(wanted.join(room, true()))
        .cte("asked")
        .prefix_with("MATERIALIZED")
    )
    found = _found(asked).cte("found").prefix_with("MATERIALIZED")
    picked = select(found).where(_may_be_taken(found.c)).cte("picked").prefix_with("MATERIALIZED")
    taken = _taken(picked).cte("taken")
    number = (
        select(
            found.c.of,
            func.count().label("found"),
            func.count().filter(_may_be_taken(found.c)).label("taken"),
        )
        .group_by(found.c.of)
        .subquery("number")
    )
    cut = func.coalesce(number.c.taken < number.c.found, false())
    return select(
        asked.c.destination.label("of"),
        case((cut, number.c.taken), else_=asked.c.room).label("room"),
        asked.c.slots,
        cut.label("cut"),
        taken,
    ).select_from(
        asked.outerjoin(number, number.c.of == asked.c.destination).outerjoin(
            taken, taken.c.destination == asked.c.destination
        )
    )


def _may_be_taken(found: Columns) -> ColumnElement[bool]:
    """
    What has a slot; ahead of one only what may be called again, and as much as memory is meant for.

    A crash leaves it open whether what was leased has been called.
    """
    at_once = func.greatest(found.slots - found.waiting, 0)
    ahead = and_(found.all_repeatable, found.bytes <= found.ahead_bytes)
    return or_(found.nth <= at_once, ahead)


def _taken(picked: CTE) -> Update:
    held = picked.c
    goes_on = held.fate == PENDING
    return (
        update(outbox)
        .where(*these(picked))
        .values(
            state=held.fate,
            attempts=outbox.c.attempts + case((goes_on, 1), else_=0),
            call_open=goes_on,
            due_at=case((goes_on, func.now() + held.lease * SECOND)),
            first_attempt_at=func.coalesce(outbox.c.first_attempt_at, case((goes_on, func.now()))),
            last_error=case((goes_on, outbox.c.last_error), else_=held.reason),
            completed_at=case((goes_on, null()), else_=func.now()),
        )
        .returning(
            *(outbox.c[name] for name in (*COLUMNS, *CALLED)),
            cast(outbox.c.headers, Text).label("headers"),
            func.now().label("leased_at"),
            held.lease.label("lease_seconds"),
            held.probe,
            held.attempts.label("was_attempts"),
            held.due_at.label("was_due_at"),
            held.call_open.label("was_open"),
            held.first_attempt_at.is_not(None).label("was_maybe_sent"),
            LETS_GO_SOON.label("lets_go"),
        )
    )


def _room(wanted: FromClause) -> LateralFromClause:
    """
    How many may be taken: what is wanted, less than the destination takes at once in all.

    What is leased *ahead* comes on top: it is called when a call of ours ends. What is *waiting*
    so already is not under way, as the database has to think.
    """
    ended = record_set("ended", {"id": Uuid(), "attempt": Integer()}, parameter="ended")
    over = select(ended.c.id).where(ended.c.id == outbox.c.id, ended.c.attempt == outbox.c.attempts)
    # The first so many, in the index's order: whoever scans an index remembers there what is dead,
    # and would not in a bitmap, which would grow with every call of the last minute.
    most = wanted.c.concurrency + wanted.c.waiting
    open_calls = (
        select(outbox.c.id)
        .where(
            outbox.c.destination == wanted.c.destination,
            outbox.c.call_open,
            outbox.c.due_at > func.now(),
            ~over.correlate(outbox).exists(),
        )
        .order_by(outbox.c.due_at)
        .limit(most)
        .correlate(wanted)
        .subquery("open_calls")
    )
    under_way = select(func.count().label("number")).select_from(open_calls).subquery("under_way")
    # Without a limit of the destination `most` is null, and what is free counts.
    left = most - under_way.c.number
    slots = case((most.is_not(None), func.greatest(left, 0)), else_=wanted.c.free)
    # Where neither a slot is left nor one of ours is busy, nobody would call what is ahead.
    ahead = case((or_(left > 0, wanted.c.busy), wanted.c.ahead), else_=0)
    room = func.least(wanted.c.free, slots) + ahead
    # Correlated by word, since SQLAlchemy does it by itself only where another FROM is left: each
    # destination would be given the room of all others too.
    return (
        select(room.label("room"), slots.label("slots"))
        .select_from(under_way)
        .correlate(wanted)
        .lateral("room")
    )


def _due(wanted: FromClause) -> LateralFromClause:
    """The first entries that may go now, as many as there is room for, locked."""
    paused = select(pauses.c.effect).where(
        pauses.c.destination == outbox.c.destination, pauses.c.effect == outbox.c.effect
    )
    return (
        select(
            outbox.c.id,
            outbox.c.idempotent,
            outbox.c.attempts,
            outbox.c.attempts_before,
            outbox.c.call_open,
            outbox.c.due_at,
            outbox.c.first_attempt_at,
            outbox.c.last_error,
            outbox.c.expires_at,
            func.coalesce(func.octet_length(outbox.c.body), 0).label("size"),
        )
        .where(
            outbox.c.destination == wanted.c.destination,
            outbox.c.state == PENDING,
            outbox.c.redriven == wanted.c.redriven,
            outbox.c.due_at <= func.now(),
            outbox.c.due_at > wanted.c.after,
            outbox.c.due_at <= wanted.c.upto,
            ~paused.correlate(outbox).exists(),
            ~waits_for_another(wanted),
        )
        .order_by(outbox.c.due_at)
        .limit(wanted.c.room)
        .with_for_update(skip_locked=True)
        .lateral("due")
    )


def _found(asked: CTE) -> Select[Any]:
    """What is due, what becomes of it, and how it stands among those before it."""
    due = _due(asked)
    state, reason = _fate(due.c, asked.c)
    last = due.c.attempts - due.c.attempts_before + 1 >= asked.c.max_attempts
    repeatable = or_(and_(due.c.idempotent, ~last), state != PENDING)
    until = partial(
        over, partition_by=asked.c.destination, order_by=(due.c.due_at, due.c.id), rows=(None, 0)
    )
    limits = ("lease", "probe", "slots", "waiting", "ahead_bytes")
    return select(
        due,
        asked.c.destination.label("of"),
        *(asked.c[name] for name in limits),
        state.label("fate"),
        reason.label("reason"),
        until(func.row_number()).label("nth"),
        until(func.sum(due.c.size)).label("bytes"),
        until(func.bool_and(repeatable)).label("all_repeatable"),
    ).select_from(asked.join(due, true()))


def _fate(due: Columns, limits: Columns) -> tuple[ColumnElement[str], ColumnElement[str]]:
    """State and reason of an entry that is due: it goes on (pending) or has used itself up."""
    maybe_sent = due.first_attempt_at.is_not(None)
    unanswered = and_(due.call_open, ~due.idempotent)
    life_over = due.first_attempt_at + limits.key_life * SECOND <= func.now()
    used_up = due.attempts - due.attempts_before >= limits.max_attempts
    expired = due.expires_at <= func.now()
    state = case(
        (or_(unanswered, life_over, and_(or_(used_up, expired), maybe_sent)), UNCERTAIN),
        (used_up, DEAD),
        (expired, SKIPPED),
        else_=PENDING,
    )
    over = case((due.last_error == RESTORED, RESTORED), else_=KEY_LIFE_OVER)
    reason = case(
        (unanswered, NEVER_ANSWERED),
        (life_over, over),
        (used_up, USED_UP),
        (maybe_sent, EXPIRED_MAYBE_SENT),
        else_=EXPIRED,
    )
    return state, reason


LEASE = Compiled(_lease_statement(), prepared=True)
