"""What operators look at: events and outbox entries, listed and shown whole."""

import base64
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox import store, waiting
from outbox.entry import State
from reconciler.errors import ReconcilerError, UsageError
from reconciler.ledger import bodies, claims, quarantine
from reconciler.ledger.event import Outcome
from reconciler.settings import Settings

Document = dict[str, Any]


async def list_events(
    connection: AsyncConnection,
    *,
    equal: Mapping[str, str],
    limit: int,
    after: str | None = None,
) -> Document:
    """
    Events, the latest first: claims, or with outcome `quarantined` what quarantine keeps.

    `next` is what *after* wants for the page behind this one, or None.
    """
    if equal.get("outcome") == Outcome.QUARANTINED:
        return await list_quarantined(connection, equal=equal, limit=limit, after=after)
    rows = await claims.list_claims(
        connection, **equal, after=event_place(after) if after else None, limit=limit + 1
    )
    items = [event_item(row._mapping) for row in rows[:limit]]  # noqa: SLF001 - SQLAlchemy's name
    last = rows[limit - 1] if len(rows) > limit else None
    following = event_word(last.processed_at, last.sender, last.event_id) if last else None
    return {"items": items, "next": following}


async def list_quarantined(
    connection: AsyncConnection, *, equal: Mapping[str, str], limit: int, after: str | None
) -> Document:
    if unknown := sorted(equal.keys() - {"sender", "event_id", "outcome"}):
        raise UsageError(
            f"what is in quarantine has no {' and no '.join(unknown)} to be listed by",
            hint="`events list --outcome quarantined --sender NAME`",
        )
    narrowed = {name: value for name, value in equal.items() if name in {"sender", "event_id"}}
    rows = await quarantine.list_quarantine(
        connection,
        **narrowed,
        state="open",
        after=quarantine_place(after) if after else None,
        limit=limit + 1,
    )
    items = [{**row._mapping, "outcome": "quarantined"} for row in rows[:limit]]  # noqa: SLF001
    return {"items": items, "next": str(rows[limit - 1].id) if len(rows) > limit else None}


def event_word(moment: datetime, sender: str, event_id: str) -> str:
    """
    Write the `next` behind an event: a shell leaves it alone, whatever the sender called it.

    >>> from datetime import UTC
    >>> event_word(datetime(2026, 12, 1, tzinfo=UTC), "shop", "it's")
    '2026-12-01T00:00:00+00:00%20shop%20it%27s'
    """
    return quote(f"{moment.isoformat()} {sender} {event_id}", safe=":+")


def event_place(text: str) -> tuple[datetime, str, str]:
    """Read the `next` of an earlier page. Raises UsageError."""
    moment, _, rest = unquote(text).partition(" ")
    sender, _, event_id = rest.partition(" ")
    try:
        return datetime.fromisoformat(moment), sender, event_id
    except ValueError:
        raise _no_place(text) from None


def quarantine_place(text: str) -> UUID:
    """Read the `next` of an earlier page of quarantine. Raises UsageError."""
    try:
        return UUID(text)
    except ValueError:
        raise _no_place(text) from None


def _no_place(text: str) -> UsageError:
    return UsageError(f"--after {text!r} is not the `next` of an earlier page")


def event_item(row: RowMapping) -> Document:
    return {**row, "version": None if row["version"] is None else str(row["version"])}


async def show_event(connection: AsyncConnection, sender: str, event_id: str) -> Document:
    """One event whole: its claim or its copy in quarantine, its bytes, what it asked for."""
    claim = await claims.show(connection, sender, event_id)
    kept = await quarantine.of_event(connection, sender, event_id)
    if claim is None and kept is None:
        raise ReconcilerError(
            f"no event {event_id!r} of {sender!r} is known",
            hint=f"`reconciler events list --sender {sender}` shows the latest ones",
        )
    stored = await bodies.load(connection, [(sender, event_id)])
    body = stored.get((sender, event_id))
    whole: Document = (
        event_item(claim._mapping)  # noqa: SLF001
        if claim is not None
        else {"sender": sender, "event_id": event_id, "outcome": "quarantined"}
    )
    raw = body.raw if body is not None else kept.body if kept is not None else None
    headers = body.headers if body is not None else kept.headers if kept is not None else None
    entries = await store.list_entries(
        connection, about={"sender": sender, "event_id": event_id}, limit=100
    )
    return {
        **whole,
        "body_base64": None if raw is None else base64.b64encode(raw).decode(),
        "headers": headers,
        "quarantine": None
        if kept is None
        else {
            name: value
            for name, value in kept._mapping.items()  # noqa: SLF001
            if name not in {"body", "headers"}
        },
        "outbox": [entry_item(entry) for entry in entries],
    }


def holding(settings: Settings) -> list[str]:
    """Destinations where a dead entry holds those behind it."""
    return [name for name, one in settings.destinations.items() if one.after_dead == "hold"]


async def list_outbox(  # noqa: PLR0913 - filters
    connection: AsyncConnection,
    *,
    state: State | None,
    about: Mapping[str, Any],
    limit: int,
    after: str | None = None,
    holding: Collection[str] = (),
) -> Document:
    """
    Outbox entries, newest first, without their bodies, and what each waits for.

    *holding* are destinations where a dead entry holds those behind it.
    """
    rows = await store.list_entries(
        connection,
        state=state,
        about=about,
        limit=limit + 1,
        after=entry_id(after) if after else None,
    )
    following = str(rows[limit - 1]["id"]) if len(rows) > limit else None
    items = await with_waiting(connection, rows[:limit], holding=holding)
    return {"items": items, "next": following}


async def with_waiting(
    connection: AsyncConnection, rows: Sequence[RowMapping], *, holding: Collection[str] = ()
) -> list[Document]:
    """
    Entries as items; `waiting_for` (and `waiting_until`) are null unless they are pending.

    `paused` says since when, by whom and why, where that is a pause; `behind` which call of its
    lane has to be through first.
    """
    asked = {row["id"]: row["destination"] for row in rows}
    found = await waiting.waiting_for(connection, asked, holding=holding)
    items = []
    for row in rows:
        one = found.get(row["id"])
        told = {
            "waiting_for": one and one.what.value,
            "waiting_until": one and one.until,
            "paused": one and one.pause,
            "behind": one and one.behind,
        }
        items.append({**entry_item(row), **told})
    return items


def entry_item(row: RowMapping) -> Document:
    kept = {name: value for name, value in row.items() if name != "body"}
    return {**kept, "revision": None if row["revision"] is None else str(row["revision"])}


def entry_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not the id of an outbox entry",
            hint="`reconciler outbox list` shows their ids; one has to be given whole",
        ) from None


async def show_outbox(
    connection: AsyncConnection, id_: UUID, *, holding: Collection[str] = ()
) -> Document:
    """One entry whole: its frozen request, and every attempt."""
    found = await store.show_entry(connection, id_)
    if found is None:
        raise ReconcilerError(f"there is no outbox entry {id_}")
    entry, attempts = found
    body = entry["body"]
    (item,) = await with_waiting(connection, [entry], holding=holding)
    return {
        **item,
        "body_base64": None if body is None else base64.b64encode(bytes(body)).decode(),
        "attempts": [dict(attempt) for attempt in attempts],
    }
