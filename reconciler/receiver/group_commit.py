"""Waiting deliveries are committed together: while one commit is under way the next gathers."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

import structlog

from reconciler.errors import DatabaseAwayError, ReconcilerError
from reconciler.ledger.event import Event

log = structlog.get_logger()

R = TypeVar("R")

LANES = 2  #: commits under way at once; see `_may_begin`
CROWD = 16  #: waiting events that are worth a commit beside the one under way
PATIENCE = timedelta(milliseconds=100)  #: a commit under way for longer waits for something
BYTES_MAX = 16 * 1024**2  #: of the bodies of one commit; a single larger delivery goes alone
DEADLINE = timedelta(seconds=30)  #: of one commit: a connection may hang and never say so


@dataclass(slots=True, kw_only=True, eq=False)
class GroupCommit(Generic[R]):
    """
    Takes deliveries from many waiters and commits what has gathered, as one.

    Nobody waits for company: where no commit is under way the next one begins at once, and the
    longer one takes the more have gathered for the next. A delivery of several events stays
    together.
    """

    commit: Callable[[Sequence[Event]], Awaitable[Sequence[R]]]
    batch_max: int  #: events of one commit
    waiting_max: int  #: deliveries that may wait
    beat: Callable[[], None] = lambda: None  #: called on progress, and by idle lanes all the time
    lanes: int = LANES
    deadline: timedelta = DEADLINE

    waiting: "deque[_Unit[R]]" = field(default_factory=deque, init=False)
    begun: dict[asyncio.Task[None], float] = field(default_factory=dict, init=False)
    arrived: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    closed: bool = field(default=False, init=False)

    async def submit(self, events: Sequence[Event]) -> Sequence[R]:
        """
        Return the results of *events*, in their order, once they are committed.

        A waiter that gives up takes its delivery back if no commit has begun on it; a commit
        under way goes on. Raises OverloadError where too many wait or we are stopping, and what
        the commit raised.
        """
        if self.closed:
            raise OverloadError("stopping")
        if len(self.waiting) >= self.waiting_max:
            raise OverloadError(f"{self.waiting_max} deliveries wait already")
        unit = _Unit[R](events=events, done=asyncio.get_running_loop().create_future())
        self.waiting.append(unit)
        if not self.begun or len(self.waiting) >= CROWD:
            self.arrived.set()
        try:
            return await unit.done
        except asyncio.CancelledError:
            if unit in self.waiting:
                self.waiting.remove(unit)
            raise

    async def run(self, stop: asyncio.Event) -> None:
        """Commit until *stop* is set, then what waits, and return."""
        try:
            async with asyncio.TaskGroup() as running:
                for lane in range(self.lanes):
                    running.create_task(self._work(), name=f"commit-{lane}")
                await stop.wait()
                self.closed = True
                self.arrived.set()
        finally:
            self.closed = True
            for unit in self.waiting:
                _fail(unit, OverloadError("stopping"))

    async def _work(self) -> None:
        while True:
            self.beat()
            if self._may_begin() and (batch := self._take()):
                await self._settle(batch)
            elif self.closed and not self.waiting:
                return
            else:
                self.arrived.clear()
                await self._arrival()

    def _may_begin(self) -> bool:
        """
        Whether a commit may begin now.

        A second one beside the one under way would halve both where few wait, and a commit costs
        almost the same for one event as for twenty. It pays for a crowd, and it must be possible
        where the one under way is held up by somebody else's lock.
        """
        if not self.begun or len(self.waiting) >= CROWD:
            return True
        longest = asyncio.get_running_loop().time() - min(self.begun.values())
        return longest > PATIENCE.total_seconds()

    async def _arrival(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                await self.arrived.wait()
        except TimeoutError:
            return

    def _take(self) -> list["_Unit[R]"]:
        """Take what waits, up to the limits; at least one, however large."""
        batch: list[_Unit[R]] = []
        events = size = 0
        while self.waiting:
            unit = self.waiting[0]
            if unit.done.done():  # its waiter has given up
                self.waiting.popleft()
                continue
            events += len(unit.events)
            size += unit.size
            if batch and (events > self.batch_max or size > BYTES_MAX):
                break
            batch.append(self.waiting.popleft())
        return batch

    async def _settle(self, batch: Sequence["_Unit[R]"]) -> None:
        """Commit *batch* and tell each waiter; whatever goes wrong is told them too."""
        events = [event for unit in batch for event in unit.events]
        lane = asyncio.current_task()
        assert lane is not None
        self.begun[lane] = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self.deadline.total_seconds()):
                results = _each(await self.commit(events), events)
        except TimeoutError:
            self._fail_all(batch, DatabaseAwayError("a commit did not end in time"))
        except DatabaseAwayError as error:
            self._fail_all(batch, error)
        except asyncio.CancelledError:
            self._fail_all(batch, OverloadError("stopped"))
            raise
        except Exception as error:  # one bad batch must not end the receiver
            log.exception("receiver.commit_failed", events=len(events))
            self._fail_all(batch, error)
        else:
            position = 0
            for unit in batch:
                if not unit.done.done():
                    unit.done.set_result(results[position : position + len(unit.events)])
                position += len(unit.events)
        finally:
            del self.begun[lane]

    @staticmethod
    def _fail_all(batch: Sequence["_Unit[R]"], error: Exception) -> None:
        for unit in batch:
            _fail(unit, error)


@dataclass(slots=True, kw_only=True, eq=False)
class _Unit(Generic[R]):
    """One delivery and who waits for it."""

    events: Sequence[Event]
    done: "asyncio.Future[Sequence[R]]"

    @property
    def size(self) -> int:
        return sum(len(event.raw) for event in self.events)


def _each(results: Sequence[R], events: Sequence[Event]) -> Sequence[R]:
    if len(results) != len(events):
        raise ReconcilerError(f"{len(events)} events, {len(results)} results")
    return results


def _fail(unit: "_Unit[R]", error: Exception) -> None:
    if not unit.done.done():
        unit.done.set_exception(error)


class OverloadError(ReconcilerError):
    """There is no room to wait; the sender tries again."""
