"""Putting calls into the outbox, inside the caller's transaction."""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Boolean, Integer, Text, Uuid, and_, case, func, select
from sqlalchemy.dialects.postgresql import JSONB, Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.types import TypeEngine

from outbox.compiled import Compiled
from outbox.entry import Enqueued, NewEntry, State, bounded, uuid7
from outbox.store import C, effect_keys, outbox, record_set

KEY_USED = "key used"
KEY_TAKEN = "key taken"


async def enqueue(
    connection: AsyncConnection,
    entries: Sequence[NewEntry],
    *,
    new_id: Callable[[], UUID] = uuid7,
) -> list[Enqueued]:
    """
    Record *entries*, in two statements however many they are; nothing is called here.

    The caller owns the transaction: until it commits, nothing was asked for. An idempotency key
    belongs to one entry of its destination: where the same effect has used it before, the entry
    is recorded as `skipped` (key used); where another effect has, as `unrendered` (key taken).
    Entries of one batch go by the same rule, in their order.

    A second entry for one (sender, event_id, effect, part, repetition) is a bug upstream
    and violates a constraint instead of vanishing.
    """
    if not entries:
        return []

    # Rising ids: the rows go in by id, and so in the order of *entries*.
    ids = sorted(new_id() for _ in entries)
    judged = await _judge_keys(connection, list(zip(ids, entries, strict=True)))
    rows = [
        _row(id_, entry, state=state, reason=reason)
        for id_, entry, (state, reason) in zip(ids, entries, judged, strict=True)
    ]
    await _INSERT_ENTRIES.count(connection, rows=rows)
    return [
        Enqueued(id=id_, state=state, reason=reason, idempotency_key=entry.idempotency_key)
        for id_, entry, (state, reason) in zip(ids, entries, judged, strict=True)
    ]


async def _judge_keys(
    connection: AsyncConnection, numbered: Sequence[tuple[UUID, NewEntry]]
) -> list[tuple[State, str | None]]:
    """State and reason of each entry, after taking the keys that are still free."""
    asking: dict[tuple[str, str], tuple[UUID, NewEntry]] = {}
    for id_, entry in numbered:
        if entry.skip is None and entry.fault is None and entry.idempotency_key is not None:
            asking.setdefault((entry.destination, entry.idempotency_key), (id_, entry))

    holders = await _take_keys(connection, asking.values()) if asking else {}

    judged: list[tuple[State, str | None]] = []
    for id_, entry in numbered:
        if entry.skip is not None:
            judged.append((State.SKIPPED, bounded(entry.skip)))
        elif entry.fault is not None:
            judged.append((State.PENDING, _unrendered(entry.fault)))
        elif entry.idempotency_key is None:
            judged.append((State.PENDING, None))
        else:
            holder = holders[entry.destination, entry.idempotency_key]
            if holder.entry_id == id_:
                judged.append((State.PENDING, None))
            elif holder.effect == entry.effect:
                judged.append((State.SKIPPED, KEY_USED))
            else:
                judged.append((State.PENDING, _unrendered(KEY_TAKEN)))
    return judged


async def _take_keys(
    connection: AsyncConnection, asking: Iterable[tuple[UUID, NewEntry]]
) -> dict[tuple[str, str], Any]:
    """Who holds each key now: one of *asking*, or an entry of before."""
    rows = [
        {
            "destination": entry.destination,
            "idempotency_key": entry.idempotency_key,
            "effect": entry.effect,
            "entry_id": str(id_),
            "sender": entry.sender,
            "kind": entry.kind,
            "key": entry.key,
            "lasting": entry.lasting,
        }
        for id_, entry in asking
    ]
    held = await _TAKE_KEYS.rows(connection, rows=rows)
    return {(row.destination, row.idempotency_key): row for row in held}


def _unrendered(fault: str) -> str:
    return bounded(f"unrendered: {fault}")


def _row(id_: UUID, entry: NewEntry, *, state: State, reason: str | None) -> dict[str, Any]:
    body = None if entry.body is None else base64.b64encode(entry.body).decode("ascii")
    return {
        **{name: getattr(entry, name) for name in _FROM_ENTRY},
        "id": str(id_),
        "headers": dict(entry.headers),
        "body": body,
        "state": state.value,
        "last_error": reason,
    }


_FROM_ENTRY: Mapping[str, TypeEngine[Any]] = {
    "sender": C,
    "event_id": C,
    "effect": C,
    "part": C,
    "repetition": Integer(),
    "kind": C,
    "key": C,
    "revision": BigInteger(),
    "position": Integer(),
    "ordered": Boolean(),
    "destination": C,
    "idempotency_key": C,
    "method": Text(),
    "path": Text(),
    "idempotent": Boolean(),
}


def _insert_entries() -> Insert:
    rows = record_set(
        "entry",
        {
            "id": Uuid(),
            **_FROM_ENTRY,
            "headers": JSONB(),
            "body": Text(),
            "state": Text(),
            "last_error": Text(),
        },
    )
    given = rows.c
    # clock_timestamp(): where there is no revision the order is by the time of the insert,
    # and now() is when the transaction began, before it waited for anything.
    callable_ = and_(given.state == State.PENDING.value, given.last_error.is_(None))
    values = {
        **{name: given[name] for name in ("id", *_FROM_ENTRY, "headers", "state", "last_error")},
        "body": func.decode(given.body, "base64"),
        "due_at": case((callable_, func.clock_timestamp())),
        "created_at": func.clock_timestamp(),
        "completed_at": case((given.state != State.PENDING.value, func.clock_timestamp())),
    }
    return insert(outbox).from_select(list(values), select(*values.values()).order_by(given.id))


def _take_keys_statement() -> ReturningInsert[Any]:
    types: dict[str, TypeEngine[Any]] = {
        "destination": C,
        "idempotency_key": C,
        "effect": C,
        "entry_id": Uuid(),
        "sender": C,
        "kind": C,
        "key": C,
        "lasting": Boolean(),
    }
    given = record_set("asking", types).c
    # In key order, so that two transactions wait for each other in one direction only.
    ordered = select(*given).order_by(given.destination, given.idempotency_key)
    proposed = insert(effect_keys).from_select(list(types), ordered)
    # Writing the holder's effect over itself makes a key that is held come back too, after
    # waiting for whoever is just taking it: one statement, and no gap between asking and reading.
    return proposed.on_conflict_do_update(
        index_elements=[effect_keys.c.destination, effect_keys.c.idempotency_key],
        set_={"effect": effect_keys.c.effect},
    ).returning(
        effect_keys.c.destination,
        effect_keys.c.idempotency_key,
        effect_keys.c.effect,
        effect_keys.c.entry_id,
    )


_INSERT_ENTRIES = Compiled(_insert_entries())
_TAKE_KEYS = Compiled(_take_keys_statement())
