"""Requested reads: what events, scans and conflicts asked to be read, one resource at a time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.errors import DatabaseAwayError
from reconciler.ledger import fetches
from reconciler.ledger.batch import Result
from reconciler.ledger.commit import commit
from reconciler.ledger.rules import Rules
from reconciler.polling.client import Api
from reconciler.polling.errors import ApiError, AwayError
from reconciler.polling.reading import UNEXPLAINED, read_resource
from reconciler.polling.sources import Apis, Source, Sources
from reconciler.polling.waiting import StoppedError, Waits, first_of
from reconciler.settings.models import PollingSettings
from reconciler.transactions import told, transact

AT_ONCE = 4  #: reads of one sender under way
STUCK_AFTER = timedelta(seconds=60)  #: beyond the leases of what one turn reads

Told = Callable[[Sequence[Result]], None]

log = structlog.get_logger()


async def run(  # noqa: PLR0913 - a part of the daemon, and what it is given
    engine: AsyncEngine,
    rules: Rules,
    sources: Sources,
    apis: Apis,
    *,
    settings: PollingSettings,
    stop: asyncio.Event,
    hint: asyncio.Event | None = None,
    progress: Callable[[], None] = lambda: None,
    found: Told = lambda _: None,
) -> None:
    """
    Read what is requested, until *stop*; then finish or drop what is under way.

    Each sender has its own loop: one that is down delays no other. *hint* says that there may be
    work; looking every `poll` finds the same. *found* is told of what was applied.
    """
    readable = sorted({sender for (sender, _), source in sources.items() if source.getting})
    woken = {sender: asyncio.Event() for sender in readable}
    waits = Waits(stop=stop)
    clock = asyncio.get_running_loop().time
    moved = dict.fromkeys(readable, clock())
    bound = 2 * settings.lease.total_seconds() + STUCK_AFTER.total_seconds()
    async with asyncio.TaskGroup() as loops:
        loops.create_task(waits.end_on_stop())
        for sender in readable:
            reader = Reader(
                engine=engine,
                rules=rules,
                sources=sources,
                api=apis[sender],
                sender=sender,
                settings=settings,
                waits=waits,
                found=found,
            )
            loops.create_task(_read_until(reader, woken[sender], moved))
        while not stop.is_set():
            if all(clock() - at < bound for at in moved.values()):
                progress()
            await first_of(*((stop, hint) if hint else (stop,)), within=settings.poll)
            if hint is not None:
                hint.clear()
            for event in woken.values():
                event.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads what is requested of one sender."""

    engine: AsyncEngine
    rules: Rules
    sources: Sources
    api: Api
    sender: str
    settings: PollingSettings
    waits: Waits
    found: Told = lambda _: None

    async def read_due(self) -> int:
        """Take what is due, at most as many as are read at once, and read it; return how many."""
        due = await transact(
            self.engine,
            partial(
                fetches.lease_due, sender=self.sender, limit=AT_ONCE, lease=self.settings.lease
            ),
        )
        async with asyncio.TaskGroup() as reads:
            for request in due:
                reads.create_task(self._settle(request))
        return len(due)

    async def _settle(self, request: Row[Any]) -> None:
        """Read one resource; whatever goes wrong puts off this request and nothing else."""
        source = self.sources.get((request.sender, request.kind))
        if source is None or source.getting is None:
            await self._forget(request)
            return
        wait: timedelta | None = None
        try:
            # a lease that has run out is somebody else's
            async with asyncio.timeout(self.settings.lease.total_seconds()):
                error = await self._read(source, request.key)
        except TimeoutError:
            error = "no answer before the lease ran out"
        except ApiError as failure:
            error = str(failure)
            wait = failure.retry_after if isinstance(failure, AwayError) else None
        except StoppedError:
            error, wait = "we were stopped", timedelta(0)
        except DatabaseAwayError:
            raise
        except Exception as failure:
            log.exception("fetch.crashed", sender=request.sender, kind=request.kind)
            error = f"{type(failure).__name__}: {told(failure)}"
        if error is not None:
            await self._put_off(request, error, wait=wait)

    async def _read(self, source: Source, key: str) -> str | None:
        """Read and apply; return what keeps the request open."""
        read = await read_resource(self.engine, self.api, source, key, waits=self.waits)
        if read.event is None:
            return UNEXPLAINED
        results = await commit(self.engine, self.rules, [read.event])
        self.found(results)
        return results[0].fault

    async def _put_off(self, request: Row[Any], error: str, *, wait: timedelta | None) -> None:
        log.warning(
            "fetch.failed",
            sender=request.sender,
            kind=request.kind,
            key=request.key,
            attempts=request.attempts,
            error=error,
        )
        resource = (request.sender, request.kind, request.key)
        await transact(
            self.engine, partial(fetches.fail, resource=resource, error=error, wait=wait)
        )

    async def _forget(self, request: Row[Any]) -> None:
        """A kind that has lost its `get` since: nobody can answer any more."""
        log.warning("fetch.forgotten", sender=request.sender, kind=request.kind, key=request.key)
        resource = (request.sender, request.kind, request.key)
        await transact(self.engine, partial(fetches.forget, resource=resource))


async def _read_until(reader: Reader, woken: asyncio.Event, moved: dict[str, float]) -> None:
    stop, clock = reader.waits.stop, asyncio.get_running_loop().time
    while not stop.is_set():
        woken.clear()
        moved[reader.sender] = clock()
        try:
            while not stop.is_set() and await reader.read_due():
                moved[reader.sender] = clock()
        except* DatabaseAwayError as away:
            log.warning("fetch.database_away", error=str(away.exceptions[0]))
        await first_of(woken, stop)
