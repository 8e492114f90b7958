"""What follows from the difference between an item and our row. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from reconciler.ledger.drifts import Found
from reconciler.ledger.versions import from_datetime

MISSED_BY_SOME = 20  #: rows that may always be missing from a listing
MISSED_BY_ALL = 3  #: and from an empty one


class Step(StrEnum):
    """What a scan does about it."""

    NOTHING = "nothing"
    CORRECT = "correct"  #: make a correction of it
    LEAVE = "leave"  #: for its webhook; it holds the watermark
    READ = "read"  #: ask for a read of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a webhook may take before a scan corrects in its place."""

    now: datetime  #: the database's time
    grace: timedelta  #: zero: none
    in_baseline: bool = False  #: what we never held is history, and is taken down at once

    def is_young(self, changed_at: int | None) -> bool:
        """
        Whether the webhook of a change at *changed_at* (ns since 1970) may still come.

        Without a time nothing shows its age, so that only the time it has stood counts.
        A stamp in the future counts as just now.
        """
        if self.grace <= timedelta(0):
            return False
        if changed_at is None:
            return True
        age = max(0, from_datetime(self.now) - changed_at)
        return age < self.grace // timedelta(microseconds=1) * 1000

    def has_stood(self, since: datetime | None) -> bool:
        """Whether our row has been behind for all of the grace already."""
        return since is not None and self.now - since >= self.grace


def next_step(
    found: Found,
    *,
    changed_at: int | None,
    since: datetime | None,
    patience: Patience,
    readable: bool,
) -> Step:
    """
    Decide about one item; *since*: when its drift was first seen, *readable*: it has a `get`.

    Asking for a read of a difference at one version waits for nothing: it changes no state. Nor
    does what was never held in the baseline: left, it would be news to the scan after it.
    """
    match found:
        case Found.MISSING if patience.in_baseline:
            return Step.CORRECT
        case Found.AHEAD:
            return Step.NOTHING
        case Found.CONFLICT:
            return Step.READ if readable else Step.NOTHING
        case Found.MISSING | Found.BEHIND | Found.BURIED:
            if patience.is_young(changed_at) and not patience.has_stood(since):
                return Step.LEAVE
            return Step.READ if found is Found.BURIED and readable else Step.CORRECT


def absent_too_many(*, absent: int, held: int, listed: int, percent: int) -> bool:
    """
    Whether so many of our rows are missing that an outage is likelier than their deletion.

    A few never stop a scan: each is confirmed by a read of its own anyway. But a listing with
    nothing at all in it is suspected sooner. *percent* 100 suspects nothing.
    """
    few = MISSED_BY_ALL if listed == 0 else MISSED_BY_SOME
    return absent > few and absent * 100 > held * percent
