"""Whether each effect's key is the same on every path, and no other effect's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from reconciler.errors import Problem
from reconciler.ledger.causes import PATH_NAMES
from reconciler.ledger.effects import Effect
from reconciler.ledger.keys import USUAL, Keyed, meetings
from reconciler.ledger.kinds import is_observed
from reconciler.ledger.triggers import sources_of
from reconciler.settings.models import Settings

#: what the usual keys name; `{{ key }}` of a fact is null where it is about no resource
USUAL_NAMES = {
    "fact": frozenset({"event_id"}),
    "change": frozenset({"sender", "kind", "key", "version", "effect"}),
}


def key_questions(settings: Settings, effects: Sequence[Effect]) -> Iterator[Problem]:
    """Find keys that a lost webhook, a second sender or a second effect would make wrong."""
    keyed = [keyed_of(settings, effect) for effect in effects]
    for effect, one in zip(effects, keyed, strict=True):
        place = f"effects.{effect.name}.idempotency_key"
        if one.what == "change":
            for message in unlike_on_paths(settings, effect, one):
                yield Problem(key=place, message=message)
    for one, message in meetings(keyed):
        yield Problem(key=f"effects.{one.name}.idempotency_key", message=message)


def unlike_on_paths(settings: Settings, effect: Effect, one: Keyed) -> Iterator[str]:
    """Say what makes the key of a change depend on who found the change out."""
    if unlike := sorted(one.named & PATH_NAMES):
        yield (
            f"the key names {', '.join(unlike)}, which a webhook and a correction of the same"
            " change do not share, so that it would be called twice; name what they do share,"
            f' like "{USUAL["change"]}" (the usual key), or "{effect.name}:{{{{ key }}}}" for what'
            " happens once in a resource's life"
        )
    if effect.key is not None:
        return
    for sender, kind in sorted(one.sources):
        if is_observed(settings.senders[sender].resources[kind]):
            yield (
                f'{sender}:{kind} has no version of its own (kind = "observed"), so the usual'
                " key would name the moment of our read, which differs from path to path; say what"
                f' tells two calls apart, like "{effect.name}:{{{{ key }}}}" for what happens once'
                " in a resource's life"
            )


def keyed_of(settings: Settings, effect: Effect) -> Keyed:
    what: Literal["fact", "change"] = "change" if effect.gate.changes else "fact"
    return Keyed(
        name=effect.name,
        destination=effect.destination.name,
        what=what,
        template=USUAL[what] if effect.key is None else effect.key.source,
        named=USUAL_NAMES[what] if effect.key is None else effect.key.names,
        sources=sources_of(settings, effect.gate),
    )
