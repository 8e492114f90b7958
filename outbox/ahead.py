"""Calls that are leased before there is a slot for them."""

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import NamedTuple

from outbox.leasing import Leased

MOMENT = 0.16  # seconds that what is leased ahead keeps the slots of a destination busy
MOST = 800  # calls of one destination; and `lease_statement.AHEAD_BYTES` of their bodies
OVERDUE = 5 * MOMENT  # of waiting, after which a call is given back
WEIGHT = 1 / 16  # of the latest call in how long calls usually take
TOO_LONG = 2 * MOMENT  # a call that takes this long leaves nothing to gain


class Ready(NamedTuple):
    """A call that is leased, and since when."""

    leased: Leased
    at: float  #: by the relay's clock, before it was asked for


class Ahead:
    """
    What waits for slots, for each destination.

    A lease costs about as much for one call as for hundreds, and where calls take milliseconds
    their slots would be idle for as long as it takes. So as many are leased as the slots will
    have called in a moment; where calls take longer than that, or go wrong, or may not be
    repeated, nothing is. What waits here is not under way, but counts as if it were in every
    other process, so that all of them together never call more than they may.
    """

    def __init__(self) -> None:
        self._waiting: defaultdict[str, deque[Ready]] = defaultdict(deque)
        self._usual: defaultdict[str, float] = defaultdict(lambda: TOO_LONG)  # seconds of a call

    def waiting(self, destination: str) -> int:
        """How many calls wait for a slot."""
        return len(self._waiting[destination])

    def more(self, destination: str, slots: int) -> int:
        """How many more to lease for so many *slots*: none while most of them still wait."""
        usual = self._usual[destination]
        if usual >= MOMENT:
            return 0
        busy = slots * MOMENT
        deep = MOST if usual * MOST <= busy else int(busy / usual)
        waiting = self.waiting(destination)
        return deep - waiting if 3 * waiting <= 2 * deep else 0

    def add(self, leased: Iterable[Leased], *, at: float) -> None:
        """Let them wait, the first of them first."""
        for one in leased:
            self._waiting[one.destination].append(Ready(one, at))

    def next(self, destination: str) -> Ready | None:
        """The one that has waited longest; None where none waits."""
        waiting = self._waiting[destination]
        return waiting.popleft() if waiting else None

    def went(self, destination: str, *, seconds: float, well: bool) -> None:
        """One call took so many *seconds*; not *well*: nothing is leased ahead for a while."""
        usual = self._usual[destination]
        self._usual[destination] = usual + (seconds - usual) * WEIGHT if well else TOO_LONG

    def drop(self, destination: str) -> list[Leased]:
        """Those that wait for this destination; they wait no longer."""
        return [one.leased for one in self._waiting.pop(destination, ())]

    def drop_all(self) -> list[Leased]:
        """All that wait; they wait no longer."""
        return [one for name in list(self._waiting) for one in self.drop(name)]

    def drop_overdue(self, now: float) -> list[Leased]:
        """Those that have waited for too long: their calls take longer than they did."""
        late = [name for name, at in self._since().items() if now - at >= OVERDUE]
        for name in late:
            self._usual[name] = TOO_LONG
        return [one for name in late for one in self.drop(name)]

    def overdue_in(self, now: float) -> float | None:
        """Seconds until the first of those that wait is overdue."""
        since = min(self._since().values(), default=None)
        return None if since is None else max(0.0, since + OVERDUE - now)

    def _since(self) -> dict[str, float]:
        return {name: waiting[0].at for name, waiting in self._waiting.items() if waiting}
