"""Calls that are leased before there is a slot for them."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from outbox.breaker import Seen
from outbox.flow import Asked
from outbox.leasing import Leased
from outbox.pausing import ALL
from outbox.telling import is_well

MOMENT = 0.16  # seconds that what is leased ahead keeps the slots of a destination busy
MOST = 800  # calls of one destination; and `lease_statement.AHEAD_BYTES` of their bodies
OVERDUE = 5 * MOMENT  # of waiting, after which a call is given back
WEIGHT = 1 / 16  # of the latest call in how long calls usually take
UNKNOWN = 2 * MOMENT  # taken for usual until some calls were quick


class Ready(NamedTuple):
    """A call that is leased, and since when."""

    leased: Leased
    at: float  #: by the relay's clock, before it was asked for


class Ahead:
    """
    What waits for slots, for each destination.

    A lease costs about as much for one call as for hundreds, and where calls take milliseconds
    their slots would be idle for as long as it takes. So as many are leased as the slots will
    have called in a moment; where calls take longer than that, or go wrong, nothing is. What waits
    here is not under way, but counts as if it were in every other process, so that all of them
    together never call more than they may.
    """

    def __init__(self, give_back: Callable[[Sequence[Leased]], None]) -> None:
        self._give_back = give_back
        self._waiting: defaultdict[str, deque[Ready]] = defaultdict(deque)
        self._bytes: Counter[str] = Counter()
        self._usual: defaultdict[str, float] = defaultdict(lambda: UNKNOWN)  # seconds of a call
        self._failed: set[str] = set()  # destinations whose last call did not go well

    def waiting(self, destination: str) -> int:
        """How many calls wait for a slot."""
        return len(self._waiting[destination])

    def bytes(self, destination: str) -> int:
        """How large their bodies are."""
        return self._bytes[destination]

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
            self._bytes[one.destination] += len(one.body)

    def next(self, destination: str) -> Ready | None:
        """The one that has waited longest; None where none waits."""
        waiting = self._waiting[destination]
        if not waiting:
            return None
        following = waiting.popleft()
        self._bytes[destination] -= len(following.leased.body)
        return following

    def went(self, seen: Seen, *, seconds: float) -> None:
        """
        How one call went, and that it took so many *seconds*.

        Nothing more is leased ahead for a while after one that did not go well. What waits is
        given back where the one before it did not either, or where fewer calls are asked for.
        """
        name, usual = seen.destination, self._usual[seen.destination]
        if is_well(seen):
            self._usual[name] = usual + (seconds - usual) * WEIGHT
            self._failed.discard(name)
            return
        self._usual[name] = UNKNOWN
        if name in self._failed or seen.slowed is not None:
            self.drop([name])
        self._failed.add(name)

    def spare(self, asked: Asked) -> None:
        """Give back what waits for destinations that are to be left alone, or their effects."""
        self.drop(asked.open)
        for name, effects in asked.paused.items():
            self._drop(name, partial(_is_of, effects))

    def drop(self, destinations: Iterable[str]) -> None:
        """Give back what waits for these."""
        for name in destinations:
            self._drop(name, lambda _: True)

    def drop_all(self) -> None:
        """Give back all that waits."""
        self.drop(self.destinations())

    def drop_overdue(self, now: float, destinations: Iterable[str]) -> None:
        """Give back what has waited for too long for one of these: its calls take longer now."""
        for name in destinations:
            waiting = self._waiting[name]
            if waiting and now - waiting[0].at >= OVERDUE:
                self._usual[name] = UNKNOWN
                self.drop([name])

    def destinations(self) -> list[str]:
        """Those for which something waits."""
        return [name for name, waiting in self._waiting.items() if waiting]

    def overdue_in(self, now: float) -> float | None:
        """Seconds until the first of those that wait is overdue."""
        since = min((self._waiting[name][0].at for name in self.destinations()), default=None)
        return None if since is None else max(0.0, since + OVERDUE - now)

    def _drop(self, destination: str, which: Callable[[Leased], bool]) -> None:
        waiting = self._waiting.pop(destination, deque())
        self._bytes.pop(destination, None)
        for one in waiting:
            if not which(one.leased):
                self.add([one.leased], at=one.at)
        self._give_back([one.leased for one in waiting if which(one.leased)])


def _is_of(effects: Collection[str], one: Leased) -> bool:
    return ALL in effects or one.effect in effects
