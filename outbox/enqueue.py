"""Putting calls into the outbox, inside the caller's transaction."""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    Double,
    Integer,
    Text,
    Uuid,
    and_,
    case,
    func,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.types import TypeEngine

from outbox.compiled import Compiled
from outbox.entry import RESTORED, Enqueued, NewEntry, State, bounded, uuid7
from outbox.expiring import expires_at
from outbox.holding import current_generation, from_lost_future
from outbox.positions import places_of
from outbox.store import PENDING, UNCERTAIN, C, Time, effect_keys, outbox, record_set
from outbox.superseding import SUPERSEDED, supersede

KEY_USED = "key used"
KEY_TAKEN = "key taken"


async def enqueue(
    connection: AsyncConnection,
    entries: Sequence[NewEntry],
    *,
    new_id: Callable[[], UUID] = uuid7,
) -> list[Enqueued]:
    """
    Record *entries*, in a few statements however many they are; nothing is called here.

    The caller owns the transaction: until it commits, nothing was asked for. An idempotency key
    belongs to one entry of its destination: where the same effect has used it before, the entry
    is recorded as `skipped` (key used); where another effect has, as `unrendered` (key taken).
    Entries of one batch go by the same rule, in their order.

    Entries with a `lane` get their places in it under its row's lock, which is held until the
    transaction ends: whoever else asks for that lane waits. One that supersedes discards what
    waits before it, if it can be called itself.

    After a restore, what may have been sent by the future that was lost becomes `uncertain` where
    the destination knows no keys; elsewhere its key's clock starts when it happened.

    A second entry for one (sender, event_id, effect, part, repetition) is a bug upstream
    and violates a constraint instead of vanishing.
    """
    if not entries:
        return []

    # Rising ids: the rows go in by id, and so in the order of *entries*.
    ids = sorted(new_id() for _ in entries)
    judged = await judge_keys(connection, list(zip(ids, entries, strict=True)))
    positions = await places_of(connection, entries)
    rows = [
        _row(id_, entry, state=state, reason=reason, lane_position=position)
        for id_, entry, (state, reason), position in zip(
            ids, entries, judged, positions, strict=True
        )
    ]
    written = await _INSERT_ENTRIES.rows(connection, rows=rows)
    became: dict[UUID, tuple[State, str | None]] = dict(zip(ids, judged, strict=True))
    became |= {
        row.id: (State.UNCERTAIN, RESTORED) for row in written if row.state == State.UNCERTAIN
    }
    replaced = await supersede(
        connection,
        [
            (id_, entry)
            for id_, entry in zip(ids, entries, strict=True)
            if became[id_] == (State.PENDING, None)
        ],
    )
    became |= {
        id_: (State.DISCARDED, f"{SUPERSEDED}{newer}")
        for id_, newer in replaced.items()
        if id_ in became
    }
    return [
        Enqueued(
            id=id_,
            state=became[id_][0],
            reason=became[id_][1],
            idempotency_key=entry.idempotency_key,
        )
        for id_, entry in zip(ids, entries, strict=True)
    ]


async def judge_keys(
    connection: AsyncConnection, numbered: Sequence[tuple[UUID, NewEntry]]
) -> list[tuple[State, str | None]]:
    """State and reason of each entry, after taking the keys that are still free."""
    asking: dict[tuple[str, str], Asking] = {}
    for id_, entry in numbered:
        if entry.skip is None and entry.fault is None and entry.idempotency_key is not None:
            at = (entry.destination, entry.idempotency_key)
            asking.setdefault(at, _asking(id_, entry, entry.idempotency_key))

    holders = await take_keys(connection, asking.values()) if asking else {}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One entry that asks for its idempotency key."""

    entry_id: UUID
    destination: str
    idempotency_key: str
    effect: str
    sender: str
    kind: str | None
    key: str | None
    lasting: bool  #: the key names neither version nor event


async def take_keys(
    connection: AsyncConnection, asking: Iterable[Asking]
) -> dict[tuple[str, str], Any]:
    """
    Who holds each key now, one of *asking* or an entry of before: `entry_id` and `effect`.

    No key twice among *asking*. The caller owns the transaction.
    """
    rows = [
        {**{name: getattr(one, name) for name in _ASKING}, "entry_id": str(one.entry_id)}
        for one in asking
    ]
    held = await _TAKE_KEYS.rows(connection, rows=rows)
    return {(row.destination, row.idempotency_key): row for row in held}


def _asking(id_: UUID, entry: NewEntry, idempotency_key: str) -> Asking:
    return Asking(
        entry_id=id_,
        destination=entry.destination,
        idempotency_key=idempotency_key,
        effect=entry.effect,
        sender=entry.sender,
        kind=entry.kind,
        key=entry.key,
        lasting=entry.lasting,
    )


def _unrendered(fault: str) -> str:
    return bounded(f"unrendered: {fault}")


def _row(
    id_: UUID, entry: NewEntry, *, state: State, reason: str | None, lane_position: int | None
) -> dict[str, Any]:
    body = None if entry.body is None else base64.b64encode(entry.body).decode("ascii")
    return {
        **{name: getattr(entry, name) for name in _FROM_ENTRY},
        "id": str(id_),
        "ordered": entry.ordered and entry.lane is None,
        "lane_position": lane_position,
        "idempotent": entry.idempotent and bool(entry.idempotency_key or entry.fault),
        "headers": dict(entry.headers),
        "found": entry.found,
        "happened_at": None if entry.happened_at is None else entry.happened_at.isoformat(),
        "expires": None if entry.expires is None else entry.expires.total_seconds(),
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
    "lane": C,
    "hold_after_dead": Boolean(),
    "destination": C,
    "idempotency_key": C,
    "method": Text(),
    "path": Text(),
    "idempotent": Boolean(),
}


def _insert_entries() -> ReturningInsert[Any]:
    rows = record_set(
        "entry",
        {
            "id": Uuid(),
            **_FROM_ENTRY,
            "lane_position": BigInteger(),
            "headers": JSONB(),
            "happened_at": Time,
            "expires": Double(),
            "found": Boolean(),
            "body": Text(),
            "state": Text(),
            "last_error": Text(),
        },
    )
    given = rows.c
    # clock_timestamp(): where there is no revision the order is by the time of the insert,
    # and now() is when the transaction began, before it waited for anything.
    callable_ = and_(given.state == State.PENDING.value, given.last_error.is_(None))
    now = current_generation("now")
    maybe_sent = and_(
        callable_, from_lost_future(now.c, happened_at=given.happened_at, found=given.found)
    )
    held = and_(maybe_sent, ~given.idempotent)
    goes_on = and_(callable_, ~held)
    state = case((held, UNCERTAIN), else_=given.state)
    values = {
        **{name: given[name] for name in ("id", *_FROM_ENTRY, "lane_position", "headers")},
        "state": state,
        "last_error": case((maybe_sent, RESTORED), else_=given.last_error),
        "body": func.decode(given.body, "base64"),
        "created_at": func.clock_timestamp(),
        "due_at": case((goes_on, func.clock_timestamp())),
        "first_attempt_at": case(
            (maybe_sent, func.coalesce(given.happened_at, now.c.lost_since, now.c.opened_at))
        ),
        "completed_at": case((state != PENDING, func.clock_timestamp())),
        "expires_at": expires_at(given),
    }
    source = rows.outerjoin(now, true())
    chosen = select(*values.values()).select_from(source).order_by(given.id)
    return insert(outbox).from_select(list(values), chosen).returning(outbox.c.id, outbox.c.state)


_ASKING: Mapping[str, TypeEngine[Any]] = {
    "destination": C,
    "idempotency_key": C,
    "effect": C,
    "entry_id": Uuid(),
    "sender": C,
    "kind": C,
    "key": C,
    "lasting": Boolean(),
}


def _take_keys_statement() -> ReturningInsert[Any]:
    given = record_set("asking", _ASKING).c
    # In key order, so that two transactions wait for each other in one direction only.
    ordered = select(*given).order_by(given.destination, given.idempotency_key)
    proposed = insert(effect_keys).from_select(list(_ASKING), ordered)
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
