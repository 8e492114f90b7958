"""A call made once more under a new key, for a person who wants it done again."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import RowMapping, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.enqueue import enqueue
from outbox.entry import Enqueued, NewEntry, State
from outbox.redriving import Handled, Refusal
from outbox.store import effect_keys, outbox

NewKey = Callable[[RowMapping, str, int], str]
"""The key that goes out for an entry's first key and the number of the repetition."""

NewBody = Callable[[RowMapping, str], bytes]
"""The body of an entry that has one, for the new key: the same, where the key is not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The entry that was meant, as it was, and the one that was made of it."""

    meant: Handled
    made: Enqueued | None = None  #: None: refused
    repetition: int = 0


async def repeat(
    connection: AsyncConnection,
    id_: UUID,
    *,
    new_key: NewKey,
    destinations: Collection[str],
    new_body: NewBody = lambda entry, _: bytes(entry["body"]),
) -> Repeated:
    """
    Ask for the call of entry *id_* again, as a new one: same request, new key, `repetition` + 1.

    For what is dead, uncertain, delivered or discarded; the destination will perform it, whatever
    it has performed before. The entry itself stays as it is, and the new one takes the same place
    in its lane. *destinations* are those that are configured. The caller owns the transaction.
    Where *new_body* raises ValueError, there is no place for the key any more: refused.
    """
    whole = select(outbox).where(outbox.c.id == id_)
    entry = (await connection.execute(whole)).mappings().one_or_none()
    if entry is None:
        return Repeated(meant=Handled(id=id_, entry=None, refusal=Refusal.UNKNOWN))
    # All of one cause, so that two people who repeat it at once do so one after the other.
    family = await _locked_family(connection, entry)
    entry = family[id_]
    refusal = _refusal(entry, destinations)
    if refusal is not None:
        return Repeated(meant=Handled(id=id_, entry=entry, refusal=refusal))
    first = _first_key(entry, family)
    repetition = max(one["repetition"] for one in family.values()) + 1
    key = None if first is None else new_key(entry, first, repetition)
    while key is not None and await _is_taken(connection, entry["destination"], key):
        repetition += 1  # by one that is not kept any more
        assert first is not None
        key = new_key(entry, first, repetition)
    lasting = await _outlives_its_event(connection, entry)
    try:
        body = entry["body"] if entry["body"] is None or key is None else new_body(entry, key)
    except ValueError:
        return Repeated(meant=Handled(id=id_, entry=entry, refusal=Refusal.NO_PLACE_FOR_KEY))
    again = _again(entry, key=key, body=body, repetition=repetition, lasting=lasting)
    (made,) = await enqueue(connection, [again])
    if entry["lane"] is not None:
        place = update(outbox).where(outbox.c.id == made.id)
        await connection.execute(place.values(lane_position=entry["lane_position"]))
    return Repeated(meant=Handled(id=id_, entry=entry), made=made, repetition=repetition)


async def _locked_family(connection: AsyncConnection, entry: RowMapping) -> dict[UUID, RowMapping]:
    same = [outbox.c[name] == entry[name] for name in ("sender", "event_id", "effect", "part")]
    statement = select(outbox).where(*same).order_by(outbox.c.id).with_for_update()
    return {row["id"]: row for row in (await connection.execute(statement)).mappings()}


def _refusal(entry: RowMapping, destinations: Collection[str]) -> Refusal | None:
    refusal: Refusal | None = None
    match State(entry["state"]):
        case State.PENDING:
            refusal = Refusal.UNRENDERED if entry["due_at"] is None else Refusal.PENDING
        case State.SKIPPED:
            refusal = Refusal.SKIPPED
        case State.DELIVERED | State.DEAD | State.UNCERTAIN | State.DISCARDED:
            if entry["method"] is None:
                refusal = Refusal.UNRENDERED
            elif entry["destination"] not in destinations:
                refusal = Refusal.NO_DESTINATION
    return refusal


def _first_key(entry: RowMapping, family: dict[UUID, RowMapping]) -> str | None:
    """The key that the repetitions' are made of: that of the first call, where it is known."""
    for one in family.values():
        if one["repetition"] == 0:
            entry = one
    key: str | None = entry["idempotency_key"]
    return key if key is None else key.removesuffix(f":r{entry['repetition']}")


async def _is_taken(connection: AsyncConnection, destination: str, key: str) -> bool:
    held = select(effect_keys.c.entry_id).where(
        effect_keys.c.destination == destination, effect_keys.c.idempotency_key == key
    )
    return await connection.scalar(held) is not None


async def _outlives_its_event(connection: AsyncConnection, entry: RowMapping) -> bool:
    lasting = select(effect_keys.c.lasting).where(
        effect_keys.c.destination == entry["destination"],
        effect_keys.c.idempotency_key == entry["idempotency_key"],
    )
    return await connection.scalar(lasting) is not False


def _again(
    entry: RowMapping, *, key: str | None, body: bytes | None, repetition: int, lasting: bool
) -> NewEntry:
    names = ("sender", "event_id", "effect", "part", "kind", "key", "revision", "position")
    kept: dict[str, Any] = {name: entry[name] for name in names}
    # Without a revision the order is by time: behind an uncertain one it would wait for ever.
    ordered = entry["ordered"] and entry["revision"] is not None
    return NewEntry(
        **kept,
        repetition=repetition,
        ordered=ordered,
        lane=entry["lane"],
        hold_after_dead=entry["hold_after_dead"],
        destination=entry["destination"],
        idempotency_key=key,
        lasting=lasting,
        idempotent=entry["idempotent"],
        method=entry["method"],
        path=entry["path"],
        headers=entry["headers"] or {},
        body=None if body is None else bytes(body),
    )
