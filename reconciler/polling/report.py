"""What came of a run: figures of a scan, and one line per resource that is not in sync."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

from outbox.entry import State
from reconciler.ledger.batch import Result
from reconciler.ledger.content import agree
from reconciler.ledger.event import Outcome
from reconciler.ledger.guard import Held
from reconciler.ledger.reactions import Asked
from reconciler.polling.slots import Mode

Item = dict[str, Any]
Note = Callable[[Item], None]  #: takes each item of a run that is not in sync


class Fate(StrEnum):
    """What one resource came to."""

    IN_SYNC = "in_sync"
    WOULD_CORRECT = "would_correct"
    CORRECTED = "corrected"
    AHEAD = "ahead"  #: we hold something newer than what was listed
    GONE = "gone"  #: the sender says that it was deleted
    UNKNOWN = "unknown"  #: 404 without a declared meaning
    FAILED = "failed"


class End(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    DEADLINE = "deadline"  #: its time was up; the next run goes on where it was
    STOPPED = "stopped"  #: we were asked to stop; the next run goes on where it was
    LEASE_LOST = "lease_lost"  #: another run has taken it over
    AWAY = "away"  #: the sender did not answer
    REFUSED = "refused"  #: the sender refused
    PAGE_BROKEN = "page_broken"  #: what came is no page of the listing
    CRASHED = "crashed"  #: something of ours, or of the user's, failed in no foreseen way
    MASS_CHANGE = "mass_change"  #: too much is missing: taken for an outage


@dataclass(slots=True, kw_only=True)
class ScanReport:
    """One run of a scan. Its figures are of this run, also where a pass took several."""

    run_id: UUID
    sender: str
    kind: str
    mode: Mode
    dry_run: bool = False
    end: End = End.COMPLETED
    error: str | None = None
    pages: int = 0
    items: int = 0  #: that could be read
    in_sync: int = 0
    ahead: int = 0
    corrected: int = 0
    left: int = 0  #: for their webhooks
    asked: int = 0  #: reads that were requested
    quarantined: int = 0
    failed: int = 0  #: corrections that could not be applied
    absent: int = 0  #: of ours, not listed any more
    watermark: str | None = None
    asked_keys: list[str] = field(default_factory=list)  #: only for runs by hand

    @property
    def completed(self) -> bool:
        return self.end is End.COMPLETED

    def facts(self) -> dict[str, Any]:
        """The figures as a log line has them."""
        figures = {
            name: getattr(self, name)
            for name in (
                *("pages", "items", "in_sync", "ahead", "corrected", "left", "asked"),
                *("quarantined", "failed", "absent"),
            )
        }
        return {
            "sender": self.sender,
            "kind": self.kind,
            "mode": self.mode.value,
            "run_id": str(self.run_id),
            "end": self.end.value,
            **({"error": self.error} if self.error else {}),
            **figures,
        }


def item_of(result: Result, *, dry_run: bool) -> Item:
    """One resource after its event was applied, or rehearsed."""
    event = result.event
    return resource_item(
        event.sender,
        event.kind or "",
        event.key or "",
        fate=fate_of(result, dry_run=dry_run),
        drift=result.drift.value if result.drift else None,
        ours=side(result.held),
        theirs=_theirs(result),
        differences=[dict(one) for one in result.differences],
        effects=[_effect(asked) for asked in result.effects if asked.state is State.PENDING],
        skipped=[
            {**_effect(asked), "reason": asked.reason}
            for asked in result.effects
            if asked.state is not State.PENDING
        ],
        error=result.fault,
    )


def _effect(asked: Asked) -> Item:
    return {
        "effect": asked.effect,
        "destination": asked.destination,
        "idempotency_key": asked.idempotency_key,
    }


def fate_of(result: Result, *, dry_run: bool) -> Fate:
    """What a correction or a read came to."""
    seen = result.event.observation
    absent = seen is not None and seen.deleted
    if result.fault is not None:
        return Fate.FAILED
    if absent:
        return Fate.GONE
    if result.outcome is Outcome.APPLIED:
        return Fate.WOULD_CORRECT if dry_run else Fate.CORRECTED
    return Fate.AHEAD if is_ahead(result) else Fate.IN_SYNC


def is_ahead(result: Result) -> bool:
    """Whether we hold something newer, or wrote it after this was asked for."""
    held, seen = result.held, result.event.observation
    if held is None or held.version is None or seen is None or seen.version is None:
        return False
    if held.version == seen.version and not held.deleted:
        return not agree(held.state or {}, seen.state or {})
    return held.version >= seen.version


def resource_item(  # noqa: PLR0913 - the members of one line of the report
    sender: str,
    kind: str,
    key: str,
    *,
    fate: Fate,
    drift: str | None = None,
    ours: Mapping[str, Any] | None = None,
    theirs: Mapping[str, Any] | None = None,
    differences: list[Item] | None = None,
    effects: list[Item] | None = None,
    skipped: list[Item] | None = None,
    error: str | None = None,
) -> Item:
    """One line of the report; `skipped` and `error` only where there are such."""
    return {
        "sender": sender,
        "kind": kind,
        "key": key,
        "result": fate.value,
        "drift": drift,
        "ours": ours,
        "theirs": theirs,
        "differences": differences or [],
        "effects": effects or [],
        **({"skipped": skipped} if skipped else {}),
        **({"error": error} if error else {}),
    }


def side(held: Held | None) -> dict[str, Any] | None:
    """What we hold, as an item shows it; versions are strings."""
    if held is None or held.version is None:
        return None
    return {"version": str(held.version), "deleted": held.deleted, "state": held.state}


def _theirs(result: Result) -> dict[str, Any] | None:
    seen = result.event.observation
    if seen is None or (seen.deleted and seen.version is None):
        return None
    # an `observed` version is ours, and known only once it was written
    version = (
        seen.version if seen.version is not None else (result.now.version if result.now else None)
    )
    return {
        "version": None if version is None else str(version),
        "deleted": seen.deleted,
        "state": seen.state,
    }
