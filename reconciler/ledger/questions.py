"""Questions that the configuration must answer, because silence would cost money or an event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from reconciler.errors import Problem
from reconciler.ledger.globs import can_meet, matches
from reconciler.ledger.handlers import Handler
from reconciler.ledger.kinds import about, is_dated, is_observed
from reconciler.ledger.triggers import Reacting
from reconciler.settings.models import EffectSettings, Settings


def questions(settings: Settings, handlers: Sequence[Handler]) -> Iterator[Problem]:
    """Find everything that is left open or contradicts itself, over all reactions."""
    yield from overlaps(settings)
    for asked in reactions_of(settings, handlers):
        yield from fact_or_change(asked)
        yield from unsaid_if_stale(settings, asked)
    for name, effect in settings.effects.items():
        yield from unknown_age(settings, name, effect)
    yield from unsaid_first_seen(settings, handlers)


def reactions_of(settings: Settings, handlers: Sequence[Handler]) -> Iterator[Asked]:
    for name, sender in settings.senders.items():
        for number, step in enumerate(sender.apply):
            globs = tuple((name, glob) for glob in step.on)
            yield Asked(key=f"senders.{name}.apply[{number}]", reaction=step, facts=globs)
    for name, effect in settings.effects.items():
        globs = tuple(
            (sender, glob)
            for said, _, glob in (text.partition(":") for text in effect.on)
            for sender in settings.senders
            if matches([said], sender)
        )
        yield Asked(key=f"effects.{name}", reaction=effect, facts=globs)
    for handler in handlers:
        globs = tuple(
            (sender, glob)
            for glob in handler.on
            for sender in settings.senders
            if matches([handler.sender], sender)
        )
        yield Asked(key=handler.where, reaction=handler, facts=globs)


def fact_or_change(asked: Asked) -> Iterator[Problem]:
    reaction = asked.reaction
    if bool(reaction.on) == bool(reaction.on_change):
        message = (
            "say either `on` (facts: once per event) or `on_change` (changes: once per newer"
            " state, whoever found out)"
        )
        yield Problem(key=asked.key, message=message + ("; not both" if reaction.on else ""))
    if not reaction.on_change and reaction.becomes is not None:
        message = (
            "`becomes` compares with what was held before, which only `on_change` has; use `when`"
        )
        yield Problem(key=f"{asked.key}.becomes", message=message)
    if not reaction.on and reaction.if_stale is not None:
        message = "`if_stale` is about facts (`on`); a change is always newer"
        yield Problem(key=f"{asked.key}.if_stale", message=message)


def unsaid_if_stale(settings: Settings, asked: Asked) -> Iterator[Problem]:
    """A fact about a versioned resource may come after a newer one: does it still count?"""
    if asked.reaction.if_stale is not None:
        return
    for sender, glob in asked.facts:
        for kind, resource in settings.senders[sender].resources.items():
            if is_observed(resource):
                continue  # its events wait for a read: none is ever older than what we hold
            if any(can_meet(glob, other) for other in about(resource)):
                yield Problem(
                    key=f"{asked.key}.if_stale",
                    message=f"{glob!r} are events about {sender}:{kind}, which has versions, so one"
                    ' may arrive after a newer one has been applied. Say if_stale = "count" (it'
                    ' happened, so it still counts) or if_stale = "skip" (what is overtaken does'
                    " not). What must happen when something has become true belongs under"
                    " `on_change`.",
                )
                return


def overlaps(settings: Settings) -> Iterator[Problem]:
    """One event is about at most one resource."""
    for name, sender in settings.senders.items():
        for (one, first), (other, second) in combinations(sender.resources.items(), 2):
            met = [(a, b) for a in about(first) for b in about(second) if can_meet(a, b)]
            if met:
                yield Problem(
                    key=f"senders.{name}.resources.{other}.on",
                    message=f"{met[0][1]!r} and {met[0][0]!r} of {name}:{one} can be the same"
                    " event, and an event is about at most one resource: narrow one of them, and"
                    f" have the other read by [[senders.{name}.also_read]]",
                )


def unknown_age(settings: Settings, name: str, effect: EffectSettings) -> Iterator[Problem]:
    """A `max_age` that nothing can be held against would promise what it does not keep."""
    if effect.max_age is None:
        return
    key = f"effects.{name}.max_age"
    for text in (*effect.on, *effect.on_change):
        said, _, glob = text.partition(":")
        for sender_name, sender in settings.senders.items():
            if not matches([said], sender_name):
                continue
            for kind, resource in sender.resources.items():
                dated = resource.changed_at or (resource.list and resource.list.changed_at)
                if (
                    effect.on_change
                    and matches([glob], kind)
                    and resource.list is not None
                    and not dated
                    and not is_dated(resource)
                ):
                    message = (
                        f"a correction of {sender_name}:{kind} has no age: say where its listing"
                        f" has it, senders.{sender_name}.resources.{kind}.list.changed_at"
                    )
                    yield Problem(key=key, message=message)
            if effect.on and sender.event.occurred_at is None:
                message = (
                    "an event has no age: say where it has it,"
                    f" senders.{sender_name}.event.occurred_at"
                )
                yield Problem(key=key, message=message)


def unsaid_first_seen(settings: Settings, handlers: Sequence[Handler]) -> Iterator[Problem]:
    """A handler may ask for calls: of a kind without `list`, is what we never saw news?"""
    for name, sender in settings.senders.items():
        watched = [h for h in handlers if matches([h.sender], name)]
        for kind, resource in sender.resources.items():
            if resource.list is not None or resource.first_seen is not None:
                continue
            if any(
                matches(effect.on_change, f"{name}:{kind}") for effect in settings.effects.values()
            ):
                continue  # the settings ask already
            if watching := [h.where for h in watched if matches(h.on_change, kind)]:
                yield Problem(
                    key=f"senders.{name}.resources.{kind}.first_seen",
                    message="missing: this kind has no list, so nothing tells what is new from what"
                    f" is merely new to us, and {watching[0]} reacts to it. Say"
                    ' first_seen = "fire" (what we never saw is news) or "skip" (it is history)',
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One reaction as the settings have it."""

    key: str
    reaction: Reacting
    facts: tuple[tuple[str, str], ...]  #: (sender, type glob)
