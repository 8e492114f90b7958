"""Entries that could not be rendered when they were asked for, and are rendered at last."""

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Integer,
    RowMapping,
    Text,
    Uuid,
    and_,
    case,
    func,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from outbox.enqueue import judge_keys
from outbox.entry import RESTORED, Enqueued, NewEntry, State
from outbox.holding import current_generation
from outbox.positions import places_of
from outbox.store import PENDING, C, outbox, record_set
from outbox.superseding import supersede


def is_unrendered() -> ColumnElement[bool]:
    """Whether an entry has no request yet: it waits for one, or was skipped without."""
    waits = and_(outbox.c.state == PENDING, outbox.c.due_at.is_(None))
    return or_(waits, and_(outbox.c.state == State.SKIPPED.value, outbox.c.method.is_(None)))


async def unrendered(
    connection: AsyncConnection, sender: str, event_id: str
) -> Sequence[RowMapping]:
    """What one event asked for and could not be rendered, whole, in its order and locked."""
    statement = (
        select(outbox)
        .where(outbox.c.sender == sender, outbox.c.event_id == event_id, is_unrendered())
        .order_by(outbox.c.id)
        .with_for_update()
    )
    return (await connection.execute(statement)).mappings().all()


async def find_unrendered(  # noqa: PLR0913 - filters
    connection: AsyncConnection,
    *,
    sender: str | None = None,
    error: str | None = None,
    since: datetime | None = None,
    before: datetime | None = None,
    after: UUID | None = None,
    limit: int,
) -> Sequence[RowMapping]:
    """`id`, `sender` and `event_id` of such entries, in their order, beginning behind *after*."""
    statement = select(outbox.c.id, outbox.c.sender, outbox.c.event_id).where(
        outbox.c.state == PENDING, outbox.c.due_at.is_(None)
    )
    if sender is not None:
        statement = statement.where(outbox.c.sender == sender)
    if error is not None:
        statement = statement.where(outbox.c.last_error.icontains(error, autoescape=True))
    if since is not None:
        statement = statement.where(outbox.c.created_at >= since)
    if before is not None:
        statement = statement.where(outbox.c.created_at < before)
    if after is not None:
        statement = statement.where(outbox.c.id > after)
    found = await connection.execute(statement.order_by(outbox.c.id).limit(limit))
    return found.mappings().all()


async def render(
    connection: AsyncConnection, rendered: Sequence[tuple[UUID, NewEntry]]
) -> list[Enqueued]:
    """
    Freeze entries that `unrendered` has locked: what can be called is due at once.

    Keys are judged as when they are enqueued. An entry keeps its place in its lane; in a lane that
    it was not in before it goes to the end. What was asked for before the database went back may
    have been rendered, and sent, by the future that was lost: its key's clock starts then, and
    where the destination knows no keys it becomes `uncertain`. The caller owns the transaction.
    """
    judged = await judge_keys(connection, rendered)
    positions = await _positions(connection, rendered)
    rows = []
    for (id_, entry), (state, reason) in zip(rendered, judged, strict=True):
        body = None if entry.body is None else base64.b64encode(entry.body).decode("ascii")
        rows.append(
            {
                **{name: getattr(entry, name) for name in _FROM_ENTRY if name != "lane_position"},
                "id": str(id_),
                "ordered": entry.ordered and entry.lane is None,
                "lane_position": positions.get(id_),
                "headers": dict(entry.headers),
                "body": body,
                "state": state.value,
                "last_error": reason,
            }
        )
    if not rows:
        return []
    written = {row.id: row for row in await connection.execute(_RENDER, {"rows": rows})}
    await supersede(connection, [one for one in rendered if written[one[0]].last_error is None])
    return [
        Enqueued(
            id=id_,
            state=State(written[id_].state),
            reason=written[id_].last_error,
            idempotency_key=entry.idempotency_key,
        )
        for id_, entry in rendered
    ]


async def _positions(
    connection: AsyncConnection, rendered: Sequence[tuple[UUID, NewEntry]]
) -> dict[UUID, int | None]:
    """Where each goes in the lane that it names: where it was, or to the end of another."""
    if all(entry.lane is None for _, entry in rendered):
        return {}
    were = select(outbox.c.id, outbox.c.lane, outbox.c.lane_position).where(
        outbox.c.id == _given.c.id
    )
    rows = [{"id": str(id_)} for id_, _ in rendered]
    before = {row.id: row for row in await connection.execute(were, {"rows": rows})}
    positions = {
        id_: before[id_].lane_position for id_, entry in rendered if before[id_].lane == entry.lane
    }
    moved = [(id_, entry) for id_, entry in rendered if id_ not in positions]
    places = await places_of(connection, [entry for _, entry in moved])
    return positions | {id_: place for (id_, _), place in zip(moved, places, strict=True)}


_FROM_ENTRY: Mapping[str, TypeEngine[Any]] = {
    "position": Integer(),
    "ordered": Boolean(),
    "lane": C,
    "lane_position": BigInteger(),
    "hold_after_dead": Boolean(),
    "destination": C,
    "idempotency_key": C,
    "method": Text(),
    "path": Text(),
    "idempotent": Boolean(),
}
_given = record_set(
    "given",
    {
        "id": Uuid(),
        **_FROM_ENTRY,
        "headers": JSONB(),
        "body": Text(),
        "state": Text(),
        "last_error": Text(),
    },
)
_now = current_generation("now")
_source = (
    select(_given, _now.c.number, _now.c.opened_at, _now.c.lost_since)
    .select_from(_given.outerjoin(_now, true()))
    .subquery("source")
)
_is_callable = and_(_source.c.state == State.PENDING.value, _source.c.last_error.is_(None))
_maybe_sent = func.coalesce(
    and_(_is_callable, _source.c.number > 1, outbox.c.created_at < _source.c.opened_at),
    literal(False),
)
_held = and_(_maybe_sent, ~_source.c.idempotent)
_state = case((_held, State.UNCERTAIN.value), else_=_source.c.state)
_values: dict[str, Any] = {
    **{name: _source.c[name] for name in (*_FROM_ENTRY, "headers")},
    "state": _state,
    "last_error": case((_maybe_sent, RESTORED), else_=_source.c.last_error),
    "body": func.decode(_source.c.body, "base64"),
    "due_at": case((and_(_is_callable, ~_held), func.clock_timestamp())),
    "first_attempt_at": case(
        (_maybe_sent, func.coalesce(_source.c.lost_since, outbox.c.created_at)),
        else_=outbox.c.first_attempt_at,
    ),
    "completed_at": case(
        (
            _state != State.PENDING.value,
            func.coalesce(outbox.c.completed_at, func.clock_timestamp()),
        )
    ),
}
_RENDER = (
    update(outbox)
    .where(outbox.c.id == _source.c.id, is_unrendered())
    .values(_values)
    .returning(outbox.c.id, outbox.c.state, outbox.c.last_error)
)
