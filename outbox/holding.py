"""Holding what a future that was lost may have sent: entries that wait, and new ones like them."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Double,
    Integer,
    Update,
    Uuid,
    and_,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from outbox.entry import RESTORED, State
from outbox.generations import generations, latest
from outbox.resting import COLUMNS, Follow, rested
from outbox.store import PENDING, SECOND, UNCERTAIN, C, outbox, record_set


async def hold(  # noqa: PLR0913 - a batch, and how it is judged
    connection: AsyncConnection,
    number: int,
    *,
    key_lives: Mapping[str, timedelta],
    after: UUID | None,
    limit: int,
    follow: Follow | None = None,
) -> tuple[UUID | None, int]:
    """
    Hold what the lost future may have sent, among the next *limit* entries that are to be called.

    Where keys count, what is younger than its key's life goes out again under the same key, and
    its clock starts when the entry was made; what is older becomes `uncertain`. So does all that
    waits for a destination without keys. *key_lives* are by destination. Returns the last entry
    looked at (None: there are no more), and how many became uncertain. May be repeated. What
    *follow* wants of those that are held is written with it.
    """
    lives = [
        {"destination": name, "life": life.total_seconds()} for name, life in key_lives.items()
    ]
    rows = await _HOLD.rows(
        connection, rows=lives, number=number, after=after or UUID(int=0), limit=limit
    )
    held = sum(row.state != State.PENDING for row in rows)
    if held:
        counted = update(generations).where(generations.c.number == number)
        await connection.execute(counted.values(held=generations.c.held + held))
    if held and follow is not None:
        resting = [
            rested(row)
            for row in rows
            if row.state != State.PENDING and follow.wants(row.effect, State(row.state))
        ]
        if resting:
            await follow.follow(connection, resting)
    return max((row.id for row in rows), default=None), held


def from_lost_future(generation: Any, *, happened_at: Any, found: Any) -> Any:
    """
    Whether what is asked for may have been sent by a future that *generation* does not know.

    It happened before the restore was noticed; or nobody says when it happened, and it was
    *found* by a scan or a read that heals what went back.
    """
    restored = generation.number > 1
    undated = and_(happened_at.is_(None), found, generation.healed_at.is_(None))
    return func.coalesce(
        and_(restored, or_(happened_at < generation.opened_at, undated)), literal(False)
    )


def current_generation(name: str) -> Any:
    """The current generation, to join: no row before the first."""
    return latest().subquery(name)


def _hold_statement() -> Update:
    life = record_set("life", {"destination": C, "life": Double()})
    now = (
        select(generations.c.opened_at, generations.c.lost_since)
        .where(generations.c.number == bindparam("number", type_=Integer()))
        .subquery("now")
    )
    # Made after it was opened (by a clock that runs on): judged when they were written. Made by a
    # clock that was ahead of this one: of the lost future's past, like the others.
    older = or_(outbox.c.created_at < now.c.opened_at, outbox.c.created_at > func.clock_timestamp())
    due = (
        select(outbox.c.id, now.c.lost_since)
        .select_from(outbox.join(now, true()))
        .where(
            outbox.c.state == PENDING,
            outbox.c.due_at.is_not(None),
            older,
            outbox.c.id > bindparam("after", type_=Uuid()),
        )
        .order_by(outbox.c.id)
        .limit(bindparam("limit", type_=Integer()))
        .with_for_update(of=outbox)
        .cte("due")
        .prefix_with("MATERIALIZED")
    )
    seconds = (
        select(life.c.life).where(life.c.destination == outbox.c.destination).scalar_subquery()
    )
    # The cause is in this database: a future that is lost cannot have sent it before it was made.
    # What was made since the last mark may be made a second time: then it counts from that mark.
    first = func.coalesce(
        outbox.c.first_attempt_at, func.least(outbox.c.created_at, due.c.lost_since)
    )
    over = func.coalesce(first + seconds * SECOND <= func.now(), literal(False))
    goes_on = and_(outbox.c.idempotent, ~over)
    return (
        update(outbox)
        .where(outbox.c.id == due.c.id)
        .values(
            state=case((goes_on, PENDING), else_=UNCERTAIN),
            first_attempt_at=first,
            call_open=False,
            due_at=case((goes_on, outbox.c.due_at)),
            last_error=RESTORED,
            completed_at=case((~goes_on, func.now())),
        )
        .returning(*(outbox.c[name] for name in COLUMNS))
    )


_HOLD = Compiled(_hold_statement())
