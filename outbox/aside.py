"""Marks whose own statements are slow: written one at a time, so that they hold up no others."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from uuid import UUID

from outbox.settling import Mark

PATIENCE = 10.0  # seconds; then an entry is marked without its statement: leases run out


class Aside:
    """
    Marks that took too long together, in the order in which they came.

    What waits here for longer than a lease can bear is marked without what was to follow: that
    a call was answered must not be forgotten for the sake of what it was answered.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: deque[tuple[float, Mark]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def ended(self) -> list[tuple[UUID, int]]:
        """The calls of those that wait, by entry and attempt."""
        return [(mark.id, mark.attempt) for _, mark in self._waiting]

    def put(self, marks: Sequence[Mark]) -> None:
        """Take marks that were too slow together."""
        now = self._clock()
        self._waiting += [(now, mark) for mark in marks]

    def take(self, *, at_most: int) -> list[Mark]:
        """The next one; or those, no entry twice, that can wait no longer, with nothing to run."""
        late: dict[UUID, Mark] = {}
        now = self._clock()
        while self._waiting and len(late) < at_most:
            since, mark = self._waiting[0]
            if mark.id in late or now - since < PATIENCE:
                break
            self._waiting.popleft()
            late[mark.id] = mark._replace(late=True)
        return list(late.values()) or [self._waiting.popleft()[1]]
