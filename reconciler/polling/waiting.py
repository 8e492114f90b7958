"""Waiting that ends when we are asked to stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from reconciler.errors import ReconcilerError


class StoppedError(ReconcilerError):
    """We were asked to stop, and waited for the sender when we were."""


@dataclass(slots=True, kw_only=True)
class Waits:
    """The waits that a stop may end: those for a sender, never a transaction."""

    stop: asyncio.Event
    _current: set[asyncio.Timeout] = field(default_factory=set)

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        """Run the block until *stop* is set. Raises StoppedError then."""
        if self.stop.is_set():
            raise StoppedError("stopped")
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._current.add(limit)
                try:
                    yield
                finally:
                    self._current.discard(limit)
        except TimeoutError as error:
            if limit.expired():
                raise StoppedError("stopped") from error
            raise

    async def end_on_stop(self) -> None:
        """Run beside the blocks: wait for the stop, and end them."""
        await self.stop.wait()
        for limit in self._current:
            limit.reschedule(asyncio.get_running_loop().time())


async def first_of(*events: asyncio.Event, within: timedelta | None = None) -> None:
    """Wait until one of *events* is set, at most *within*."""
    try:
        async with asyncio.timeout(None if within is None else within.total_seconds()):
            async with asyncio.TaskGroup() as waiting:
                tasks = [waiting.create_task(event.wait()) for event in events]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
    except TimeoutError:
        return
