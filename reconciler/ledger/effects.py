"""Effects: a cause becomes one frozen call, with its key, now and not when it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from outbox.entry import NewEntry, outgoing_key
from reconciler.exact_json import NotJsonError
from reconciler.expressions import ExpressionError, JsonTemplate, PathTemplate, Template
from reconciler.ledger.calls import Call, CallError, freeze
from reconciler.ledger.causes import Cause
from reconciler.ledger.event import Event, Origin
from reconciler.ledger.gates import Gate
from reconciler.ledger.kept_causes import kept
from reconciler.ledger.keys import Source, usual_key
from reconciler.ledger.versions import to_datetime

UNUSABLE = (ExpressionError, NotJsonError, CallError)  #: what makes an effect `unrendered`

MAX_AGE = "max_age"


def entry_for(
    effect: Effect, cause: Cause, names: Mapping[str, Any], *, now: datetime | None
) -> NewEntry | str:
    """
    Make the outbox entry that *effect* owes *cause*, or say why it owes none.

    *now* is the database's, needed for effects with a `max_age`. What cannot be judged or
    rendered comes back as an entry with a `fault`; nothing is raised for it.
    """
    own = {**names, "effect": effect.name}
    try:
        refusal = effect.gate.refusal(cause, own)
    except UNUSABLE as error:
        return entry_of(effect, cause, fault=str(error))
    if refusal is not None:
        return refusal
    skip = reason_to_skip(effect, cause, now=now)
    key = None
    try:
        key = effect.destination.outgoing(key_of(effect, cause, own))
        call = call_of(effect, own)
    except UNUSABLE as error:
        if skip is None:
            return entry_of(effect, cause, key=key, fault=str(error))
        # what is skipped anyway stays so: history must not come alive
        return entry_of(effect, cause, key=key, skip=f"{skip} (unrendered: {error})")
    return entry_of(effect, cause, key=key, call=call, skip=skip)


def entry_of(  # noqa: PLR0913 - what may be missing of an entry
    effect: Effect,
    cause: Cause,
    *,
    key: str | None = None,
    call: Call | None = None,
    skip: str | None = None,
    fault: str | None = None,
) -> NewEntry:
    """The entry that *effect* owes *cause*, as far as it could be rendered."""
    event = cause.event
    rendered: dict[str, Any] = {}
    if call is not None:
        rendered = {name: getattr(call, name) for name in ("method", "path", "headers", "body")}
    elif fault is not None or skip is not None:
        rendered = {"body": kept(cause)}  # without a method: what it takes to render it later
    return NewEntry(
        sender=event.sender,
        event_id=event.event_id,
        effect=effect.name,
        kind=event.kind,
        key=event.key,
        revision=cause.revision,
        position=effect.position,
        ordered=effect.destination.ordered,
        destination=effect.destination.name,
        idempotency_key=key,
        lasting=effect.lasting,
        idempotent=effect.idempotent,
        happened_at=happened_at(event, dated=effect.dated),
        found=event.origin in {Origin.CORRECTION, Origin.READ},
        skip=skip,
        fault=fault,
        **rendered,
    )


def reason_to_skip(effect: Effect, cause: Cause, *, now: datetime | None) -> str | None:
    if cause.suppressed is not None or effect.max_age is None:
        return cause.suppressed
    assert now is not None
    happened = happened_at(cause.event, dated=effect.dated)
    return MAX_AGE if happened is not None and now - happened > effect.max_age else None


def happened_at(event: Event, *, dated: frozenset[Source]) -> datetime | None:
    """When it happened by the sender's clock; None where the sender did not say."""
    if event.occurred_at is not None:
        return event.occurred_at
    seen = event.observation
    if seen is None:
        return None
    nanoseconds = seen.changed_at
    if nanoseconds is None and (event.sender, seen.kind) in dated:
        nanoseconds = seen.version
    return None if nanoseconds is None else to_datetime(nanoseconds)


def key_of(effect: Effect, cause: Cause, names: Mapping[str, Any]) -> str:
    """The key in full; CallError for an empty one, which every cause would share."""
    key = usual_key(cause, effect.name) if effect.key is None else effect.key.text(names)
    if not key.strip():
        raise CallError("the idempotency key is empty")
    return key


def call_of(effect: Effect, names: Mapping[str, Any]) -> Call:
    return freeze(
        method=effect.method,
        path=effect.path.text(names),
        headers={name: value.text(names) for name, value in effect.headers.items()},
        json=None if effect.json is None else effect.json.value(names),
        has_json=effect.json is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an effect must know of its destination to be frozen."""

    name: str
    ordered: bool
    idempotent: bool
    key_header: str
    key_max_length: int
    key_format: Literal["text", "uuid"]

    def outgoing(self, key: str) -> str:
        return outgoing_key(key, self.key_max_length, self.key_format)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One `[effects.X]`, ready to render."""

    name: str
    position: int  #: in the configuration: the order within one revision of a resource
    gate: Gate
    destination: Target
    idempotent: bool
    method: str
    path: PathTemplate
    headers: Mapping[str, Template]
    json: JsonTemplate | None
    key: Template | None  #: None: the usual key
    lasting: bool  #: the key names neither version nor event
    max_age: timedelta | None
    dated: frozenset[Source]  #: (sender, kind) whose versions are times
