"""The statements behind `outbox.look_leases`: which uncertain entries are looked up, and when."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Text,
    Update,
    Uuid,
    and_,
    func,
    literal_column,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

from outbox.compiled import Compiled
from outbox.flow_tables import pauses
from outbox.picked import these
from outbox.store import LOOK_DUE, SECOND, UNCERTAIN, C, Time, outbox, record_set

NEVER = literal_column("timestamptz '9000-01-01 00:00:00+00'", Time)  # a person's turn

#: of which destination, and of which effects there: only these (null: any), never those
WHICH: Mapping[str, TypeEngine[Any]] = {"destination": C, "only": JSONB(), "never": JSONB()}


def is_to_look_up(wanted: FromClause) -> list[ColumnElement[bool]]:
    """Whether an entry is due to be looked up, by what *wanted* says, and nobody paused that."""
    asks = wanted.c
    paused = select(pauses.c.effect).where(
        pauses.c.destination == outbox.c.destination, pauses.c.effect == outbox.c.effect
    )
    return [
        outbox.c.destination == asks.destination,
        outbox.c.state == UNCERTAIN,
        func.now() >= LOOK_DUE,
        outbox.c.method.is_not(None),
        or_(asks.only.is_(None), func.jsonb_exists(asks.only, outbox.c.effect)),
        ~func.jsonb_exists(asks.never, outbox.c.effect),
        ~paused.correlate(outbox).exists(),
    ]


def _take_statement() -> Update:
    wanted = record_set("wanted", {**WHICH, "lease": Double(), "free": Integer()})
    asks = wanted.c
    due = (
        select(outbox.c.id)
        .where(*is_to_look_up(wanted))
        .order_by(LOOK_DUE)
        .limit(asks.free)
        .with_for_update(skip_locked=True)
        .correlate(wanted)
        .lateral("due")
    )
    picked = (
        select(due.c.id, asks.lease)
        .select_from(wanted.join(due, true()))
        .cte("picked")
        .prefix_with("MATERIALIZED")
    )
    names = ("sender", "event_id", "effect", "part", "kind", "key", "destination")
    since = func.extract("epoch", func.now() - outbox.c.completed_at)
    return (
        update(outbox)
        .where(*these(picked))
        .values(looks=outbox.c.looks + 1, look_at=func.now() + picked.c.lease * SECOND)
        .returning(
            *(outbox.c[name] for name in ("id", *names, "idempotency_key", "body", "attempts")),
            outbox.c.looks,
            func.coalesce(since, 0.0).cast(Double).label("since"),
            func.now().label("leased_at"),
        )
    )


def _later_statement() -> Update:
    given = record_set(
        "given",
        {
            "id": Uuid(),
            "looks": Integer(),
            "attempts": Integer(),
            "wait": Double(),
            "told": Text(),
        },
    ).c
    return (
        update(outbox)
        .where(
            outbox.c.id == given.id,
            and_(outbox.c.state == UNCERTAIN, outbox.c.looks == given.looks),
            outbox.c.attempts == given.attempts,
        )
        .values(
            look_at=func.coalesce(func.now() + given.wait * SECOND, NEVER),
            last_error=func.left(func.coalesce(outbox.c.last_error, "") + given.told, 1000),
        )
    )


TAKE = Compiled(_take_statement())
LATER = Compiled(_later_statement())
