"""The version guard: what one event about a resource comes to, given what we hold. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from reconciler.exact_json import Json
from reconciler.ledger.content import is_same, merged
from reconciler.ledger.event import Change, Event, Observation, Origin, Outcome
from reconciler.ledger.versions import from_datetime

FOUND_OUT = frozenset({Origin.CORRECTION, Origin.READ})  #: paths that no webhook has told us on
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DriftKind(StrEnum):
    """How the sender's description and ours differ."""

    MISSING = "missing"  #: we hold nothing
    BEHIND = "behind"  #: we hold something older
    CONFLICT = "conflict"  #: equal version, other content
    ABSENT = "absent"  #: we hold something that the sender says is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRule:
    """What the guard has to know of a kind."""

    has_get: bool
    gone_means_deleted: bool = False  #: what 404 and 410 of its `get` mean
    observed: bool = False  #: the sender has no versions: the start of a read is one
    declared: bool = True  #: the kind names its fields
    lag: timedelta = timedelta(0)  #: how far the sender's `get` may be behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The row of one resource, under its lock. Without a version nothing is held."""

    version: int | None = None
    revision: int = 0
    state: Mapping[str, Json] | None = None  #: of a tombstone: the last one
    deleted: bool = False
    origin: Origin = Origin.WEBHOOK
    updated_at: datetime | None = None
    read_at: datetime | None = None  #: when the read that wrote it had ended
    just_written: bool = False  #: by this very transaction: no read started after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one event comes to, and what follows."""

    outcome: Outcome
    held: Held  #: the row afterwards
    change: Change | None = None
    previous: Held | None = None  #: the row before a change; None: nothing was held
    written: bool = False
    same_version: bool = False  #: the write leaves the version where it is
    fact: bool = False  #: its facts count ...
    stale: bool = False  #: ... but only where `if_stale` says so
    drift: DriftKind | None = None
    request: str | None = None  #: why the resource must be read
    settles: bool = False  #: a read that answers requests made before it started


def decide(
    held: Held, event: Event, rule: KindRule, *, twice: bool = False, now: datetime = EPOCH
) -> Decision:
    """
    Say what *event* comes to while the row *held* is locked (design: "Order of state").

    *twice*: a delivered event of the same resource, type, version and state was claimed before
    under another id. *now* is the database's clock, read under the lock; for reads only.
    """
    assert event.observation is not None
    match event.origin:
        case Origin.WEBHOOK | Origin.FEED | Origin.REPLAY | Origin.OWN:
            return _delivered(held, event, event.observation, rule, twice=twice)
        case Origin.CORRECTION:
            if rule.observed:
                return _observed(held, event, event.observation, rule, now=now)
            return _listed(held, event, event.observation, rule)
        case Origin.READ:
            return _read(held, event, event.observation, rule, now=now)


def needs_read(event: Event, rule: KindRule) -> str | None:
    """Why a delivered event has to wait for a read, whatever we hold; None: it need not."""
    seen = event.observation
    assert seen is not None
    if rule.observed or seen.version is None:
        return "no version"
    if seen.state is None and not seen.deleted:
        return "no state"
    return None


def _delivered(
    held: Held, event: Event, seen: Observation, rule: KindRule, *, twice: bool
) -> Decision:
    if reason := needs_read(event, rule):
        return Decision(outcome=Outcome.DEFERRED, held=held, request=reason)
    assert seen.version is not None
    if held.version is None or seen.version > held.version:
        if held.deleted and not seen.deleted and rule.has_get:
            # only a read revives: "newer" may be older news about a thing that came back
            return Decision(outcome=Outcome.DEFERRED, held=held, request="newer than deleted")
        return _newer(held, event, seen, rule, fact=True)
    if twice or seen.version < held.version:
        return Decision(outcome=Outcome.STALE, held=held, fact=not twice, stale=True)
    return _at_our_version(held, event, seen, rule)


def _at_our_version(held: Held, event: Event, seen: Observation, rule: KindRule) -> Decision:
    if seen.deleted and not held.deleted and not (rule.has_get and rule.gone_means_deleted):
        # The sender says that it is deleted, and no read could ever say so: believe it. Should
        # it have been made again since, at the same version, a read that finds it revives it.
        written = _newer(held, event, seen, rule, fact=True)
        return replace(
            written, same_version=True, request="deleted at our version" if rule.has_get else None
        )
    if seen.deleted or held.deleted:
        other = seen.deleted != held.deleted
    else:
        other = not is_same(held.state, seen, origin=event.origin, declared=rule.declared)
    if held.origin in FOUND_OUT:
        outcome = Outcome.LATE
    else:
        outcome = Outcome.TIED if other else Outcome.APPLIED
    request = "equal version, other content" if other and rule.has_get else None
    return Decision(outcome=outcome, held=held, fact=True, request=request)


def _listed(held: Held, event: Event, seen: Observation, rule: KindRule) -> Decision:
    same = is_same(held.state, seen, origin=event.origin, declared=rule.declared)
    newer = seen.version is not None and (held.version is None or seen.version > held.version)
    if seen.version is None or (seen.state is None and not seen.deleted):
        # a listing that says too little to be written can still say that a read is due
        due = newer or (seen.version is None and (held.version is None or not same))
        return _unwritten(held, request="the listing says too little" if due else None, rule=rule)
    if newer:
        if held.deleted and not seen.deleted and rule.has_get:
            return _unwritten(held, request="newer than deleted", rule=rule)
        return _newer(held, event, seen, rule)
    if seen.version == held.version and not held.deleted and not same:
        conflict = _unwritten(held, request="equal version, other content", rule=rule)
        return replace(conflict, outcome=Outcome.TIED)
    return Decision(outcome=Outcome.STALE, held=held)


def _read(
    held: Held, event: Event, seen: Observation, rule: KindRule, *, now: datetime
) -> Decision:
    in_time = _started_after(event, held, held.updated_at, rule, now=now)
    if seen.deleted and seen.version is None:
        return _absent(held, event, in_time=in_time)
    if rule.observed:
        return _observed(held, event, seen, rule, now=now)
    if seen.version is None or (seen.state is None and not seen.deleted):
        return Decision(outcome=Outcome.STALE, held=held)
    if held.version is None or seen.version > held.version:
        return replace(_newer(held, event, seen, rule), settles=in_time)
    if seen.version < held.version:
        return Decision(outcome=Outcome.STALE, held=held, settles=True)
    return _equal(held, event, seen, rule, in_time=in_time)


def _absent(held: Held, event: Event, *, in_time: bool) -> Decision:
    if held.version is None or held.deleted:
        return Decision(outcome=Outcome.STALE, held=held, settles=True)
    if not in_time:  # written since: not absent any more, as far as we know
        return Decision(outcome=Outcome.STALE, held=held)
    return _gone(held, event)


def _equal(
    held: Held, event: Event, seen: Observation, rule: KindRule, *, in_time: bool
) -> Decision:
    """A read at our version: of two states there, the one that was read later is the truth."""
    same = held.deleted == seen.deleted and is_same(
        held.state, seen, origin=event.origin, declared=rule.declared
    )
    if same or not in_time:
        return Decision(outcome=Outcome.STALE, held=held, settles=same)
    written = _newer(held, event, seen, rule)
    return replace(written, drift=DriftKind.CONFLICT, same_version=True, settles=True)


def _observed(
    held: Held, event: Event, seen: Observation, rule: KindRule, *, now: datetime
) -> Decision:
    assert event.read_started is not None
    started = from_datetime(event.read_started)
    if held.version is None:
        return replace(_newer(held, event, replace(seen, version=started), rule), settles=True)
    same = not held.deleted and is_same(
        held.state, seen, origin=event.origin, declared=rule.declared
    )
    if same:
        return Decision(outcome=Outcome.STALE, held=held, settles=True)
    if not _started_after(event, held, held.read_at, rule, now=now):
        return _unwritten(held, request="two reads overlapped", rule=rule)
    if held.deleted and event.origin is Origin.CORRECTION and rule.has_get:
        return _unwritten(held, request="newer than deleted", rule=rule)
    # never downwards, even where the database's clock was set back
    version = max(started, held.version + 1)
    return replace(_newer(held, event, replace(seen, version=version), rule), settles=True)


def _newer(
    held: Held, event: Event, seen: Observation, rule: KindRule, *, fact: bool = False
) -> Decision:
    """The row with *seen* written over it; the caller has compared the versions."""
    keeps_state = seen.deleted and held.state is not None  # the last state of what is deleted
    after = replace(
        held,
        version=seen.version,
        revision=held.revision + 1,
        state=held.state if keeps_state else merged(held.state, seen),
        deleted=seen.deleted,
        origin=event.origin,
        just_written=True,
    )
    partial = bool(seen.lacking) and not seen.deleted and event.origin is not Origin.READ
    found_out = event.origin in FOUND_OUT
    return Decision(
        outcome=Outcome.APPLIED,
        held=after,
        change=_change(held, seen),
        previous=None if held.version is None else held,
        written=True,
        fact=fact,
        drift=(_drift(held) if found_out else None),
        request="fields are missing" if partial and rule.has_get else None,
    )


def _gone(held: Held, event: Event) -> Decision:
    """The row as a tombstone at the version that it has: an absence has no version of its own."""
    after = replace(
        held,
        revision=held.revision + 1,
        deleted=True,
        origin=event.origin,
        just_written=True,
    )
    return Decision(
        outcome=Outcome.APPLIED,
        held=after,
        change=Change.DELETED,
        previous=held,
        written=True,
        same_version=True,
        drift=DriftKind.ABSENT,
        settles=True,
    )


def _unwritten(held: Held, *, request: str | None, rule: KindRule) -> Decision:
    """A listed item or a read that writes nothing, and may ask for a (further) read."""
    if request is None or not rule.has_get:
        return Decision(outcome=Outcome.STALE, held=held)
    return Decision(outcome=Outcome.DEFERRED, held=held, request=request)


def _change(held: Held, seen: Observation) -> Change | None:
    if seen.deleted:
        return None if held.deleted else Change.DELETED
    if held.version is None:
        return Change.CREATED
    return Change.REVIVED if held.deleted else Change.UPDATED


def _drift(held: Held) -> DriftKind:
    return DriftKind.MISSING if held.version is None else DriftKind.BEHIND


def _started_after(
    event: Event, held: Held, moment: datetime | None, rule: KindRule, *, now: datetime
) -> bool:
    """Whether this read began after the row was last written, the sender's lag included."""
    if held.just_written or event.read_started is None:
        return False
    # a moment in the future comes from a clock that was set back since: it must not guard
    return moment is None or moment > now or event.read_started > moment + rule.lag
