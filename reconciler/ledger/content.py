"""Two descriptions of one resource: what is the same, what a newer one keeps, what differs."""

from collections.abc import Iterator, Mapping
from typing import Any

from reconciler.exact_json import Json, same
from reconciler.ledger.event import Observation, Origin

State = Mapping[str, Json]


def is_same(held: State | None, seen: Observation, *, origin: Origin, declared: bool) -> bool:
    """
    Tell whether *seen* says nothing else than what we hold.

    *declared*: the kind names its fields; then only those count, and of a webhook or a listing
    only those present on both sides, because either may be partial. A `get` is asked for the
    truth: a declared field that it has and we lack is news. Without declared fields a listing is
    compared over the members that both have (listings abridge), everything else as a whole.
    """
    ours, theirs = held or {}, seen.state or {}
    match origin:
        case Origin.READ:
            return has_all(ours, theirs) if declared else same(ours, theirs)
        case Origin.CORRECTION:
            return agree(ours, theirs)
        case Origin.WEBHOOK | Origin.FEED | Origin.REPLAY | Origin.OWN:
            return agree(ours, theirs) if declared else same(ours, theirs)


def agree(ours: State, theirs: State) -> bool:
    """Whether the members that both have are equal."""
    return all(same(ours[name], value) for name, value in theirs.items() if name in ours)


def has_all(ours: State, theirs: State) -> bool:
    """Whether each of their members is ours, and equal."""
    return all(name in ours and same(ours[name], value) for name, value in theirs.items())


def merged(held: State | None, seen: Observation) -> State | None:
    """
    What is held once *seen* is written: its state, and ours for declared fields that it lacks.

    A field that is present and null is null. Without a state of its own, what we held stays.
    """
    if seen.state is None:
        return held
    kept = {name: held[name] for name in seen.lacking if name in held} if held else {}
    return {**seen.state, **kept}


def differences(ours: State | None, theirs: State | None) -> list[dict[str, Any]]:
    """
    What differs, member by member: `path` (dotted), `ours`, `theirs`; absent is null.

    Objects are compared inside, lists as a whole.
    """
    return [
        {"path": path, "ours": left, "theirs": right}
        for path, left, right in _differing(ours or {}, theirs or {}, "")
    ]


def _differing(ours: State, theirs: State, prefix: str) -> Iterator[tuple[str, Json, Json]]:
    for name in sorted({*ours, *theirs}):
        left, right = ours.get(name), theirs.get(name)
        path = f"{prefix}{name}"
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from _differing(left, right, f"{path}.")
        elif not same(left, right):
            yield path, left, right
