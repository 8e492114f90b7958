"""Whether the database went back in time, judged from one look and from what we remember."""

from dataclasses import dataclass, replace
from enum import Enum
from uuid import UUID

from outbox.generations import Place, Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What this daemon knows of the database without asking it."""

    mark: UUID  #: which of the marks is ours
    beat: int  #: how far we have moved it, and seen that committed
    generation: int  #: the latest that we have seen
    synchronous: bool  #: whether commits waited for a standby when we looked last
    timeline: int | None = None  #: on which we looked last; None: cannot be told
    flushed: int | None = None  #: how much WAL was on disk then


class Verdict(Enum):
    """What one look comes to."""

    CURRENT = "current"  #: nothing is wrong
    FIRST = "first"  #: this database has never been looked at
    FOLLOW = "follow"  #: a standby took over, and nothing was lost
    BACK = "back"  #: it went back in time


def judge(seen: Seen, remembered: Remembered | None) -> tuple[Verdict, str]:
    """
    Say what *seen* comes to, and why.

    A new timeline alone is a failover, or a recovery to a point in time. It lost nothing if
    commits waited for the standby and our mark is where we left it; without either we cannot
    know. Where another process has opened a generation since we looked, what we remember of
    before is covered by that.
    """
    generation = seen.generation
    if generation is None:
        if remembered is None:
            return Verdict.FIRST, "first"
        return Verdict.BACK, "nothing is left of what this daemon has written"
    is_behind = remembered is not None and _is_behind(seen, remembered)
    if difference := moved(generation.place, seen.place):
        promoted = difference == "timeline" and later(generation.place, seen.place)
        if promoted and remembered is not None and remembered.synchronous and not is_behind:
            return Verdict.FOLLOW, "a synchronous standby took over"
        return Verdict.BACK, REASONS[difference]
    if is_behind and remembered is not None and generation.number <= remembered.generation:
        return Verdict.BACK, "it is older than what this daemon remembers"
    return Verdict.CURRENT, generation.reason


def moved(was: Place, is_: Place) -> str | None:
    """What is different between two places; the timeline only where nothing else is."""
    for name in ("system_identifier", "database_oid", "table_oid", "timeline"):
        if getattr(was, name) != getattr(is_, name):
            return name
    return None


def _is_behind(seen: Seen, remembered: Remembered) -> bool:
    """
    Whether *seen* is less than what we remember: our mark, or the WAL of its timeline.

    Not the number of the next transaction, which a crash may take back though nothing is lost.
    """
    if seen.beat is None or seen.beat < remembered.beat:
        return True
    if seen.flushed is None or remembered.flushed is None:
        return False
    return seen.place.timeline == remembered.timeline and seen.flushed < remembered.flushed


def later(was: Place, is_: Place) -> bool:
    return was.timeline is not None and is_.timeline is not None and is_.timeline > was.timeline


def next_number(seen: Seen, remembered: Remembered | None) -> int:
    """The number of the generation to open: higher than any that we have seen."""
    known = seen.generation.number if seen.generation else 0
    return max(known, remembered.generation if remembered else 0) + 1


def caught_up(remembered: Remembered, seen: Seen) -> Remembered:
    """What is to be remembered after a look that found nothing wrong."""
    assert seen.generation is not None
    return replace(
        remembered,
        generation=seen.generation.number,
        synchronous=seen.synchronous,
        timeline=seen.place.timeline,
        flushed=seen.flushed,
    )


REASONS = {
    "system_identifier": "it is in another database server than it was",
    "database_oid": "it is in another database than it was",
    "table_oid": "its tables were made anew",
    "timeline": "its server was recovered or promoted, and may have lost its latest commits",
}
