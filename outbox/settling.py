"""Writing down what attempts came to. Callers own the transaction."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    Boolean,
    Delete,
    Double,
    Integer,
    Text,
    Update,
    Uuid,
    and_,
    case,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.breaker import Seen
from outbox.compiled import Compiled, Written, written
from outbox.entry import State, Verdict
from outbox.picked import these
from outbox.resting import COLUMNS, Follow, rested
from outbox.store import (
    DEAD,
    DELIVERED,
    DISCARDED,
    LETS_GO,
    PENDING,
    SECOND,
    UNCERTAIN,
    Time,
    outbox,
    outbox_attempts,
    record_set,
)
from outbox.verdict import Answer, Reply

KEPT_ATTEMPTS = 100  #: of one entry, beside its first


class Mark(NamedTuple):
    """What one attempt came to, as it is written down."""

    id: UUID
    attempt: int
    started_at: datetime
    state: State
    wait: timedelta  #: until the next attempt, where the entry stays pending
    maybe_sent: bool  #: this attempt or an earlier one may have taken effect
    refusals: int
    verdict: Verdict
    status: int | None
    error: str | None
    ordered: bool  #: whether others may have waited for it
    effect: str = ""
    answer: Answer | Reply | None = None  #: kept only for what follows when it is delivered
    seen: Seen | None = None  #: what the call told of its destination
    late: bool = False  #: it has waited too long for what follows, which is not run


async def settle(
    connection: AsyncConnection, marks: Sequence[Mark], *, follow: Follow | None = None
) -> set[UUID]:
    """
    Write down what attempts came to; at most one mark an entry. The ids that took it.

    What *follow* wants of entries that come to rest is written with it.

    Only failures are fenced: one of an attempt that is not the latest, or whose entry was given
    up or redriven meanwhile, changes nothing. A success of any attempt settles the entry.
    """
    rows = [
        {
            "id": str(mark.id),
            "attempt": mark.attempt,
            "started_at": mark.started_at.isoformat(),
            "state": mark.state,
            "wait": mark.wait.total_seconds(),
            "maybe_sent": mark.maybe_sent,
            "refusals": mark.refusals,
            "verdict": mark.verdict,
            "status": mark.status,
            "error": mark.error,
        }
        for mark in sorted(marks, key=lambda mark: mark.id.int)
    ]
    told = written(rows)
    # What nothing follows is not read back but for its name.
    followed = follow is not None and any(follow.wants(one.effect, one.state) for one in marks)
    settled = await (_SETTLE_FOLLOWED if followed else _SETTLE).rows(connection, rows=told)
    taken = {row.id for row in settled}
    await record_attempts(connection, rows, told)
    if len(taken) < len(rows):
        # an attempt that came too late may have outlived its entry, and nobody would remove it
        await _FORGET_STRAYS.count(
            connection, rows=[row for row in rows if UUID(str(row["id"])) not in taken]
        )
    if follow is not None and followed:
        by_id = {mark.id: mark for mark in marks}
        resting = [
            rested(row, answer=by_id[row.id].answer, late=by_id[row.id].late)
            for row in settled
            if row.state != State.PENDING and follow.wants(row.effect, State(row.state))
        ]
        if resting:
            await follow.follow(connection, resting)
    return taken


async def record_attempts(
    connection: AsyncConnection, rows: Sequence[Mapping[str, Any]], told: Written | None = None
) -> None:
    """
    Keep what is known of attempts; one without a verdict was never answered.

    *told* are the rows as they were written for another statement.
    """
    await _RECORD_ATTEMPTS.count(connection, rows=told or list(rows))
    long = [row for row in rows if row["attempt"] > KEPT_ATTEMPTS]
    if long:
        await _FORGET_EARLY.count(connection, rows=long)


def _settle_statement(*returned: str) -> Update:
    told = record_set(
        "told",
        {
            "id": Uuid(),
            "attempt": Integer(),
            "state": Text(),
            "wait": Double(),
            "maybe_sent": Boolean(),
            "refusals": Integer(),
            "error": Text(),
        },
    )
    marks = select(told).cte("mark").prefix_with("MATERIALIZED")
    mark = marks.c
    ended = mark.state != PENDING
    unsettled = outbox.c.state.in_([PENDING, DEAD, UNCERTAIN, DISCARDED])
    success = and_(mark.state == DELIVERED, unsettled)
    # a redriven entry has its old number until it is leased again, but no call that is open
    latest = and_(outbox.c.state == PENDING, outbox.c.attempts == mark.attempt, outbox.c.call_open)
    return (
        update(outbox)
        .where(*these(marks), or_(success, latest))
        .values(
            state=mark.state,
            call_open=False,
            due_at=case((~ended, func.now() + mark.wait * SECOND)),
            first_attempt_at=case((mark.maybe_sent, outbox.c.first_attempt_at)),
            refusals=mark.refusals,
            last_error=mark.error,
            completed_at=case((ended, func.now())),
        )
        .returning(*(outbox.c[name] for name in returned), LETS_GO)
    )


def _record_attempts_statement() -> Insert:
    given = record_set(
        "given",
        {
            "id": Uuid(),
            "attempt": Integer(),
            "started_at": Time,
            "verdict": Text(),
            "status": Integer(),
            "error": Text(),
        },
    ).c
    values = {
        "entry_id": given.id,
        "attempt": given.attempt,
        "started_at": given.started_at,
        "finished_at": case((given.verdict.is_not(None), func.now())),
        "verdict": given.verdict,
        "status": given.status,
        "error": given.error,
    }
    ordered = select(*values.values()).order_by(given.id, given.attempt)
    proposed = insert(outbox_attempts).from_select(list(values), ordered)
    return proposed.on_conflict_do_update(
        index_elements=[outbox_attempts.c.entry_id, outbox_attempts.c.attempt],
        set_={
            name: proposed.excluded[name] for name in ("finished_at", "verdict", "status", "error")
        },
    )


def _forget_early_statement() -> Delete:
    """All but the first and the latest attempts of entries that are refused for weeks."""
    given = record_set("given", {"id": Uuid(), "attempt": Integer()}).c
    number = outbox_attempts.c.attempt
    return delete(outbox_attempts).where(
        outbox_attempts.c.entry_id == given.id,
        number > 1,
        number <= given.attempt - KEPT_ATTEMPTS,
    )


def _forget_strays_statement() -> Delete:
    given = record_set("given", {"id": Uuid()}).c
    entry = select(outbox.c.id).where(outbox.c.id == given.id)
    return delete(outbox_attempts).where(outbox_attempts.c.entry_id == given.id, ~entry.exists())


# Not prepared: a plan that was made while the outbox was empty would read all of it.
_SETTLE = Compiled(_settle_statement("id"))
_SETTLE_FOLLOWED = Compiled(_settle_statement(*COLUMNS))
_RECORD_ATTEMPTS = Compiled(_record_attempts_statement(), prepared=True)
_FORGET_EARLY = Compiled(_forget_early_statement())
_FORGET_STRAYS = Compiled(_forget_strays_statement())
