"""Reading `on` and `on_change`: which senders, types and kinds a reaction speaks of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Literal, Protocol

from reconciler.errors import ReconcilerError
from reconciler.ledger.gates import Gate, Trigger
from reconciler.ledger.globs import matches
from reconciler.settings.models import Settings

OURSELVES = "reconciler"  #: the reserved name under which we tell of what we meet
MET = ("dead", "uncertain", "quarantined", "scan_failed", "sender_silent")


def read_trigger(settings: Settings, text: str, *, sender: str | None, kinds: bool) -> Trigger:
    """
    Read one glob of `on` or, with *kinds*, of `on_change`.

    *sender* is a glob over senders where it is said once for all; else *text* is `sender:glob`.
    Raises UnknownError for what matches nothing known.
    """
    said, glob = (sender, text) if sender is not None else split(text, kinds=kinds)
    if sender is None and said == OURSELVES:
        return own_trigger(glob, kinds=kinds)
    senders = frozenset(name for name in settings.senders if matches([said], name))
    if not senders:
        raise UnknownError(f"no sender is called {said!r}" + nearest(said, settings.senders))
    known = {kind for name in senders for kind in settings.senders[name].resources}
    if kinds and not any(matches([glob], kind) for kind in known):
        raise UnknownError(
            f"{' and '.join(sorted(senders))} has no kind {glob!r}" + nearest(glob, known)
        )
    return Trigger(senders=senders, glob=glob)


def own_trigger(glob: str, *, kinds: bool) -> Trigger:
    """What the reconciler itself meets, which `on` names like the types of a sender."""
    if kinds:
        raise UnknownError(f'{OURSELVES} has no kinds: say on = ["{OURSELVES}:dead"]')
    if not any(matches([glob], one) for one in MET):
        raise UnknownError(f"{OURSELVES} tells of no {glob!r}" + nearest(glob, MET))
    return Trigger(senders=frozenset({OURSELVES}), glob=glob)


def split(text: str, *, kinds: bool) -> tuple[str, str]:
    sender, colon, glob = text.partition(":")
    what, like = ("kind", "shop:order") if kinds else ("type", "shop:refund.succeeded")
    if not (colon and sender and glob):
        raise UnknownError(f'{text!r} must be "sender:{what}", like "{like}"')
    return sender, glob


def nearest(name: str, known: Collection[str]) -> str:
    """Suggest what was meant, or list what there is."""
    if close := get_close_matches(name, list(known), n=1):
        return f"; did you mean {close[0]!r}?"
    return f"; there is {', '.join(sorted(known))}" if known else "; there is none"


def sources_of(settings: Settings, gate: Gate) -> frozenset[tuple[str, str]]:
    """Spell a gate out: (sender, type glob) of its facts, (sender, kind) of its changes."""
    facts = ((sender, one.glob) for one in gate.facts for sender in one.senders)
    changes = (
        (sender, kind)
        for one in gate.changes
        for sender in one.senders
        for kind in settings.senders[sender].resources
        if matches([one.glob], kind)
    )
    return frozenset((*facts, *changes))


class Reacting(Protocol):
    """What an effect, an `apply` and a handler have in common."""

    @property
    def on(self) -> Sequence[str]: ...
    @property
    def on_change(self) -> Sequence[str]: ...
    @property
    def becomes(self) -> str | None: ...
    @property
    def when(self) -> str | None: ...
    @property
    def if_stale(self) -> Literal["count", "skip"] | None: ...


class UnknownError(ReconcilerError):
    """A name that is not in the configuration; says which is near."""
