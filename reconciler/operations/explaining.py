"""`why`: one resource's whole story, from everything that we keep about it."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import choosing, store
from outbox.entry import State
from reconciler import database
from reconciler.errors import UsageError
from reconciler.ledger import baselines, claims, corrections, fetches, quarantine, resources
from reconciler.ledger.rowsets import AnyRow
from reconciler.operations import actions, timeline
from reconciler.operations.assembly import Assembly
from reconciler.operations.closing import sentence
from reconciler.operations.naming import require_sender
from reconciler.operations.reading import holding, with_waiting
from reconciler.polling import scans, sightings
from reconciler.polling.scans import Mode
from reconciler.receiver.envelope import MalformedError, reread

COPIES = 20  #: of quarantined events about one resource
OPEN = 20  #: entries of each state that somebody waits for

Document = dict[str, Any]


async def why(  # noqa: PLR0913 - one resource, and how much of it
    engine: AsyncEngine, assembly: Assembly, *, sender: str, kind: str, key: str, limit: int
) -> Document:
    """
    Say all that is known of one resource, in the order of time, and how it comes that it is so.

    At most *limit* moments, the latest; what came before is counted. Raises UsageError for a
    sender or a kind that is not configured.
    """
    require_kind(assembly, sender, kind)
    async with engine.connect() as connection:
        found = await gathered(connection, assembly, sender=sender, kind=kind, key=key, limit=limit)
    moments = timeline.moments(found)
    shown = moments[-limit:]
    said = {name: found[name] for name in SAID}
    return {
        **said,
        "known": bool(moments) or found["held"] is not None,
        "moments": shown,
        "omitted": found["total"] - len([one for one in shown if one["what"] in timeline.COUNTED]),
        "sentence": sentence(found),
    }


EFFECT = (
    *("id", "event_id", "effect", "destination", "idempotency_key", "state", "attempts"),
    *("due_at", "call_open", "redriven", "last_error", "created_at", "completed_at"),
    *("waiting_for", "waiting_until", "paused", "behind"),
)
SAID = (
    *("sender", "kind", "key", "at", "held", "events", "outbox", "pending_read"),
    *("drifts_since", "quarantined", "effects", "baseline", "next_scans"),
)


def require_kind(assembly: Assembly, sender: str, kind: str) -> None:
    senders = assembly.rules.senders
    require_sender(senders, sender)
    if kind not in senders[sender].kinds:
        known = ", ".join(senders[sender].kinds) or "none"
        raise UsageError(f"{sender} has no kind {kind!r}; there are: {known}")


async def gathered(  # noqa: PLR0913 - one resource, and how much of it
    connection: AsyncConnection,
    assembly: Assembly,
    *,
    sender: str,
    kind: str,
    key: str,
    limit: int,
) -> Document:
    """Everything that is kept about one resource, by where it is kept."""
    about: dict[str, Any] = {"sender": sender, "kind": kind, "key": key}
    claimed = await claims.list_claims(connection, **about, limit=limit)
    corrected = await corrections.list_corrections(connection, **about, limit=limit)
    holds = holding(assembly.loaded.settings)
    entries = await _entries(connection, about, limit=limit, holding=holds)
    kept = await _copies(connection, assembly, sender, kind, key)
    events = await claims.count_about(connection, sender, kind, key)
    outbox = await choosing.count_about(connection, sender, kind, key)
    reads = await fetches.list_requests(connection, **about, limit=1)
    held = await resources.show(connection, sender, kind, key)
    drifts_since = await sightings.of(
        connection, sender, kind, key, held=None if held is None else held.version
    )
    born = (await baselines.states(connection, [(sender, kind)])).get((sender, kind))
    slots = await scans.states(connection)
    return {
        **about,
        "at": await database.now(connection),
        "held": None if held is None else held_item(held),
        "events": events,
        "outbox": {state.value: outbox.get(state.value, 0) for state in State},
        "total": sum(events.values()) + sum(outbox.values()),
        "claims": [dict(row._mapping) for row in claimed],  # noqa: SLF001 - SQLAlchemy's name
        "corrections": [dict(row._mapping) for row in corrected],  # noqa: SLF001
        "effects": entries,
        "attempts": await store.list_attempts(
            connection, [one["id"] for one in entries], limit=limit
        ),
        "quarantined": kept,
        "acts": await _acts(connection, about, claimed, kept, limit=limit),
        "drifts_since": drifts_since,
        "pending_read": None if not reads else read_item(reads[0]),
        "baseline": None
        if born is None
        else {"born_at": born.born_at, "completed_at": born.completed_at},
        "listed": assembly.rules.senders[sender].kinds[kind].has_list,
        "next_scans": {
            mode.value: slot.due_at
            for mode in Mode
            if (slot := slots.get((sender, kind, mode.value))) is not None
        },
    }


async def _entries(
    connection: AsyncConnection,
    about: Mapping[str, str],
    *,
    limit: int,
    holding: Collection[str],
) -> list[Document]:
    """The latest entries, and those that somebody waits for, however old; the oldest first."""
    rows = await store.list_entries(connection, about=about, limit=limit)
    for state in (State.PENDING, State.UNCERTAIN, State.DEAD):
        rows += await store.list_entries(connection, state=state, about=about, limit=OPEN)
    unique = {row["id"]: row for row in rows}
    ordered = [unique[id_] for id_ in sorted(unique)]
    items = await with_waiting(connection, ordered, holding=holding)
    return [{name: item[name] for name in EFFECT} for item in items]


async def _copies(
    connection: AsyncConnection, assembly: Assembly, sender: str, kind: str, key: str
) -> list[Document]:
    """
    Open copies in quarantine that are about the resource, or may be.

    Quarantine does not know what its events are about, or it would hardly have them: whose bytes
    name the key is read again, and what cannot be read is told as what it may be.
    """
    spelled = {key.encode(), json.dumps(key)[1:-1].encode()}
    found = []
    for row in await quarantine.naming(connection, sender, spelled, limit=COPIES):
        contract = assembly.contracts[sender]
        certain = True
        try:
            event = reread(contract, bytes(row.body), row.headers, row.event_id)
        except MalformedError:
            certain = False
        else:
            if (event.kind, event.key) != (kind, key):
                continue
        found.append(copy_item(row, certain=certain))
    return found


async def _acts(
    connection: AsyncConnection,
    about: Mapping[str, str],
    claimed: Sequence[AnyRow],
    kept: Sequence[Document],
    *,
    limit: int,
) -> list[Document]:
    ids = {row.event_id for row in claimed} | {one["event_id"] for one in kept}
    of_events = [{"sender": about["sender"], "event_id": id_} for id_ in sorted(ids - {None})]
    rows = await actions.about(connection, [about, *of_events], limit=limit)
    return [dict(row._mapping) for row in rows]  # noqa: SLF001


def held_item(row: AnyRow) -> Document:
    return {
        "version": str(row.version),
        "revision": str(row.revision),
        "deleted": row.deleted,
        "origin": row.origin,
        "updated_at": row.updated_at,
        "read_at": row.read_at,
        "state": row.state,
    }


def read_item(row: AnyRow) -> Document:
    names = ("requested_at", "reason", "attempts", "due_at", "last_error")
    named = None if row.at_least is None else str(row.at_least)
    return {**{name: getattr(row, name) for name in names}, "at_least": named}


def copy_item(row: AnyRow, *, certain: bool) -> Document:
    names = ("id", "event_id", "fault", "failures", "first_seen_at", "last_seen_at")
    return {**{name: getattr(row, name) for name in names}, "certain": certain}
