"""Taking due entries, for as long as a lease. Callers own the transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Row,
    Update,
    and_,
    case,
    func,
    null,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.selectable import LateralFromClause

from outbox.compiled import Compiled
from outbox.entry import RESTORED, State
from outbox.lanes import waits_for_another
from outbox.resting import Follow, rested
from outbox.settling import record_attempts
from outbox.store import (
    DEAD,
    LETS_GO,
    PENDING,
    SECOND,
    UNCERTAIN,
    C,
    Time,
    outbox,
    record_set,
)
from outbox.windows import EVERYTHING, Window, bound

Columns: TypeAlias = ReadOnlyColumnCollection[str, Any]

NEVER_ANSWERED = "the last call was never answered"
KEY_LIFE_OVER = "the key's lifetime is over, and an attempt may have taken effect"
USED_UP = "attempts used up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How much may be taken for one destination, and by which of its limits."""

    destination: str
    free: int
    lease: timedelta
    hold_after_dead: bool
    max_attempts: int
    key_life: timedelta
    window: Window = EVERYTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """An entry that is ours to call, once, until its lease ends."""

    id: UUID
    sender: str
    event_id: str
    effect: str
    destination: str
    ordered: bool  #: it is in a lane: others may wait for it
    idempotent: bool
    idempotency_key: str | None
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    attempt: int  #: the number of this call, and the token that fences its failure
    tries: int  #: calls since it was enqueued or last redriven, this one included
    refusals: int
    maybe_sent: bool  #: an earlier attempt may have taken effect
    leased_at: datetime
    lease_ends: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """An entry that was due and must not be called any more."""

    id: UUID
    sender: str
    event_id: str
    effect: str
    destination: str
    state: State
    reason: str


async def lease(
    connection: AsyncConnection, wanted: Sequence[Wanted], *, follow: Follow | None = None
) -> tuple[list[Leased], list[GivenUp]]:
    """
    Take due entries; nobody else calls them until their leases end.

    What is due but has used itself up (its attempts, its key's lifetime, or a call that was
    never closed to a destination that is not idempotent) is given up in the same statement, and
    what *follow* wants of it is written with it.
    """
    rows = [
        {
            "destination": one.destination,
            "free": one.free,
            "lease": one.lease.total_seconds(),
            "hold": one.hold_after_dead,
            "max_attempts": one.max_attempts,
            "key_life": one.key_life.total_seconds(),
            **bound("after", one.window.after),
            **bound("upto", one.window.upto),
        }
        for one in wanted
    ]
    taken = await _LEASE.rows(connection, rows=rows)
    unanswered = [row for row in taken if row.was_open]
    if unanswered:
        await record_attempts(connection, [_unanswered(row) for row in unanswered])
    leased = [_leased(row) for row in taken if row.state == State.PENDING]
    over = [row for row in taken if row.state != State.PENDING]
    given_up = [_given_up(row) for row in over]
    if follow is not None and over:
        resting = [rested(row) for row in over if follow.wants(row.effect, State(row.state))]
        if resting:
            await follow.follow(connection, resting)
    return leased, given_up


def _leased(row: Row[Any]) -> Leased:
    return Leased(
        id=row.id,
        sender=row.sender,
        event_id=row.event_id,
        effect=row.effect,
        destination=row.destination,
        ordered=row.ordered or row.lane is not None,
        idempotent=row.idempotent,
        idempotency_key=row.idempotency_key,
        method=row.method or "",
        path=row.path or "",
        headers=row.headers or {},
        body=row.body or b"",
        attempt=row.attempts,
        tries=row.attempts - row.attempts_before,
        refusals=row.refusals,
        maybe_sent=row.was_maybe_sent,
        leased_at=row.leased_at,
        lease_ends=row.due_at,
    )


def _given_up(row: Row[Any]) -> GivenUp:
    return GivenUp(
        id=row.id,
        sender=row.sender,
        event_id=row.event_id,
        effect=row.effect,
        destination=row.destination,
        state=State(row.state),
        reason=row.last_error,
    )


def _unanswered(row: Row[Any]) -> dict[str, Any]:
    """The attempt before this one, which nobody closed; it began a lease before its lease ended."""
    started_at = row.was_due_at - timedelta(seconds=row.lease_seconds)
    return {
        "id": str(row.id),
        "attempt": row.was_attempts,
        "started_at": started_at.isoformat(),
        "verdict": None,
        "error": NEVER_ANSWERED,
    }


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
            "after_redriven": Boolean(),
            "after_due_at": Time,
            "upto_redriven": Boolean(),
            "upto_due_at": Time,
        },
    )
    due = _due(wanted)
    state, reason = _fate(due.c, wanted.c)
    # Materialized: run a second time, it would lock other rows than the first.
    picked = (
        select(due, wanted.c.lease, state.label("fate"), reason.label("reason"))
        .select_from(wanted.join(due, true()))
        .cte("picked")
        .prefix_with("MATERIALIZED")
    )
    held = picked.c
    goes_on = held.fate == PENDING
    return (
        update(outbox)
        .where(outbox.c.id == held.id)
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
            outbox,
            func.now().label("leased_at"),
            held.lease.label("lease_seconds"),
            held.attempts.label("was_attempts"),
            held.due_at.label("was_due_at"),
            held.call_open.label("was_open"),
            held.first_attempt_at.is_not(None).label("was_maybe_sent"),
            LETS_GO.label("lets_go"),
        )
    )


def _due(wanted: FromClause) -> LateralFromClause:
    """The first entries that may go now, as many as are *wanted* of each destination, locked."""
    place = tuple_(outbox.c.redriven, outbox.c.due_at)
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
        )
        .where(
            outbox.c.destination == wanted.c.destination,
            outbox.c.state == PENDING,
            outbox.c.due_at <= func.now(),
            place > tuple_(wanted.c.after_redriven, wanted.c.after_due_at),
            place <= tuple_(wanted.c.upto_redriven, wanted.c.upto_due_at),
            ~waits_for_another(wanted),
        )
        .order_by(outbox.c.redriven, outbox.c.due_at)
        .limit(wanted.c.free)
        .with_for_update(skip_locked=True)
        .lateral("due")
    )


def _fate(due: Columns, limits: Columns) -> tuple[ColumnElement[str], ColumnElement[str]]:
    """State and reason of an entry that is due: it goes on (pending) or has used itself up."""
    maybe_sent = due.first_attempt_at.is_not(None)
    unanswered = and_(due.call_open, ~due.idempotent)
    life_over = due.first_attempt_at + limits.key_life * SECOND <= func.now()
    used_up = due.attempts - due.attempts_before >= limits.max_attempts
    state = case(
        (or_(unanswered, life_over, and_(used_up, maybe_sent)), UNCERTAIN),
        (used_up, DEAD),
        else_=PENDING,
    )
    over = case((due.last_error == RESTORED, RESTORED), else_=KEY_LIFE_OVER)
    reason = case((unanswered, NEVER_ANSWERED), (life_over, over), else_=USED_UP)
    return state, reason


_LEASE = Compiled(_lease_statement())
