"""Redriving: entries that stopped get new attempts under their keys, or are given up for good."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from outbox import choosing, redriving
from outbox.entry import State
from outbox.redriving import Handled, Refusal
from reconciler.operations import actions
from reconciler.operations.acting import Order
from reconciler.operations.assembly import Assembly
from reconciler.polling.rehearsal import rolled_back
from reconciler.transactions import transact

BATCH = 100  #: entries of one transaction

Item = dict[str, Any]
Act = Callable[[Order, Sequence[UUID]], AsyncIterator[Item]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which entries are meant."""

    state: State = State.DEAD
    destination: str | None = None
    effect: str | None = None
    sender: str | None = None
    kind: str | None = None
    key: str | None = None
    error: str | None = None  #: part of what is said of the last attempt, or of the skipping
    since: datetime | None = None  #: when they came to rest
    before: datetime | None = None
    asked_since: datetime | None = None  #: when they were asked for
    asked_before: datetime | None = None


async def redrive(order: Order, ids: Sequence[UUID]) -> AsyncIterator[Item]:
    """Give entries new attempts, in bounded transactions; one item an entry, done or refused."""
    lives = key_lives(order.assembly)
    passing = passing_effects(order.assembly)

    async def work(some: Sequence[UUID], connection: AsyncConnection) -> list[Item]:
        handled = await redriving.redrive(
            connection,
            some,
            key_lives=lives,
            passing=passing,
            out_of_order=order.out_of_order,
        )
        return await _noted(connection, order, handled, action="outbox.redrive", done="redriven")

    for start in range(0, len(ids), BATCH):
        for item in await run_order(order, partial(work, ids[start : start + BATCH])):
            yield item


async def of_many(order: Order, filters: Filters, *, limit: int, act: Act) -> AsyncIterator[Item]:
    """Do *act* to what *filters* find, the oldest first; at the most *limit* are looked at."""
    after, left = None, limit
    while left > 0:
        wanted = min(BATCH, left)
        find = partial(choosing.find, **asdict(filters), after=after, limit=wanted)
        ids = await transact(order.engine, find)
        async for item in act(order, ids):
            yield item
        if len(ids) < wanted:
            return
        after, left = ids[-1], left - len(ids)


async def discard(order: Order, ids: Sequence[UUID]) -> AsyncIterator[Item]:
    """Give entries up, in bounded transactions; one item an entry, done or refused."""

    async def work(some: Sequence[UUID], connection: AsyncConnection) -> list[Item]:
        handled = await redriving.discard(connection, some)
        return await _noted(connection, order, handled, action="outbox.discard", done="discarded")

    for start in range(0, len(ids), BATCH):
        for item in await run_order(order, partial(work, ids[start : start + BATCH])):
            yield item


def key_lives(assembly: Assembly) -> dict[str, timedelta]:
    """How long after its first attempt a call may be repeated, by destination (P10)."""
    lease = assembly.loaded.settings.relay.lease
    return {name: one.key_life(lease=lease) for name, one in assembly.destinations.items()}


def passing_effects(assembly: Assembly) -> frozenset[str]:
    """Effects whose keys name a version or an event: they are forgotten with their claims."""
    return frozenset(
        effect.name
        for sender in assembly.rules.senders.values()
        for effect in sender.effects
        if not effect.lasting
    )


async def run_order(order: Order, work: Any) -> list[Item]:
    items: list[Item] = await (rolled_back if order.dry_run else transact)(order.engine, work)
    return items


async def _noted(
    connection: AsyncConnection,
    order: Order,
    handled: Collection[Handled],
    *,
    action: str,
    done: str,
) -> list[Item]:
    """Write each act down in its own transaction; what was refused is only told."""
    for one in handled:
        if one.refusal is None:
            await actions.record(
                connection,
                actor=order.actor,
                action=action,
                subject=subject_of(one),
                reason=order.reason,
            )
    return [item_of(one, done=done) for one in handled]


def subject_of(one: Handled) -> dict[str, Any]:
    assert one.entry is not None
    names = ("sender", "event_id", "effect", "kind", "key", "destination", "state")
    said = {name: one.entry[name] for name in names if one.entry[name] is not None}
    return {"entry_id": str(one.id), **said}


def item_of(one: Handled, *, done: str) -> Item:
    """What is told of one entry."""
    entry: Mapping[str, Any] = dict(one.entry or {})
    names = ("sender", "event_id", "effect", "destination", "kind", "key", "idempotency_key")
    return {
        "id": one.id,
        **{name: entry.get(name) for name in names},
        "state": entry.get("state"),
        "attempts": entry.get("attempts"),
        "last_error": entry.get("last_error"),
        "call_open": bool(entry.get("call_open")),
        "result": done if one.refusal is None else "refused",
        "refusal": None if one.refusal is None else one.refusal.value,
        "why": None if one.refusal is None else sentence(one),
    }


def sentence(one: Handled) -> str:
    """Why an entry is refused, and what can be done instead."""
    assert one.refusal is not None
    entry: Mapping[str, Any] = dict(one.entry or {})
    if one.refusal is Refusal.PENDING and entry["call_open"]:
        return "it is pending, and a call of it is under way"
    facts = {name: str(entry.get(name)) for name in NAMED}
    facts |= {
        "completed_at": stamp(entry.get("completed_at")),
        "until": stamp(one.until),
        "error": str(entry.get("last_error")),
    }
    return SENTENCES[one.refusal].format_map(facts)


NAMED = ("id", "state", "destination", "sender", "event_id")
SENTENCES = {
    Refusal.UNKNOWN: "there is no such entry",
    Refusal.DELIVERED: "it was delivered at {completed_at}: nothing is left to do",
    Refusal.DISCARDED: "it was discarded at {completed_at}: nobody wants it any more",
    Refusal.PENDING: "it is pending: it is called by itself; `reconciler outbox show {id}`"
    " says what it waits for",
    Refusal.SKIPPED: "it was never called ({error}): `reconciler outbox redrive` releases it",
    Refusal.UNRENDERED: "it has no request to send ({error}); "
    "`reconciler events replay {sender} {event_id}` renders it",
    Refusal.NO_DESTINATION: "its destination {destination} is not configured any more",
    Refusal.KEY_USED: "another entry has used its key: that call was this call",
    Refusal.KEY_LIFE_OVER: "its key's life ended at {until}: {destination} may have forgotten it, "
    "and would perform the call a second time",
    Refusal.MAYBE_PERFORMED: "the last call may have been performed, and {destination} would "
    "perform it again: find out there, and then `reconciler outbox resolve {id}`",
    Refusal.NOT_UNCERTAIN: "it is {state}, not uncertain: nothing about it is to be found out",
    Refusal.NO_PLACE_FOR_KEY: "its destination looks for the key in the body, and this body has no"
    " place for one: it was asked for before that was configured, and can only be made by hand",
    Refusal.OUT_OF_ORDER: "a later call about the same resource went out already: --out-of-order "
    "makes this one all the same, after it",
}


def stamp(moment: datetime | None) -> str:
    if moment is None:
        return "an unknown time"
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
