"""What a person does with entries that stopped: give them new attempts, or give them up."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import RowMapping, Uuid, case, func, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.enqueue import KEY_USED, Asking, take_keys
from outbox.entry import State
from outbox.generations import current
from outbox.lanes import is_in_lane
from outbox.overtaking import overtaken
from outbox.store import PENDING, Time, outbox, record_set


class Refusal(StrEnum):
    """Why an entry gets no new attempts."""

    UNKNOWN = "unknown"  #: there is no such entry
    DELIVERED = "delivered"  #: it has taken effect
    DISCARDED = "discarded"  #: a person decided that it is not wanted
    PENDING = "pending"  #: it will be called by itself
    SKIPPED = "skipped"  #: it was never called
    UNRENDERED = "unrendered"  #: there is nothing yet that could be sent
    NO_DESTINATION = "no_destination"  #: its destination is not configured any more
    KEY_USED = "key_used"  #: another entry has made this very call
    KEY_LIFE_OVER = "key_life_over"  #: the destination may have forgotten its key
    MAYBE_PERFORMED = "maybe_performed"  #: and the destination would perform it again
    NOT_UNCERTAIN = "not_uncertain"  #: nothing about its outcome is unknown
    NO_PLACE_FOR_KEY = "no_place_for_key"  #: the new key belongs into a body that cannot hold it
    OUT_OF_ORDER = "out_of_order"  #: a later call of its lane went out already


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """One entry that a person meant, as it was, and what came of it."""

    id: UUID
    entry: RowMapping | None  #: its columns before, without the body
    refusal: Refusal | None = None
    until: datetime | None = None  #: with KEY_LIFE_OVER: when its key's life ended
    maybe_sent_at: datetime | None = None  #: by the first attempt that we know or must assume


async def redrive(
    connection: AsyncConnection,
    ids: Collection[UUID],
    *,
    key_lives: Mapping[str, timedelta],
    passing: Collection[str] = (),
    out_of_order: bool = False,
) -> list[Handled]:
    """
    Give entries new attempts under the keys that they have; the others come back refused.

    The caller owns the transaction. Neither the number of the attempt nor the key's clock begin
    anew, only the budget of attempts. *key_lives* says of each destination that is configured how
    long after the first attempt a call may be repeated; *passing* are effects whose keys name a
    version or an event and need not outlive their claims. *out_of_order* redrives also what a
    later call about the same resource has overtaken.
    """
    handled = await locked(connection, ids)
    now = await connection.scalar(select(func.clock_timestamp()))
    assert now is not None
    handled = _as_if_sent(handled, await current(connection))
    judged = [_judged(one, key_lives, now=now) for one in handled]
    going = [one for one in judged if one.refusal is None]
    refused: dict[UUID, Refusal] = {}
    if not out_of_order:
        lanes = [one.id for one in going if one.entry and is_in_lane(one.entry)]
        refused |= dict.fromkeys(await overtaken(connection, lanes), Refusal.OUT_OF_ORDER)
    skipped = [one for one in going if one.entry and one.entry["state"] == State.SKIPPED]
    asking = [one for one in skipped if one.id not in refused]
    refused |= dict.fromkeys(await _without_key(connection, asking, passing), Refusal.KEY_USED)
    rows = [
        {"id": str(one.id), "first_attempt_at": _moment(one.maybe_sent_at)}
        for one in going
        if one.id not in refused
    ]
    if rows:
        done = await connection.scalars(_REDRIVE, {"rows": rows})
        assert {UUID(row["id"]) for row in rows} == set(done)  # they are locked, and were judged
    return [_refused(one, refused[one.id]) if one.id in refused else one for one in judged]


async def discard(connection: AsyncConnection, ids: Collection[UUID]) -> list[Handled]:
    """
    Give entries up that nobody wants any more, so that those behind them may go.

    The caller owns the transaction. A call that is under way is not stopped: if it succeeds it
    still marks its entry delivered.
    """
    handled = [_undiscardable(one) for one in await locked(connection, ids)]
    rows = [{"id": str(one.id)} for one in handled if one.refusal is None]
    if rows:
        await connection.execute(_DISCARD, {"rows": rows})
    return handled


async def locked(connection: AsyncConnection, ids: Collection[UUID]) -> list[Handled]:
    """Lock the entries of *ids*, in their order; whoever is just leasing one is waited for."""
    columns = [column for column in outbox.c if column.name != "body"]
    statement = (
        select(*columns)
        .where(outbox.c.id == _given.id)
        .order_by(outbox.c.id)
        .with_for_update(of=outbox)
    )
    rows = [{"id": str(id_)} for id_ in sorted(set(ids))]
    found = {
        row["id"]: row for row in (await connection.execute(statement, {"rows": rows})).mappings()
    }
    return [
        Handled(id=id_, entry=found.get(id_), refusal=None if id_ in found else Refusal.UNKNOWN)
        for id_ in dict.fromkeys(ids)
    ]


def _as_if_sent(handled: Sequence[Handled], generation: Any) -> list[Handled]:
    """
    Since when each may have been sent.

    What came to rest before the database went back may have been redriven, and sent, by the future
    that was lost: after the moment to which it went back, and nobody knows when.
    """
    seen = []
    for one in handled:
        entry = one.entry
        first = None if entry is None else entry["first_attempt_at"]
        if entry is not None and first is None and _was_restored(entry, generation):
            first = generation.lost_since or entry["completed_at"]
        seen.append(replace(one, maybe_sent_at=first))
    return seen


def _was_restored(entry: RowMapping, generation: Any) -> bool:
    if generation is None or generation.number == 1 or entry["completed_at"] is None:
        return False
    return bool(entry["completed_at"] < generation.opened_at)


def _judged(one: Handled, key_lives: Mapping[str, timedelta], *, now: datetime) -> Handled:
    """What the entry itself says about being called again."""
    entry = one.entry
    if entry is None:
        return one
    refusal = _by_state(entry)
    life = key_lives.get(entry["destination"])
    first = one.maybe_sent_at
    if refusal is not None:
        return _refused(one, refusal)
    if life is None:
        return _refused(one, Refusal.NO_DESTINATION)
    if first is not None and entry["first_attempt_at"] is None and not entry["idempotent"]:
        return _refused(one, Refusal.MAYBE_PERFORMED)
    if first is not None and first + life <= now:
        return replace(one, refusal=Refusal.KEY_LIFE_OVER, until=first + life)
    return one


def _by_state(entry: RowMapping) -> Refusal | None:
    refusal: Refusal | None = None
    match State(entry["state"]):
        case State.DELIVERED:
            refusal = Refusal.DELIVERED
        case State.DISCARDED:
            refusal = Refusal.DISCARDED
        case State.PENDING:
            refusal = Refusal.UNRENDERED if entry["due_at"] is None else Refusal.PENDING
        case State.SKIPPED if (entry["last_error"] or "").startswith(KEY_USED):
            refusal = Refusal.KEY_USED
        case State.UNCERTAIN if not entry["idempotent"]:
            refusal = Refusal.MAYBE_PERFORMED
        case State.SKIPPED | State.UNCERTAIN | State.DEAD:
            refusal = Refusal.UNRENDERED if entry["method"] is None else None
    return refusal


def _undiscardable(one: Handled) -> Handled:
    if one.entry is None:
        return one
    match State(one.entry["state"]):
        case State.DELIVERED:
            return _refused(one, Refusal.DELIVERED)
        case State.DISCARDED:
            return _refused(one, Refusal.DISCARDED)
        case State.PENDING | State.DEAD | State.UNCERTAIN | State.SKIPPED:
            return one


def _refused(one: Handled, refusal: Refusal) -> Handled:
    return replace(one, refusal=refusal)


async def _without_key(
    connection: AsyncConnection, skipped: Iterable[Handled], passing: Collection[str]
) -> set[UUID]:
    """Which of *skipped* cannot have their keys, because other entries took them meanwhile."""
    asking: dict[tuple[str, str], Asking] = {}
    without: set[UUID] = set()
    for one in skipped:
        entry = one.entry
        assert entry is not None
        if entry["idempotency_key"] is None:
            continue
        wish = Asking(
            entry_id=one.id,
            destination=entry["destination"],
            idempotency_key=entry["idempotency_key"],
            effect=entry["effect"],
            sender=entry["sender"],
            kind=entry["kind"],
            key=entry["key"],
            lasting=entry["effect"] not in passing,
        )
        if asking.setdefault((wish.destination, wish.idempotency_key), wish) is not wish:
            without.add(one.id)
    holders = await take_keys(connection, asking.values()) if asking else {}
    return without | {
        wish.entry_id for at, wish in asking.items() if holders[at].entry_id != wish.entry_id
    }


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


_given = record_set("given", {"id": Uuid()}).c

_STOPPED = [State.DEAD.value, State.UNCERTAIN.value, State.SKIPPED.value]
_going = record_set("going", {"id": Uuid(), "first_attempt_at": Time}).c
_REDRIVE = (
    update(outbox)
    .where(outbox.c.id == _going.id, outbox.c.state.in_(_STOPPED))
    .values(
        state=PENDING,
        due_at=func.clock_timestamp(),
        redriven=True,
        attempts_before=outbox.c.attempts,
        first_attempt_at=_going.first_attempt_at,
        call_open=False,
        refusals=0,
        looks=0,
        look_at=null(),
        last_error=case((outbox.c.state == State.SKIPPED.value, null()), else_=outbox.c.last_error),
        completed_at=null(),
        # whoever redrives what was skipped wants it all the same, however old it is
        expires_at=case((outbox.c.state != State.SKIPPED.value, outbox.c.expires_at)),
    )
    .returning(outbox.c.id)
)
_DISCARD = (
    update(outbox)
    .where(outbox.c.id == _given.id, outbox.c.state.in_([State.PENDING.value, *_STOPPED]))
    .values(state=State.DISCARDED.value, due_at=null(), completed_at=func.clock_timestamp())
)
