"""How many requests a sender's API may get: a sliding window, shared by all who read it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0}
REMEMBERED = 1000


def parse_rate(text: str) -> tuple[int, float]:
    """
    Read `10/s`, `600/m` or `5000/h` as a count and a period in seconds.

    >>> parse_rate("10/s")
    (10, 1.0)

    Large counts are told as a thousand in a shorter period, which never allows
    more and keeps what has to be remembered small.

    >>> parse_rate("100000/h")
    (1000, 36.0)
    """
    count_text, _, unit = text.partition("/")
    count, period = max(1, int(count_text)), PERIODS[unit]
    if count > REMEMBERED:
        return REMEMBERED, period * REMEMBERED / count
    return count, period


@dataclass(kw_only=True, slots=True)
class Rate:
    """Lets *count* requests go in any *period* seconds; others wait in line."""

    count: int
    period: float
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]]
    _gone: deque[float] = field(default_factory=deque)
    _line: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self) -> None:
        """Return when the next request may go. Whoever is cancelled in line has taken nothing."""
        async with self._line:
            while len(self._gone) >= self.count:
                wait = self._gone[0] + self.period - self.clock()
                if wait <= 0:
                    self._gone.popleft()
                else:
                    await self.sleep(wait)
            self._gone.append(self.clock())
