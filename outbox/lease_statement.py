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
    Subquery,
    Text,
    Update,
    Uuid,
    and_,
    any_,
    case,
    cast,
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


def _lease_statement() -> Update:
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
            "waiting": Integer(),
            "busy": Boolean(),
            "redriven": Boolean(),
            "probe": Boolean(),
            "after": Time,
            "upto": Time,
        },
    )
    room = _room(wanted)
    found = _found(wanted, room, _due(wanted, room))
    # Materialized: run a second time, it would lock other rows than the first.
    picked = (
        select(found, func.count().over(partition_by=found.c.destination).label("kept"))
        .where(or_(found.c.nth <= found.c.slots, found.c.bytes <= AHEAD_BYTES))
        .cte("picked")
        .prefix_with("MATERIALIZED")
    )
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
            case((held.kept < held.number, held.kept), else_=held.room).label("room"),
            held.slots,
            held.attempts.label("was_attempts"),
            held.due_at.label("was_due_at"),
            held.call_open.label("was_open"),
            held.first_attempt_at.is_not(None).label("was_maybe_sent"),
            LETS_GO_SOON.label("lets_go"),
        )
    )


def these(picked: CTE) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """
    The entries whose ids were *picked*.

    Named twice: how many they are cannot be estimated, and of a join alone a planner that thinks
    of a tenth of a deep backlog reads the whole table.
    """
    ids = func.array(select(picked.c.id).scalar_subquery())
    return outbox.c.id == any_(ids), outbox.c.id == picked.c.id


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
    under_way = select(func.count()).select_from(open_calls).scalar_subquery()
    # Without a limit of the destination `most` is null, and what is free counts. Where neither a
    # slot is left nor one of ours is busy, nobody would call what is leased ahead.
    mine = func.greatest(most - under_way, 0)
    ahead = case((or_(most > under_way, wanted.c.busy), wanted.c.ahead), else_=0)
    left = case((most.is_not(None), mine + ahead))
    # Correlated by word, since SQLAlchemy does it by itself only where another FROM is left: each
    # destination would be given the room of all others too. Offset: counted once, not per entry.
    slots = case((most.is_not(None), mine), else_=wanted.c.free)
    room = select(func.least(wanted.c.free, left).label("room"), slots.label("slots"))
    return room.correlate(wanted).offset(0).lateral("room")


def _due(wanted: FromClause, room: FromClause) -> LateralFromClause:
    """The first entries that may go now, as many as there is *room* for, locked."""
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
        .limit(room.c.room)
        .with_for_update(skip_locked=True)
        .lateral("due")
    )


def _found(wanted: FromClause, room: FromClause, due: FromClause) -> Subquery:
    """What is due, with what becomes of it, and its place and its bytes among those before it."""
    state, reason = _fate(due.c, wanted.c)
    in_order = partial(
        over, partition_by=wanted.c.destination, order_by=(due.c.due_at, due.c.id), rows=(None, 0)
    )
    number = over(func.count(), partition_by=wanted.c.destination)
    return (
        select(
            due,
            *(wanted.c.destination, wanted.c.lease, wanted.c.probe, room.c.room, room.c.slots),
            state.label("fate"),
            reason.label("reason"),
            in_order(func.row_number()).label("nth"),
            in_order(func.sum(due.c.size)).label("bytes"),
            number.label("number"),
        )
        .select_from(wanted.join(room, true()).join(due, true()))
        .subquery("found")
    )


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
