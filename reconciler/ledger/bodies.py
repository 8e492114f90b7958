"""Bodies: the exact bytes and headers that delivered events came with, for as long as asked."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Column, Index, LargeBinary, PrimaryKeyConstraint, Table, Text, func, select
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from outbox.forgetting import Old
from reconciler.database import metadata
from reconciler.ledger.claims import is_deferred
from reconciler.ledger.event import Event
from reconciler.ledger.rowsets import (
    EVENT_ID,
    C,
    EventId,
    Time,
    base64_text,
    event_rows,
    record_set,
)

event_bodies = Table(
    "event_bodies",
    metadata,
    Column("sender", C, nullable=False),
    Column("event_id", C, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("headers", JSONB, nullable=False),
    Column("received_at", Time, nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("sender", "event_id", name="event_bodies_pkey"),
)
Index("event_bodies_received_at_idx", event_bodies.c.received_at)


async def keep(connection: AsyncConnection, events: Iterable[Event]) -> None:
    """Keep the bytes of delivered *events*; those of an earlier claim of the id make way."""
    rows = [
        {
            "sender": event.sender,
            "event_id": event.event_id,
            "body": base64_text(event.raw),
            "headers": dict(event.headers),
        }
        for event in sorted(events, key=lambda event: (event.sender, event.event_id))
    ]
    if rows:
        await _KEEP.count(connection, rows=rows)


async def load(connection: AsyncConnection, ids: Collection[EventId]) -> "dict[EventId, Body]":
    """The bodies of those of *ids* that still have one."""
    if not ids:
        return {}
    found = await connection.execute(_LOAD, {"rows": event_rows(ids)})
    return {
        (row.sender, row.event_id): Body(raw=bytes(row.body), headers=row.headers) for row in found
    }


async def drop(connection: AsyncConnection, ids: Collection[EventId]) -> None:
    if ids:
        await connection.execute(_DROP, {"rows": event_rows(ids)})


def old(sender: str, keep: timedelta) -> Old:
    """Bodies that came longer ago than *keep*; a deferred event's stays: its facts need it."""
    return Old(
        table=event_bodies,
        by="received_at",
        keep=keep,
        among=lambda victim: [victim.c.sender == sender],
        spared=lambda victim: is_deferred(victim.c.sender, victim.c.event_id),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What came over the wire; declared secrets in the headers are masked."""

    raw: bytes
    headers: dict[str, str]


_given = record_set("given", {**EVENT_ID, "body": Text(), "headers": JSONB()}).c
_insert = insert(event_bodies).from_select(
    ["sender", "event_id", "body", "headers"],
    select(
        _given.sender, _given.event_id, func.decode(_given.body, "base64"), _given.headers
    ).order_by(_given.sender, _given.event_id),
)
_KEEP = Compiled(
    _insert.on_conflict_do_update(
        index_elements=["sender", "event_id"],
        set_={
            "body": _insert.excluded.body,
            "headers": _insert.excluded.headers,
            "received_at": _insert.excluded.received_at,
        },
    )
)

_asked = record_set("asked", EVENT_ID).c
_is_asked = (event_bodies.c.sender == _asked.sender) & (event_bodies.c.event_id == _asked.event_id)
_LOAD = select(event_bodies).where(_is_asked)
_DROP = event_bodies.delete().where(_is_asked)
