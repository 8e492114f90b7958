"""Up to where incremental scans are complete. Pure; times are nanoseconds since 1970."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Stamp:
    """A time of change by the sender's clock, with as many digits as the sender gave."""

    ns: int
    digits: int = 0  #: of the second's fraction

    def to_json(self) -> list[int]:
        return [self.ns, self.digits]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far a pass has read: kept in its checkpoint, page by page."""

    newest: Stamp | None = None  #: the newest item read
    oldest_left: Stamp | None = None  #: the oldest item left for its webhook
    unknown_left: bool = False  #: an item was left that does not say when it changed
    shuffled: bool = False  #: an item came after one that had changed later

    def read(self, stamp: Stamp) -> "Reach":
        if self.newest is None:
            return replace(self, newest=stamp)
        shuffled = self.shuffled or stamp.ns < self.newest.ns
        return replace(self, newest=max(self.newest, stamp), shuffled=shuffled)

    def left(self, stamp: Stamp | None) -> "Reach":
        if stamp is None:
            return replace(self, unknown_left=True)
        oldest = stamp if self.oldest_left is None else min(self.oldest_left, stamp)
        return replace(self, oldest_left=oldest)

    def to_json(self) -> dict[str, Any]:
        return {
            "newest": self.newest.to_json() if self.newest else None,
            "oldest_left": self.oldest_left.to_json() if self.oldest_left else None,
            "unknown_left": self.unknown_left,
            "shuffled": self.shuffled,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Reach":
        return cls(
            newest=_stamp(value["newest"]),
            oldest_left=_stamp(value["oldest_left"]),
            unknown_left=bool(value.get("unknown_left")),
            shuffled=bool(value.get("shuffled")),
        )


def watermark_of(reach: Reach, *, pass_started: int) -> Stamp | None:
    """
    Say how far a pass was complete: the newest item read, but never beyond the oldest one
    left for its webhook, nor beyond the start of the pass.

    One item stamped in the future would otherwise blind every scan until then. None: nothing
    says how far, as where an item was left that has no time; the watermark stays where it is.
    """
    if reach.newest is None or reach.unknown_left:
        return None
    mark = reach.newest if reach.oldest_left is None else min(reach.newest, reach.oldest_left)
    if mark.ns > pass_started:
        mark = Stamp(ns=pass_started, digits=mark.digits)
    return mark


def moved(held: Stamp | None, found: Stamp | None) -> Stamp | None:
    """Move the watermark, never backwards."""
    return max((stamp for stamp in (held, found) if stamp is not None), default=None)


def _stamp(value: list[int] | None) -> Stamp | None:
    return None if value is None else Stamp(ns=value[0], digits=value[1])
