"""The daemon's look at its database: prepared once, then asked every second whether P2 holds."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler import indexes, migrate
from reconciler.database import check_collation, check_durable, clock_skew
from reconciler.errors import ConfigError, DatabaseAwayError, TablesGoneError
from reconciler.ledger import baselines, user_sql
from reconciler.lifecycle import Progress, pause, wait_bounded
from reconciler.operations.assembly import Assembly
from reconciler.server_room import check_room
from reconciler.server_slots import slots_of
from reconciler.transactions import expect_tables, is_transient, told, transact

log = structlog.get_logger()

LOOK_EVERY = timedelta(seconds=1)
LOOK_AGAIN = timedelta(milliseconds=250)  #: after it was not to be reached
FIRST_LOOK = 4.0  #: seconds that a start waits for the database before it is ready without it
QUICK_LOOK = 1.0  #: seconds for a look while it is away: it must not miss its coming back
PREPARED_WITHIN = 45.0  #: seconds; each statement of the user's is planned
CLOCKS_APART = timedelta(seconds=30)  #: a tenth of the usual tolerance of a signature's age
LOOP_BOUND = timedelta(seconds=15)  #: a loop that moves no more, though it waits for nothing


@dataclass(slots=True, kw_only=True)
class DatabaseWatch:
    """Whether the database is prepared, and why a webhook could not be committed now."""

    assembly: Assembly
    engine: AsyncEngine
    progress: Progress
    look_at_generation: Callable[[], Awaitable[object]] | None = None

    prepared: asyncio.Event = field(default_factory=asyncio.Event)
    away: str | None = "the database has not been looked at yet"
    tables_gone: bool = False  #: until they are back, and every kind has its birthday again
    clocks_apart: bool = False
    in_baseline: list[str] = field(default_factory=list)

    async def first_look(self) -> None:
        """
        Prepare the database if it is within reach; an outage is no reason not to start.

        Raises ConfigError where it is there but cannot be used: no restart would help.
        """
        try:
            async with asyncio.timeout(FIRST_LOOK):
                await self.prepare()
        except (DatabaseAwayError, TimeoutError) as error:
            log.warning("daemon.database_away", reason=str(error) or "no answer")

    async def prepare(self) -> None:
        """Check what we rely on, and give every kind its birthday."""
        await migrate.require_current(self.engine)
        await check_durable(self.engine)
        await check_collation(self.engine)
        await indexes.check(self.engine)
        await check_room(self.engine)
        try:
            problems = await user_sql.verify(self.engine, self.assembly.rules)
        except DBAPIError as error:
            if is_transient(error):
                raise DatabaseAwayError(told(error)) from error
            raise
        if problems:
            raise ConfigError(problems=self.assembly.loaded.place(problems))
        if self.look_at_generation is not None:
            await self.look_at_generation()
        born = await transact(self.engine, self.be_born)
        self.in_baseline = [
            f"{sender} {kind}"
            for (sender, kind), source in self.assembly.sources.items()
            if source.listing is not None and born[sender, kind].completed_at is None
        ]
        self.away = None
        expect_tables(self.engine)
        self.prepared.set()

    async def be_born(
        self, connection: AsyncConnection
    ) -> dict[tuple[str, str], baselines.Baseline]:
        await baselines.register(connection, self.assembly.kinds)
        return await baselines.states(connection)

    async def watch(self, stop: asyncio.Event) -> None:
        """Ask once a second whether P2 can be kept now: `/readyz` answers from here."""
        beat = self.progress.loop("database", bound=LOOP_BOUND)
        looks = 0  #: in vain, in a row
        while not stop.is_set():
            away = await self.look(within=self.patience(looks))
            looks = looks + 1 if away is not None else 0
            if away is not None and self.away is None:
                log.warning("daemon.database_away", reason=away)
            elif away is None and self.away is not None:
                log.info("daemon.database_back")
                slots_of(self.engine).connect_again()
            self.away = away
            beat()
            await pause(stop, LOOK_AGAIN if away is not None else LOOK_EVERY)

    def patience(self, looks: int) -> float:
        """
        Seconds for the next look, after so many in vain.

        While it is away most looks are quick, so that one begins soon after its coming back; but
        not all, for it may have become slow to connect to.
        """
        if not self.prepared.is_set():
            return PREPARED_WITHIN
        return QUICK_LOOK if looks % 4 else FIRST_LOOK

    async def look(self, *, within: float = FIRST_LOOK) -> str | None:
        """Why P2 could not be kept now; None when it can. Raises ConfigError before the first."""
        wait_bounded(timedelta(seconds=within))
        began = asyncio.get_running_loop().time()
        slots = slots_of(self.engine)
        try:
            async with asyncio.timeout(within):
                if not self.prepared.is_set():
                    await self.prepare()
                else:
                    await check_durable(self.engine, warn=False)  # that was said at the start
                    await migrate.require_current(self.engine)
                    if self.away is not None:  # what came back may be an older one, or a new one
                        await transact(self.engine, self.be_born)
                    self.tables_gone = False
                if slots.has_doubtful:
                    await transact(self.engine, slots.forget_gone)
        except TimeoutError:
            if within >= FIRST_LOOK and slots.taken < slots.size:
                # Not for want of a connection: whoever else has waited as long waits in vain.
                slots.condemn(before=began)
            return "the database does not answer"
        except DatabaseAwayError as error:
            self.tables_gone = self.tables_gone or isinstance(error, TablesGoneError)
            return str(error)
        except ConfigError as error:
            if not self.prepared.is_set():
                raise
            return str(error)
        return None

    async def look_at_clock(
        self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> timedelta:
        """
        How far our clock is ahead of the database's; too far is warned of, once.

        Everything of ours goes by the database's. Signatures go by this host's, because theirs
        are made by another host's: refusals for their age would look like an attack.
        """
        skew = await clock_skew(self.engine, clock=clock)
        apart = abs(skew) > CLOCKS_APART
        if apart and not self.clocks_apart:
            log.warning(
                "daemon.clock_skewed",
                ahead_seconds=round(skew.total_seconds(), 1),
                consequence="signatures may seem too old or too new: synchronise the clocks",
            )
        self.clocks_apart = apart
        return skew

    def need(self) -> None:
        """
        Raises DatabaseAwayError until the database has been prepared.

        And while its tables are gone: what was written into half a restore would be in its way.
        """
        if not self.prepared.is_set():
            raise DatabaseAwayError("the database is not within reach yet")
        if self.tables_gone:
            raise DatabaseAwayError("the tables are not there yet")

    async def once_prepared(self, stop: asyncio.Event) -> None:
        """Wait until the database has been prepared, or for the stop."""
        while not self.prepared.is_set() and not stop.is_set():
            await pause(stop, timedelta(milliseconds=100))
