"""Effects that could not be rendered, rendered again by the rules of now, under their keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox import rendering
from outbox.enqueue import KEY_TAKEN, enqueue
from outbox.entry import RESTORED, Enqueued, NewEntry, State
from outbox.lanes import is_in_lane
from outbox.overtaking import overtaken
from reconciler import database
from reconciler.errors import ReconcilerError
from reconciler.ledger import bodies, claims, kept_causes, resources
from reconciler.ledger.causes import Cause, names_for
from reconciler.ledger.effects import Effect, entries_for
from reconciler.ledger.event import Event, Origin
from reconciler.ledger.rowsets import AnyRow
from reconciler.ledger.rules import Rules

NO_BODY = "the bytes of its event are not kept any more"
OVERTAKEN = "a later call about the same resource went out already"
NO_RECIPIENT = "its mail has fewer recipients now"
NO_EFFECT = "no effect of that name is configured any more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """One entry that was looked at again."""

    id: UUID
    effect: str
    destination: str
    kind: str | None
    key: str | None
    idempotency_key: str | None
    state: State
    reason: str | None  #: why it is skipped, or still cannot be called

    @property
    def is_due(self) -> bool:
        return self.state is State.PENDING and self.reason in {None, RESTORED}


async def render_again(
    connection: AsyncConnection,
    rules: Rules,
    *,
    sender: str,
    event_id: str,
    out_of_order: bool = False,
) -> list[Rendered]:
    """
    Render what one event asked for and could not have yet; what can be called is due at once.

    By the configuration of now, under the key that the entry has, from the event's own bytes and
    what was kept of its cause. The caller owns the transaction. Empty: nothing is unrendered.
    """
    rows = await rendering.unrendered(connection, sender, event_id)
    if not rows:
        return []
    event, fault = await _event(connection, rules, sender, event_id)
    lanes = [] if out_of_order else [row["id"] for row in rows if is_in_lane(row)]
    late = await overtaken(connection, lanes)
    claim = await claims.show(connection, sender, event_id)
    now = await database.now(connection)
    ready: list[tuple[UUID, NewEntry]] = []
    faults: dict[UUID, str] = {}
    further: list[NewEntry] = []
    for row in rows:
        if row["id"] in late:
            faults[row["id"]] = OVERTAKEN
            continue
        cause = None
        if event is not None:
            cause = await _cause(connection, rules, row, event, claim)
        made = _made(rules, row, cause, now=now, fault=fault)
        if isinstance(made, str):
            faults[row["id"]] = made
            continue
        ready.append((row["id"], made[0]))
        further += made[1:]
    done = {one.id: one for one in await rendering.render(connection, ready)}
    made_by_id = dict(ready)
    await enqueue(connection, further)
    return [_told(row, done.get(row["id"]), made_by_id.get(row["id"]), faults) for row in rows]


async def _event(
    connection: AsyncConnection, rules: Rules, sender: str, event_id: str
) -> tuple[Event | None, str]:
    """The event as it was delivered, or why it cannot be made again."""
    if kept_causes.is_ours(event_id):
        return Event(sender=sender, event_id=event_id, type="", origin=Origin.CORRECTION), ""
    id_ = (sender, event_id)
    body = (await bodies.load(connection, [id_])).get(id_)
    if body is None:
        return None, NO_BODY
    assert rules.reread is not None
    try:
        return rules.reread(sender, body.raw, body.headers, event_id), ""
    except ReconcilerError as error:
        return None, f"its event cannot be read any more: {error}"


async def _cause(
    connection: AsyncConnection, rules: Rules, row: RowMapping, event: Event, claim: AnyRow | None
) -> Cause | None:
    """What asked for the entry: as it was kept, or as near to it as what we hold allows."""
    if row["method"] is None and row["body"]:
        return kept_causes.read(bytes(row["body"]), event)
    if kept_causes.is_ours(event.event_id):
        return None
    effect = effect_of(rules, row)
    if effect is None:
        return None
    if effect.gate.takes_fact(event.sender, event.type):
        return Cause(event=event, what="fact", revision=row["revision"])
    if event.kind is None or event.key is None:
        return None
    held = await resources.show(connection, event.sender, event.kind, event.key)
    seen = event.observation
    if held is not None and claim is not None and held.version == claim.version and seen:
        event = replace(event, observation=replace(seen, state=held.state))
    return Cause(event=event, what="change", revision=row["revision"])


def _made(
    rules: Rules, row: RowMapping, cause: Cause | None, *, now: Any, fault: str
) -> list[NewEntry] | str:
    """The entry as it can be called now and those that come with it, or why it cannot be."""
    effect = effect_of(rules, row)
    if effect is None and row["method"] is not None and row["idempotency_key"] is not None:
        return [_as_it_is(row)]  # a handler's call, whose key was another's: perhaps it is free now
    if effect is None:
        return NO_EFFECT
    if cause is None:
        return fault or "what asked for it is not kept any more"
    made = entries_for(effect, cause, names_for(cause), now=now)
    return [_unowed(row, cause, reason=made)] if isinstance(made, str) else _in_its_place(row, made)


def _in_its_place(row: RowMapping, made: Sequence[NewEntry]) -> list[NewEntry] | str:
    """Of what an effect came to, the entry of this row first, and what has no row yet."""
    own = next((one for one in made if one.part == row["part"]), None)
    if own is None:
        return NO_RECIPIENT
    # A mail that could not be made had one entry; its other recipients get theirs now.
    further = [one for one in made if one is not own] if row["method"] is None else []
    if own.idempotency_key is None or row["idempotency_key"] is None or _was_taken(row):
        return [own, *further]
    return [replace(own, idempotency_key=row["idempotency_key"]), *further]


def effect_of(rules: Rules, row: RowMapping) -> Effect | None:
    """The configured effect that an entry is of."""
    if row["sender"] not in rules.senders:
        return None
    effects = rules.senders[row["sender"]].effects
    return next((effect for effect in effects if effect.name == row["effect"]), None)


def _was_taken(row: RowMapping) -> bool:
    return (row["last_error"] or "").endswith(KEY_TAKEN)


def _as_it_is(row: RowMapping, **changes: Any) -> NewEntry:
    names = (
        *("sender", "event_id", "effect", "part", "repetition", "kind", "key", "revision"),
        *("position", "ordered", "lane", "hold_after_dead", "destination", "idempotency_key"),
        *("idempotent", "method", "path"),
    )
    facts = {name: row[name] for name in names}
    body = None if row["body"] is None else bytes(row["body"])
    facts |= {"headers": row["headers"] or {}, "body": body, "lasting": True}
    return NewEntry(**facts | changes)


def _unowed(row: RowMapping, cause: Cause, *, reason: str) -> NewEntry:
    """The entry that, by the configuration of now, nothing asks for any more."""
    return _as_it_is(row, skip=reason, method=None, path=None, body=kept_causes.kept(cause))


def _told(
    row: RowMapping, done: Enqueued | None, entry: NewEntry | None, faults: Mapping[UUID, str]
) -> Rendered:
    return Rendered(
        id=row["id"],
        effect=row["effect"],
        destination=row["destination"] if entry is None else entry.destination,
        kind=row["kind"],
        key=row["key"],
        idempotency_key=row["idempotency_key"] if done is None else done.idempotency_key,
        state=State(row["state"]) if done is None else done.state,
        reason=faults[row["id"]] if done is None else done.reason,
    )
