"""Getting what attempts came to into the database, in groups, for as long as that takes."""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.aside import Aside
from outbox.calling import since_boot
from outbox.leasing import Leased
from outbox.noting import Noting
from outbox.releasing import release
from outbox.resting import Follow, OverrunError
from outbox.settling import Mark, settle
from outbox.waking import Wake

log = structlog.get_logger()

Point = Callable[[str], None]

DATABASE_TROUBLE = (SQLAlchemyError, OSError)
BATCH_MAX = 200
ENOUGH = 200  # marks that wait for no further ones
GATHER = 0.02  # seconds that marks wait for further ones, where nobody waits for them
WAITING_MAX = 1000  # marks; beyond it no more is leased
FIRST_PAUSE = 0.05  # seconds
LONGEST_PAUSE = 2.0  # seconds
STUCK_AFTER = 60.0  # seconds


class Marking:
    """
    The marks that wait to be written.

    While one group is being written, and for a moment after, the next gathers. When the database
    is away they are tried again until it is back, and nothing more is leased meanwhile: what was
    called and is not marked would be called again. Other relays pause as long between two tries,
    and their leases may have ended: so nothing is leased, either, until they have had one more.
    """

    def __init__(  # noqa: PLR0913  # its edges are passed in
        self,
        engine: AsyncEngine,
        *,
        noting: Noting,
        point: Point,
        written: Callable[[Sequence[Mark | Leased]], None],
        follow: Follow | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = since_boot,
    ) -> None:
        self._engine = engine
        self._noting = noting
        self._point = point
        self._written = written
        self._follow = follow
        self._sleep = sleep
        self._clock = clock
        self._waiting: deque[Mark | Leased] = deque()
        self._writing: Sequence[Mark | Leased] = ()
        self._due = Wake(gather=GATHER)
        self._aside = Aside()
        self._aside_is_next = False
        self._failures = 0
        self._others_until = -math.inf  # by then others have tried to write their marks, too
        self._closed = False
        self._writing_since: float | None = None

    @property
    def stuck(self) -> bool:
        """Whether one group has been under way for longer than anything of ours may take."""
        since = self._writing_since
        return since is not None and self._clock() - since > STUCK_AFTER

    @property
    def behind(self) -> bool:
        """Whether marks fail, or those of others may, or more of them wait than is good."""
        if self._failures or self._clock() < self._others_until:
            return True
        if len(self._waiting) + len(self._aside) < WAITING_MAX:
            return False
        # What was given back unsent is no call that would be made again.
        marks = sum(isinstance(one, Mark) for one in self._waiting)
        return marks + len(self._aside) >= WAITING_MAX

    @property
    def ended(self) -> list[tuple[UUID, int]]:
        """Calls, by entry and attempt, of which only we know yet that they have ended."""
        waiting = [(one.id, one.attempt) for one in (*self._writing, *self._waiting)]
        return [*waiting, *self._aside.ended]

    def add(self, mark: Mark | Leased) -> None:
        """Take one mark; an entry as it was leased is given back unsent."""
        self._waiting.append(mark)
        if mark.ordered or was_probe(mark) or len(self._waiting) >= ENOUGH:
            self._due.set()  # others wait for it
        else:
            self._due.set_soon()

    def close(self) -> None:
        """No more marks will come: `run` returns once all are written."""
        self._closed = True
        self._due.set()

    async def run(self) -> None:
        """Write marks until closed and done."""
        while self._waiting or self._aside or not self._closed:
            await self._due.wait()
            self._due.clear()
            if self._waiting or self._aside:
                await self._write_some()
            if self._closed or self._aside:
                self._due.set()
            elif self._waiting:
                self._due.set_soon()

    async def flush(self) -> None:
        """Write what waits now; raises what the database raises."""
        while self._waiting or self._aside:
            batch = self._take()
            try:
                await self._write(batch)
            except OverrunError:
                self._set_aside(batch)

    async def _write_some(self) -> None:
        batch = self._writing = self._take()
        self._writing_since = self._clock()
        try:
            await self._write_or_single_out(batch)
        except OverrunError:
            self._set_aside(batch)
        except DATABASE_TROUBLE as error:
            self._waiting.extendleft(reversed(batch))
            if not self._failures:
                log.warning("relay.marks_failed", waiting=len(self._waiting), error=told(error))
            self._failures += 1
            await self._sleep(pause_after(self._failures))
        else:
            if self._failures:
                log.info("relay.marks_resumed", failures=self._failures)
                self._others_until = self._clock() + pause_after(self._failures)
            self._failures = 0
            self._written(batch)
        finally:
            self._writing_since, self._writing = None, ()

    async def _write_or_single_out(self, batch: Sequence[Mark | Leased]) -> None:
        try:
            await self._write(batch)
        except (DataError, IntegrityError) as error:
            # One that the database will never take must not keep the others from being written.
            if len(batch) == 1:
                log.error("relay.mark_refused", entry=str(batch[0].id), error=told(error))  # noqa: TRY400
                return
            for one in batch:
                await self._write_or_single_out([one])

    async def _write(self, batch: Sequence[Mark | Leased]) -> None:
        marks = [one for one in batch if isinstance(one, Mark)]
        unsent = [one for one in batch if isinstance(one, Leased)]
        self._point("relay-before-mark")
        taken = {mark.id for mark in marks}
        async with self._engine.begin() as connection:
            if marks:
                taken = await settle(connection, marks, follow=self._follow)
            if unsent:
                await release(connection, unsent)
            changes = await self._noting.note(connection, marks, unsent)
            self._point("relay-in-mark")
        self._point("relay-after-mark")
        self._noting.tell(changes)
        for mark in marks:
            if mark.id not in taken:
                log.info("relay.mark_fenced", entry=str(mark.id), attempt=mark.attempt)

    def _set_aside(self, batch: Sequence[Mark | Leased]) -> None:
        """What follows takes too long for all of *batch*: only those that nothing follows go on."""
        follow = self._follow
        slow = [
            one
            for one in batch
            if isinstance(one, Mark) and follow is not None and follow.wants(one.effect, one.state)
        ]
        self._aside.put(slow)
        log.info("relay.marks_slow", marks=len(slow))
        ids = {one.id for one in slow}
        self._waiting.extendleft(reversed([one for one in batch if one.id not in ids]))

    def _take(self) -> list[Mark | Leased]:
        """The next group, with no entry twice: two attempts of one may have ended together."""
        turn, self._aside_is_next = self._aside_is_next, not self._aside_is_next
        if self._aside and (turn or not self._waiting):
            return list(self._aside.take(at_most=BATCH_MAX))
        batch: dict[object, Mark | Leased] = {}
        later: list[Mark | Leased] = []
        while self._waiting and len(batch) < BATCH_MAX:
            mark = self._waiting.popleft()
            if mark.id in batch:
                later.append(mark)
            else:
                batch[mark.id] = mark
        self._waiting.extendleft(reversed(later))
        return list(batch.values())


def pause_after(failures: int) -> float:
    """How long to wait before marks are tried again, in seconds."""
    return min(FIRST_PAUSE * 2.0 ** min(failures, 30), LONGEST_PAUSE)


def was_probe(one: Mark | Leased) -> bool:
    if isinstance(one, Leased):
        return one.probe
    return one.seen is not None and one.seen.probe


def told(error: BaseException) -> str:
    """What went wrong with the database, in one line without statements or values."""
    cause = getattr(error, "orig", None) or error
    first_line = str(cause).strip().partition("\n")[0]
    return f"{type(cause).__name__}: {first_line}"[:300]
