"""Starting, stopping and waiting, told apart from the work itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta

Part = Callable[[asyncio.Event], Awaitable[None]]


async def until_told(name: str, part: Part, stop: asyncio.Event) -> None:
    """
    Run one part; returning before it was told to counts as a failure.

    So does a cancellation that nobody asked for: a group of tasks would pass over it in silence.
    """
    this = asyncio.current_task()
    assert this is not None
    try:
        await part(stop)
    except asyncio.CancelledError as error:
        if this.cancelling() > 0:
            raise
        raise RuntimeError(f"{name} was cancelled by itself") from error
    if not stop.is_set():
        raise RuntimeError(f"{name} ended by itself")


async def pause(stop: asyncio.Event, duration: timedelta) -> None:
    """Sleep, but wake up at once when asked to stop."""
    try:
        async with asyncio.timeout(duration.total_seconds()):
            await stop.wait()
    except TimeoutError:
        return


async def run_parts(
    parts: Mapping[str, Part], stop: asyncio.Event, *, drain: Callable[[], float]
) -> None:
    """
    Run *parts* together until *stop*, and then until each of them has ended.

    *drain* is called at the stop and says how many seconds that may take. Raises TimeoutError
    when they are over; and what a part raised as soon as it does, which ends all others.
    """
    try:
        async with asyncio.timeout(None) as deadline, asyncio.TaskGroup() as running:
            for name, part in parts.items():
                running.create_task(until_told(name, part, stop), name=name)
            await stop.wait()
            deadline.reschedule(asyncio.get_running_loop().time() + drain())
    except BaseExceptionGroup as group:
        raise first_error(group) from group


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
    """By when each loop has to move again, by the monotonic clock: health is progress (P19)."""

    clock: Callable[[], float] = time.monotonic
    due: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)

    def loop(self, name: str, *, bound: timedelta) -> Callable[[], None]:
        """
        Register the loop *name*, which we run in; returns its beat.

        It must move at least every *bound*, and within `wait_bounded` as long as is said there.
        """
        self.bounds[name] = bound.total_seconds()

        def beat() -> None:
            self.due[name] = self.clock() + self.bounds[name]

        def allow(duration: timedelta) -> None:
            later = self.clock() + duration.total_seconds() + self.bounds[name]
            self.due[name] = max(self.due[name], later)

        beat()
        _allowing.set(allow)
        return beat

    def stalled(self) -> list[str]:
        """Loops that should have moved by now."""
        now = self.clock()
        return sorted(name for name, due in self.due.items() if now > due)


def wait_bounded(duration: timedelta) -> None:
    """
    Say that what follows takes *duration* at the most, because it ends itself then.

    The loop that we run in, if it is one, is not standing still meanwhile (P19).
    """
    allow = _allowing.get()
    if allow is not None:
        allow(duration)


_allowing: ContextVar[Callable[[timedelta], None] | None] = ContextVar("allowing", default=None)
