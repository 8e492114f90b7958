"""Idempotency keys of effects: the usual ones, and which could meet at a destination."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

from reconciler.ledger.calls import CallError
from reconciler.ledger.causes import Cause
from reconciler.ledger.event import Change
from reconciler.ledger.globs import can_meet

Source = tuple[str, str]  #: (sender, type glob) of a fact, (sender, kind) of a change

USUAL = {
    "fact": "{{ event_id }}",
    "change": "{{ sender }}:{{ kind }}:{{ key }}:{{ version }}:{{ effect }}",
}


def usual_key(cause: Cause, effect: str) -> str:
    """Build the key of a configured effect that sets none: the same on every path."""
    return cause.event.event_id if cause.what == "fact" else change_key(cause, effect)


def sent_key(cause: Cause, effect: str) -> str:
    """Build the key of a call that a handler asks for without naming one."""
    if cause.what == "fact":
        return f"{cause.event.event_id}:{effect}"
    return change_key(cause, effect)


def change_key(cause: Cause, effect: str) -> str:
    event = cause.event
    if event.version is None:
        raise CallError("the usual key names the version, and this change has none")
    key = f"{event.sender}:{event.kind}:{event.key}:{event.version}:{effect}"
    if event.change in (Change.DELETED, Change.REVIVED):  # at a version that had a change before
        key += f":{event.change.value}"
    return key


def normal(template: str) -> str:
    """
    Return *template* without the spaces that mean nothing.

    >>> normal("{{event_id}}:a") == normal("{{  event_id }}:a")
    True
    """
    return re.sub(r"\{\{\s*(.*?)\s*\}\}", r"{{ \1 }}", template, flags=re.DOTALL)


def meetings(effects: Sequence[Keyed]) -> Iterator[tuple[Keyed, str]]:
    """
    Find the effects whose keys could be equal for two calls that are not the same call.

    Yields an effect (the later one of a pair) and what to do. Two different templates are taken
    to differ; what they render to is watched again when an entry is written.
    """
    for one in effects:
        if told := meets_itself(one):
            yield one, told
    for one, other in combinations(effects, 2):
        if one.destination == other.destination and could_share(one, other):
            message = (
                f'the key "{other.template}" could be that of effects.{one.name} too, at the same'
                f" destination {other.destination!r}, which would take the second call for a"
                f' repetition of the first; set idempotency_key = "{distinct(other)}" or the like'
            )
            yield other, message


def meets_itself(one: Keyed) -> str | None:
    """Say why calls of one effect about different things could share a key; None: they cannot."""
    if not one.named & {"event_id", "key"}:
        return None  # whatever it names instead was chosen to tell its calls apart
    senders = {sender for sender, _ in one.sources}
    if len(senders) > 1 and "sender" not in one.named:
        return (
            f'the key "{one.template}" does not tell {listed(senders)} apart, whose ids may be'
            f' equal; set idempotency_key = "{{{{ sender }}}}:{distinct(one)}" or the like'
        )
    kinds = {kind for _, kind in one.sources}
    if one.what == "change" and len(kinds) > 1 and "kind" not in one.named:
        return (
            f'the key "{one.template}" does not tell {listed(kinds)} apart, whose keys may be'
            f' equal; set idempotency_key = "{{{{ kind }}}}:{distinct(one)}" or the like'
        )
    return None


def could_share(one: Keyed, other: Keyed) -> bool:
    """Tell whether some cause of *one* and some cause of *other* give equal keys."""
    if normal(one.template) != normal(other.template) or "effect" in one.named:
        return False
    return any(
        not are_told_apart(one, other, first, second)
        for first, second in product(one.sources, other.sources)
    )


def are_told_apart(one: Keyed, other: Keyed, first: Source, second: Source) -> bool:
    """Tell whether the key of both always differs between a cause of *first* and of *second*."""
    (sender, about), (other_sender, other_about) = first, second
    named = one.named  # the templates are equal, so their names are
    if sender != other_sender and "sender" in named:
        return True
    if one.what != other.what:
        return False
    if one.what == "change":
        return about != other_about and "kind" in named
    # one event has one type, and one id stands for one event of its sender
    by_type = "type" in named or ("event_id" in named and sender == other_sender)
    return by_type and not can_meet(about, other_about)


def distinct(one: Keyed) -> str:
    return f"{normal(one.template)}:{one.name}"


def listed(names: set[str]) -> str:
    return " and ".join(sorted(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """What is known of an effect's keys before any event has come."""

    name: str
    destination: str
    what: Literal["fact", "change"]
    template: str
    named: frozenset[str]  #: the names that the template uses
    sources: frozenset[
        tuple[str, str]
    ]  #: (sender, type glob) of a fact, (sender, kind) of a change
