"""The daemon's watch over its database's generation: notices a restore, and holds what it must."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import generations, holding
from outbox.entry import uuid7
from outbox.generations import Seen
from outbox.resting import Follow
from reconciler import embedded, faults
from reconciler.database import schema_of
from reconciler.errors import DatabaseAwayError
from reconciler.generation import Remembered, Verdict, caught_up, judge, next_number
from reconciler.ledger.following import Following
from reconciler.memory import Memory
from reconciler.operations.assembly import Assembly
from reconciler.operations.redriving import key_lives
from reconciler.polling import scans
from reconciler.settings.models import Settings
from reconciler.transactions import transact

T = TypeVar("T")

log = structlog.get_logger()

LOOK_EVERY: Final = timedelta(seconds=1)
MARK_EVERY: Final = timedelta(seconds=5)  #: at the most, and only when something was written
BATCH: Final = 1000  #: entries that one transaction holds
LIMIT: Final = 10.0  #: seconds that one transaction of ours may take


@dataclass(slots=True, kw_only=True)
class GenerationWatch:
    """What this daemon remembers of the database, held against what the database says."""

    engine: AsyncEngine
    memory: Memory
    key_lives: Mapping[str, timedelta]  #: by destination
    listed: Collection[tuple[str, str]]  #: the (sender, kind) whose scans heal
    clock: Callable[[], float]
    follow: Follow | None = None  #: tells of what is held

    remembered: Remembered | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)  #: a look is wanted at once
    _database: str | None = None
    _ask_the_cluster: bool = True
    _marked_at: float = float("-inf")
    _written: int = -1  #: the next transaction's number, as of our last mark

    async def watch(self, stop: asyncio.Event, *, beat: Callable[[], None]) -> None:
        """Look every second until told to stop; hold and heal what is to be."""
        while not stop.is_set():
            try:
                seen = await self.look()
                if seen is not None and seen.generation is not None:
                    await self.settle(seen, beat=beat)
                    await self.heal(seen)
            except (DatabaseAwayError, TimeoutError):
                pass  # the database part says so, once
            beat()
            self.asked.clear()
            await self._pause(stop)
        if self.remembered is not None:
            await self._keep()  # how far the database had come: written down with marks else

    async def look(self) -> Seen | None:
        """
        See whether the database went back, and open a generation if so; None: cannot be told.

        Raises DatabaseAwayError.
        """
        if self._database is None:
            name, self._ask_the_cluster = await self._run(generations.orient)
            self._database = f"{name}.{schema_of(self.engine)}"
            self.remembered = self.memory.recall(self._database)
        seen = await self._run(self._look)
        if seen.standby:
            return None
        verdict, reason = judge(seen, self.remembered)
        match verdict:
            case Verdict.CURRENT:
                await self._go_on(seen)
            case Verdict.FOLLOW:
                await self._follow(seen, reason)
            case Verdict.FIRST | Verdict.BACK:
                await self._open(seen, verdict, reason)
                return await self._run(self._look)
        return seen

    async def may_call(self, connection: AsyncConnection) -> bool:
        """Whether calls may go out by what the database of *connection* says, there and now."""
        if self._database is None:
            return False
        remembered = self.remembered  # as of before: the watch may look again meanwhile
        seen = await self._look(connection)
        verdict, _ = judge(seen, remembered)
        settled = seen.generation is not None and seen.generation.settled
        if seen.standby or verdict is not Verdict.CURRENT or not settled:
            self.asked.set()
            return False
        return True

    async def settle(self, seen: Seen, *, beat: Callable[[], None]) -> None:
        """Hold what the lost future may have sent, batch by batch; then calls may go out again."""
        assert seen.generation is not None
        number, after = seen.generation.number, None
        if seen.generation.settled:
            return
        while True:
            after, _ = await self._run(
                partial(
                    holding.hold,
                    number=number,
                    key_lives=self.key_lives,
                    after=after,
                    limit=BATCH,
                    follow=self.follow,
                )
            )
            faults.point("between-holds")
            beat()
            if after is None:
                break
        held = await self._run(partial(generations.settle, number=number))
        if held is not None:
            log.warning(
                "generation.settled",
                generation=number,
                held=held,
                hint="`reconciler outbox list --state uncertain` shows what a person must decide",
            )

    async def heal(self, seen: Seen) -> None:
        """Note that every listing has been read in full since the generation was opened."""
        generation = seen.generation
        if generation is None or generation.healed:
            return
        states = await self._run(scans.states)
        for sender, kind in self.listed:
            row = states.get((sender, kind, scans.Mode.FULL.value))
            if row is None or row.last_completed_at is None:
                return
            if row.last_completed_at < generation.opened_at:
                return
        if await self._run(partial(generations.heal, number=generation.number)):
            log.info("generation.healed", generation=generation.number)

    async def _look(self, connection: AsyncConnection) -> Seen:
        mark = self.remembered.mark if self.remembered else UUID(int=0)
        return await generations.look(connection, mark, ask_the_cluster=self._ask_the_cluster)

    async def _go_on(self, seen: Seen) -> None:
        """Nothing is wrong: remember that, and move our mark when somebody has written."""
        if self.remembered is None or seen.beat is None or seen.beat < self.remembered.beat:
            await self._mark(seen)  # a new daemon's, or one that another's generation covers
            return
        before = self.remembered
        self.remembered = now = caught_up(before, seen)
        due = self.clock() - self._marked_at >= MARK_EVERY.total_seconds()
        # our own mark is one transaction
        if due and seen.next_transaction > self._written + 1:
            await self._mark(seen)
        elif (now.generation, now.synchronous) != (before.generation, before.synchronous):
            await self._keep()

    async def _mark(self, seen: Seen) -> None:
        """Move our mark, and remember how far only once that is committed."""
        assert seen.generation is not None
        known = self.remembered or Remembered(
            mark=uuid7(), beat=0, generation=0, synchronous=seen.synchronous
        )
        beat = max(known.beat, seen.beat or 0) + 1
        await self._run(partial(generations.move_mark, mark=known.mark, beat=beat))
        self._marked_at, self._written = self.clock(), seen.next_transaction
        self.remembered = replace(caught_up(known, seen), beat=beat)
        await self._keep()

    async def _follow(self, seen: Seen, reason: str) -> None:
        assert seen.generation is not None
        if await self._run(
            partial(generations.follow, generation=seen.generation, place=seen.place)
        ):
            log.info(
                "generation.followed",
                generation=seen.generation.number,
                timeline=seen.place.timeline,
                reason=reason,
            )

    async def _open(self, seen: Seen, verdict: Verdict, reason: str) -> None:
        """Open the next generation, with every scan due at once; one of all replicas does."""
        number = next_number(seen, self.remembered)
        first = verdict is Verdict.FIRST

        async def work(connection: AsyncConnection) -> bool:
            opened = await generations.open_generation(
                connection, number, reason=reason, place=seen.place, settled=first
            )
            if opened and not first:
                await scans.start_over(connection)
            await generations.forget_marks(connection)
            return opened

        opened = await self._run(work)
        faults.point("generation-opened")
        if opened and not first:
            log.warning(
                "generation.opened",
                generation=number,
                reason=reason,
                consequence="the database went back in time: what it may have sent is held,"
                " and every listing is read again",
            )
        seen = await self._run(self._look)
        if seen.generation is not None and judge(seen, None)[0] is Verdict.CURRENT:
            await self._mark(seen)

    async def _keep(self) -> None:
        assert self._database is not None
        assert self.remembered is not None
        await asyncio.to_thread(self.memory.keep, self._database, self.remembered)

    async def _run(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async with asyncio.timeout(LIMIT):
            return await transact(self.engine, work)

    async def _pause(self, stop: asyncio.Event) -> None:
        """Until the next look, a call for one, or the stop."""
        waiting = {asyncio.create_task(self.asked.wait()), asyncio.create_task(stop.wait())}
        try:
            await asyncio.wait(
                waiting,
                timeout=LOOK_EVERY.total_seconds(),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for one in waiting:
                one.cancel()


def watch_over(assembly: Assembly, engine: AsyncEngine, *, private: bool) -> GenerationWatch:
    """The watch over the database of *engine*, as *assembly* is configured."""
    return GenerationWatch(
        engine=engine,
        memory=Memory(remembering_directory(assembly.loaded.settings, private=private)),
        key_lives=key_lives(assembly),
        listed=[kind for kind, source in assembly.sources.items() if source.listing is not None],
        clock=time.monotonic,
        follow=Following(rules=assembly.rules),
    )


def remembering_directory(settings: Settings, *, private: bool) -> Path | None:
    """Where a daemon may remember its database: a state directory that somebody gave us."""
    given = settings.server.state_directory or os.environ.get("STATE_DIRECTORY")
    return embedded.state_directory(settings) if private or given else None
