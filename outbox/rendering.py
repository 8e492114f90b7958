"""Entries that could not be rendered when they were asked for, and are rendered at last."""

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    RowMapping,
    Text,
    Uuid,
    and_,
    case,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from outbox.enqueue import judge_keys
from outbox.entry import Enqueued, NewEntry, State
from outbox.store import PENDING, C, outbox, record_set


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

    Keys are judged as when they are enqueued. The caller owns the transaction.
    """
    judged = await judge_keys(connection, rendered)
    rows = []
    for (id_, entry), (state, reason) in zip(rendered, judged, strict=True):
        body = None if entry.body is None else base64.b64encode(entry.body).decode("ascii")
        rows.append(
            {
                **{name: getattr(entry, name) for name in _FROM_ENTRY},
                "id": str(id_),
                "headers": dict(entry.headers),
                "body": body,
                "state": state.value,
                "last_error": reason,
            }
        )
    if rows:
        await connection.execute(_RENDER, {"rows": rows})
    return [
        Enqueued(id=id_, state=state, reason=reason, idempotency_key=entry.idempotency_key)
        for (id_, entry), (state, reason) in zip(rendered, judged, strict=True)
    ]


_FROM_ENTRY: Mapping[str, TypeEngine[Any]] = {
    "position": Integer(),
    "ordered": Boolean(),
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
).c
_is_callable = and_(_given.state == State.PENDING.value, _given.last_error.is_(None))
_values: dict[str, Any] = {
    **{name: _given[name] for name in (*_FROM_ENTRY, "headers", "state", "last_error")},
    "body": func.decode(_given.body, "base64"),
    "due_at": case((_is_callable, func.clock_timestamp())),
    "completed_at": case(
        (
            _given.state != State.PENDING.value,
            func.coalesce(outbox.c.completed_at, func.clock_timestamp()),
        )
    ),
}
_RENDER = update(outbox).where(outbox.c.id == _given.id, is_unrendered()).values(_values)
