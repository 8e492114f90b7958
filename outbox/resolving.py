"""What is said of an unknown outcome, by a person or by the destination: delivered, or not."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from sqlalchemy import (
    Boolean,
    Double,
    Integer,
    Text,
    Update,
    Uuid,
    and_,
    case,
    func,
    null,
    or_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from outbox.entry import State
from outbox.redriving import Handled, Refusal, locked
from outbox.resting import COLUMNS, Rested, rested
from outbox.store import DEAD, DELIVERED, PENDING, SECOND, UNCERTAIN, outbox, record_set
from outbox.verdict import Answer, Reply

BY_A_PERSON = "resolved by a person"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is said of one uncertain entry."""

    id: UUID
    delivered: bool
    life: timedelta  #: of its key, from the first attempt that may have been sent
    reason: str
    max_attempts: int | None  #: its budget; None: it begins anew
    looks: int | None = None  #: with `attempts`: only if the entry is still where it was looked up
    attempts: int | None = None
    answer: Answer | Reply | None = None


async def settle_unknown(connection: AsyncConnection, said: Sequence[Said]) -> list[Rested]:
    """
    Settle entries whose outcome was unknown; those that are so no more are left alone.

    What was delivered is. What was not goes on under its key, in new attempts or in those that it
    had left; where its key's life is over (P10) it is dead, and only a new call under a new key
    remains. Where the destination knows no keys there is none to outlive. The caller owns the
    transaction.
    """
    rows = [
        {
            "id": str(one.id),
            "delivered": one.delivered,
            "life": one.life.total_seconds(),
            "reason": one.reason,
            "max_attempts": one.max_attempts,
            "looks": one.looks,
            "attempts": one.attempts,
        }
        for one in sorted(said, key=lambda one: one.id)
    ]
    if not rows:
        return []
    answers = {one.id: one.answer for one in said}
    return [
        rested(row, answer=answers[row.id]) for row in await _SETTLE.rows(connection, rows=rows)
    ]


async def resolve(
    connection: AsyncConnection,
    ids: Collection[UUID],
    *,
    delivered: bool,
    key_lives: Mapping[str, timedelta],
) -> tuple[list[Handled], dict[UUID, Rested]]:
    """
    Settle uncertain entries as a person says who found out; the others come back refused.

    *key_lives* are those of `redrive`. The caller owns the transaction. Also returned is what
    became of each. A call that is still under way and succeeds delivers its entry all the same.
    """
    handled = [_judged(one, key_lives, delivered) for one in await locked(connection, ids)]
    said = [
        Said(
            id=one.id,
            delivered=delivered,
            life=key_lives.get(one.entry["destination"], timedelta(0)),
            reason=f"{BY_A_PERSON} as {'' if delivered else 'not '}delivered",
            max_attempts=None,
        )
        for one in handled
        if one.refusal is None and one.entry is not None
    ]
    became = {one.id: one for one in await settle_unknown(connection, said)}
    assert became.keys() == {one.id for one in said}  # they are locked, and were judged
    return handled, became


def _judged(one: Handled, key_lives: Mapping[str, timedelta], delivered: bool) -> Handled:
    entry = one.entry
    if entry is None:
        return one
    if entry["state"] != State.UNCERTAIN:
        refusal = {
            State.DELIVERED: Refusal.DELIVERED,
            State.DISCARDED: Refusal.DISCARDED,
        }.get(State(entry["state"]), Refusal.NOT_UNCERTAIN)
        return replace(one, refusal=refusal)
    if not delivered and entry["destination"] not in key_lives:
        return replace(one, refusal=Refusal.NO_DESTINATION)
    return one


def _settle_statement() -> Update:
    said = record_set(
        "said",
        {
            "id": Uuid(),
            "delivered": Boolean(),
            "life": Double(),
            "reason": Text(),
            "max_attempts": Integer(),
            "looks": Integer(),
            "attempts": Integer(),
        },
    ).c
    entry = outbox.c
    lives = or_(
        ~entry.idempotent,
        entry.first_attempt_at.is_(None),
        entry.first_attempt_at + said.life * SECOND > func.clock_timestamp(),
    )
    anew = said.max_attempts.is_(None)
    left = or_(anew, entry.attempts - entry.attempts_before < said.max_attempts)
    goes_on = and_(~said.delivered, lives, left)
    state = case((said.delivered, DELIVERED), (goes_on, PENDING), else_=DEAD)
    why = case(
        (or_(said.delivered, goes_on), ""),
        (~lives, "; its key's life is over: only a new call under a new key is left"),
        else_="; attempts used up",
    )
    return (
        update(outbox)
        .where(
            entry.id == said.id,
            entry.state == UNCERTAIN,
            or_(said.looks.is_(None), entry.looks == said.looks),
            or_(said.attempts.is_(None), entry.attempts == said.attempts),
        )
        .values(
            state=state,
            due_at=case((goes_on, func.clock_timestamp())),
            call_open=False,
            attempts_before=case(
                (and_(goes_on, anew), entry.attempts), else_=entry.attempts_before
            ),
            # It had no effect: where no key counts, nothing of before counts any more.
            first_attempt_at=case(
                (or_(said.delivered, entry.idempotent), entry.first_attempt_at), else_=null()
            ),
            refusals=0,
            looks=case((goes_on, 0), else_=entry.looks),
            look_at=null(),
            last_error=said.reason + why,
            completed_at=case((goes_on, null()), else_=func.clock_timestamp()),
        )
        .returning(*(entry[name] for name in COLUMNS))
    )


_SETTLE = Compiled(_settle_statement())
