"""Starting, stopping and waiting, told apart from the work itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

Part = Callable[[asyncio.Event], Awaitable[None]]


async def until_told(name: str, part: Part, stop: asyncio.Event) -> None:
    """Run one part; returning before it was told to counts as a failure."""
    await part(stop)
    if not stop.is_set():
        raise RuntimeError(f"{name} ended by itself")


async def pause(stop: asyncio.Event, duration: timedelta) -> None:
    """Sleep, but wake up at once when asked to stop."""
    try:
        async with asyncio.timeout(duration.total_seconds()):
            await stop.wait()
    except TimeoutError:
        return


def on_signal(stop: asyncio.Event, main: "asyncio.Task[object]") -> None:
    """First signal: drain. Second: drop everything; the leases will bring it back."""
    if stop.is_set():
        main.cancel("second signal")
    stop.set()


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended a group of tasks: the first that was raised, out of the groups around it."""
    first = group.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first


@dataclass(slots=True)
class Progress:
    """When each loop last moved, by the monotonic clock: health is progress (P19)."""

    clock: Callable[[], float] = time.monotonic
    moved: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)

    def loop(self, name: str, *, bound: timedelta) -> Callable[[], None]:
        """Register loop *name*, which must move at least every *bound*; returns its beat."""
        self.bounds[name] = bound.total_seconds()
        self.moved[name] = self.clock()

        def beat() -> None:
            self.moved[name] = self.clock()

        return beat

    def stalled(self) -> list[str]:
        """Loops that have not moved within their bound."""
        now = self.clock()
        return sorted(name for name, bound in self.bounds.items() if now - self.moved[name] > bound)
