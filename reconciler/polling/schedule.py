"""When scans run: APScheduler only says that it is time to look, the database says what is due."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, timedelta

import structlog
from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.errors import BusyError, DatabaseAwayError
from reconciler.ledger import baselines
from reconciler.ledger.rules import Rules
from reconciler.lifecycle import pause
from reconciler.polling import scans
from reconciler.polling.errors import LeaseLostError
from reconciler.polling.report import ScanReport
from reconciler.polling.run import Order
from reconciler.polling.scan import run_scan
from reconciler.polling.slots import Mode, Slot
from reconciler.polling.sources import Apis, Sources
from reconciler.polling.waiting import first_of
from reconciler.settings.models import PollingSettings
from reconciler.transactions import transact

TICKS_WITHIN = timedelta(seconds=20)  #: later than due, however busy we are
AFTER_A_CRASH = timedelta(seconds=30)  #: of a scan that could not even write down its failure
AT_ONCE = {Mode.FULL: 2, Mode.INCREMENTAL: 4}  #: scans of one sender under way here

log = structlog.get_logger()


async def run(  # noqa: PLR0913 - a part of the daemon, and what it is given
    engine: AsyncEngine,
    rules: Rules,
    sources: Sources,
    apis: Apis,
    *,
    settings: PollingSettings,
    stop: asyncio.Event,
    progress: Callable[[], None] = lambda: None,
    ended: Callable[[ScanReport], None] = lambda _: None,
) -> None:
    """
    Run every scan that is due, until *stop*; then wait for those under way to put themselves off.

    A slot is due by the database: some time after its last completed pass, whoever made it, so
    that neither a restart nor a late tick loses a turn or makes it up twice.
    """
    turns = Turns(
        engine=engine,
        rules=rules,
        sources=sources,
        apis=apis,
        settings=settings,
        stop=stop,
        progress=progress,
        ended=ended,
    )
    tick = asyncio.Event()
    scheduler = ticking(tick, settings)
    scheduler.start()
    try:
        async with asyncio.TaskGroup() as running:
            while not stop.is_set():
                progress()
                await turns.start_due(running)
                await first_of(tick, stop, within=TICKS_WITHIN + settings.poll)
                if not tick.is_set() and not stop.is_set():
                    raise RuntimeError("the scheduler has stopped ticking")
                tick.clear()
    finally:
        scheduler.shutdown(wait=False)


def ticking(tick: asyncio.Event, settings: PollingSettings) -> AsyncIOScheduler:
    """
    A scheduler that sets *tick* every `poll`.

    The executor calls the job there and then, in our loop. The one that AsyncIOScheduler would
    bring starts a task for each tick, and a shutdown that meets one cancels it and logs the
    cancellation as an error of the job, with a traceback.
    """
    scheduler = AsyncIOScheduler(
        timezone=UTC,
        executors={"default": DebugExecutor()},
        job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1},
    )
    scheduler.add_job(tick.set, "interval", seconds=settings.poll.total_seconds())
    return scheduler


@dataclass(slots=True, kw_only=True)
class Turns:
    """Which scans this process is running."""

    engine: AsyncEngine
    rules: Rules
    sources: Sources
    apis: Apis
    settings: PollingSettings
    stop: asyncio.Event
    progress: Callable[[], None]
    ended: Callable[[ScanReport], None]
    registered: bool = False
    running: set[Slot] = field(default_factory=set)

    async def start_due(self, group: asyncio.TaskGroup) -> None:
        """Start what is due and not held by anybody, a few of each sender at a time."""
        try:
            due = await transact(self.engine, self._due)
        except DatabaseAwayError as error:
            log.warning("schedule.database_away", error=str(error))
            self.registered = False  # what comes back may be a new database
            return
        self.registered = True
        busy = Counter((slot.sender, slot.mode) for slot in self.running)
        for slot in due:
            if slot not in self.running and busy[slot.sender, slot.mode] < AT_ONCE[slot.mode]:
                busy[slot.sender, slot.mode] += 1
                self.running.add(slot)
                group.create_task(self._run(slot))

    async def _due(self, connection: AsyncConnection) -> list[Slot]:
        known = self._slots()
        if not self.registered:
            await scans.register(connection, known)
            await scans.bring_forward(connection, known)
        due = [slot for slot in await scans.due(connection) if slot in known]
        if any(slot.mode is Mode.INCREMENTAL for slot in due):
            states = await baselines.states(connection)
            complete = {kind for kind, state in states.items() if state.completed_at is not None}
            # before the baseline there is nothing to go on from
            due = [
                slot
                for slot in due
                if slot.mode is Mode.FULL or (slot.sender, slot.kind) in complete
            ]
        return due

    def _slots(self) -> dict[Slot, timedelta]:
        """The slots that are configured, and the interval of each."""
        return {
            source.slot(mode): source.interval(mode)
            for source in self.sources.values()
            for mode in source.modes
        }

    async def _run(self, slot: Slot) -> None:
        """One scan; whatever happens to it, it happens to no other."""
        order = Order(
            engine=self.engine,
            rules=self.rules,
            api=self.apis[slot.sender],
            source=self.sources[slot.sender, slot.kind],
            policy=self.settings,
            mode=slot.mode,
            stop=self.stop,
            only_when_due=True,
            progress=self.progress,
        )
        try:
            report = await run_scan(order)
            if report is not None:
                self.ended(report)
        except (DatabaseAwayError, BusyError, LeaseLostError) as error:
            log.warning("scan.not_run", sender=slot.sender, kind=slot.kind, error=str(error))
            await pause(self.stop, self.settings.poll)
        except Exception:
            log.exception("scan.not_run", sender=slot.sender, kind=slot.kind, mode=slot.mode.value)
            await pause(self.stop, AFTER_A_CRASH)
        finally:
            self.running.discard(slot)
