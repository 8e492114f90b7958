"""The daemon's parts, each a coroutine that runs until it is told to stop."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import relay
from outbox.backoff import Backoff
from reconciler import embedded, faults, http_server
from reconciler.accepting import within_files
from reconciler.daemon_database import LOOP_BOUND, DatabaseWatch
from reconciler.daemon_generation import GenerationWatch, watch_over
from reconciler.errors import DatabaseAwayError
from reconciler.ledger.batch import Result
from reconciler.ledger.commit import commit
from reconciler.ledger.event import Event, Outcome
from reconciler.ledger.following import TOGETHER_WITHIN, Following
from reconciler.lifecycle import Part, Progress, pause, wait_bounded
from reconciler.listening import Listeners
from reconciler.operations import redrive_runs, silence
from reconciler.operations.assembly import Assembly
from reconciler.operations.purging import keep_purging
from reconciler.operations.status import COUNTED_WITHIN, figures
from reconciler.polling import fetching, schedule
from reconciler.polling.report import ScanReport
from reconciler.receiver import server as receiver_server
from reconciler.receiver.app import WebhookApp
from reconciler.receiver.envelope import Malformed
from reconciler.receiver.group_commit import GroupCommit
from reconciler.receiver.keeping import keeper
from reconciler.server_room import oldest_transaction
from reconciler.systemd import Condition, notify
from reconciler.transactions import taking_up_to, transact
from reconciler.web.app import admin_app
from reconciler.web.metrics import Metrics

log = structlog.get_logger()

GAUGES_EVERY = timedelta(seconds=15)
GAUGES_WITHIN = timedelta(seconds=60)
RETENTION_BOUND = timedelta(seconds=60)  #: it rests between its batches
COMMIT_BOUND = timedelta(seconds=45)  #: beyond the group commit's own deadline
ADMIN_DRAIN = timedelta(seconds=2)
ADMIN_CONNECTIONS = 100  #: of operators and their monitoring


@dataclass(slots=True, kw_only=True)
class Parts:
    """What the parts of one daemon share."""

    assembly: Assembly
    engine: AsyncEngine
    roles: Sequence[str]
    private: embedded.Embedded | None

    progress: Progress = field(default_factory=Progress)
    due: asyncio.Event = field(default_factory=asyncio.Event)  #: hint: entries may be due
    wanted: asyncio.Event = field(default_factory=asyncio.Event)  #: hint: reads may be due
    listening: dict[str, str] = field(default_factory=dict)
    metrics: Metrics = field(init=False)
    database: DatabaseWatch = field(init=False)
    generation: GenerationWatch = field(init=False)

    def __post_init__(self) -> None:
        self.generation = watch_over(self.assembly, self.engine, private=self.private is not None)
        self.database = DatabaseWatch(
            assembly=self.assembly,
            engine=self.engine,
            progress=self.progress,
            look_at_generation=self.generation.look,
        )
        self.metrics = Metrics(senders=tuple(self.assembly.rules.senders))

    def of(self, *, webhooks: Listeners | None, admin: Listeners) -> Mapping[str, Part]:
        """The parts that our roles ask for, by name."""
        parts: dict[str, Part] = {
            "database": self.database.watch,
            "generation": self.watch_generation,
            "admin": partial(self.serve_admin, admin),
            "gauges": self.refresh_gauges,
        }
        if self.private is not None:
            parts["private-postgresql"] = partial(self.supervise, self.private)
        if webhooks is not None:
            parts["receiver"] = partial(self.receive, webhooks)
        if "relay" in self.roles:
            parts |= {"relay": self.run_relay, "redrives": self.work_off_redrives}
        if "reconciler" in self.roles:
            parts |= {"scans": self.scan, "reads": self.read, "retention": self.forget}
            if silence.is_wanted(self.assembly.rules):
                parts["silence"] = self.hear
        return parts

    async def supervise(self, private: embedded.Embedded, stop: asyncio.Event) -> None:
        beat = self.progress.loop("private-postgresql", bound=LOOP_BOUND)
        await private.supervise(stop, beat=beat)

    async def serve_admin(self, listeners: Listeners, stop: asyncio.Event) -> None:
        async def ready() -> str | None:
            return "stopping" if stop.is_set() else self.database.away

        app = admin_app(progress=self.progress, metrics=self.metrics, ready=ready)
        await http_server.run(
            app,
            listeners,
            limits=http_server.Limits(drain=ADMIN_DRAIN, connections=ADMIN_CONNECTIONS),
            stop=stop,
            ready=lambda url: self.listens("admin", url),
        )

    async def receive(self, listeners: Listeners, stop: asyncio.Event) -> None:
        """Webhooks in, until we stop; then those under way are answered."""
        settings = self.assembly.loaded.settings
        committer = GroupCommit[Result](
            commit=self.commit_events,
            batch_max=settings.receiver.batch_max,
            waiting_max=settings.receiver.waiting_max,
            beat=self.progress.loop("receiver", bound=COMMIT_BOUND),
        )
        app = WebhookApp(
            contracts=self.assembly.contracts,
            committer=committer,
            keep=self.keep,
            settings=settings.receiver,
            metrics=self.metrics.request_answered,
        )
        await receiver_server.run(
            app,
            listeners,
            limits=http_server.Limits(
                drain=settings.server.drain,
                connections=within_files(settings.server.connections),
            ),
            stop=stop,
            ready=lambda url: self.listens("webhooks", url),
        )

    async def commit_events(self, events: Sequence[Event]) -> Sequence[Result]:
        self.database.need()
        results = await commit(self.engine, self.assembly.rules, events)
        self.hint(results)
        return results

    def hint(self, results: Sequence[Result]) -> None:
        """Wake the relay and the reads; polling alone would find the same, a little later."""
        if any(result.effects for result in results):
            self.due.set()
        self.wanted.set()
        for result in results:
            self.metrics.events.labels(result.event.sender, result.outcome.value).inc()
            if result.other_body:
                self.metrics.other_bodies.labels(result.event.sender).inc()
            if result.drift is not None and result.event.event_id:
                self.metrics.corrections.labels(result.event.sender, result.drift.value).inc()

    async def keep(self, malformed: Sequence[Malformed]) -> None:
        """Put what is beyond use into quarantine, all of one delivery at once."""
        self.database.need()
        await keeper(self.engine, self.assembly.rules)(malformed)
        for one in malformed:
            self.metrics.events.labels(one.sender, Outcome.QUARANTINED.value).inc()

    async def watch_generation(self, stop: asyncio.Event) -> None:
        await self.database.once_prepared(stop)
        beat = self.progress.loop("generation", bound=LOOP_BOUND)
        await self.generation.watch(stop, beat=beat)

    async def run_relay(self, stop: asyncio.Event) -> None:
        await self.database.once_prepared(stop)
        settings = self.assembly.loaded.settings.relay
        await relay.run(
            self.engine,
            self.assembly.destinations,
            relay.Policy(
                poll=settings.poll,
                lease=settings.lease,
                backoff=Backoff(base=settings.backoff_base, cap=settings.backoff_cap),
            ),
            hint=self.due,
            stop=stop,
            progress=self.progress.loop("relay", bound=LOOP_BOUND + settings.poll),
            turn=partial(faults.turn, "relay"),
            metrics=self.metrics.attempted,
            point=faults.point,
            may_call=self.generation.may_call,
            follow=Following(rules=self.assembly.rules, together=TOGETHER_WITHIN),
        )

    async def work_off_redrives(self, stop: asyncio.Event) -> None:
        """What people asked for in bulk, batch by batch, any replica the next one."""
        await self.database.once_prepared(stop)
        await redrive_runs.work_off(
            self.engine,
            self.assembly,
            may_call=self.generation.may_call,
            stop=stop,
            beat=self.progress.loop("redrives", bound=redrive_runs.BOUND),
            redriven=self.due.set,
        )

    async def scan(self, stop: asyncio.Event) -> None:
        await self.database.once_prepared(stop)
        settings = self.assembly.loaded.settings.polling
        await schedule.run(
            self.engine,
            self.assembly.rules,
            self.assembly.sources,
            self.assembly.apis,
            settings=settings,
            stop=stop,
            progress=self.progress.loop("scans", bound=LOOP_BOUND + settings.poll),
            ended=self.count_scan,
        )

    async def read(self, stop: asyncio.Event) -> None:
        await self.database.once_prepared(stop)
        settings = self.assembly.loaded.settings.polling
        await fetching.run(
            self.engine,
            self.assembly.rules,
            self.assembly.sources,
            self.assembly.apis,
            settings=settings,
            hint=self.wanted,
            stop=stop,
            progress=self.progress.loop("reads", bound=LOOP_BOUND + settings.poll),
            found=self.hint,
        )

    async def hear(self, stop: asyncio.Event) -> None:
        await self.database.once_prepared(stop)
        beat = self.progress.loop("silence", bound=LOOP_BOUND + silence.LOOK_EVERY)
        await silence.watch_over(self.engine, self.assembly).watch(stop, beat=beat)

    async def forget(self, stop: asyncio.Event) -> None:
        """Remove what is old enough, in batches that hold nothing up."""
        await self.database.once_prepared(stop)
        await keep_purging(
            self.engine,
            self.assembly.loaded.settings,
            stop=stop,
            beat=self.progress.loop("retention", bound=RETENTION_BOUND),
        )

    async def refresh_gauges(self, stop: asyncio.Event) -> None:
        """One transaction every quarter of a minute, never inside a scrape."""
        await self.database.once_prepared(stop)
        beat = self.progress.loop("gauges", bound=LOOP_BOUND + GAUGES_EVERY)
        while not stop.is_set():
            try:
                wait_bounded(GAUGES_WITHIN)
                async with asyncio.timeout(GAUGES_WITHIN.total_seconds()):
                    counts = await transact(self.engine, self.count)
                    skew = await self.database.look_at_clock()
                    oldest = await transact(self.engine, oldest_transaction)
                self.metrics.show(counts)
                self.metrics.clock_skew.set(skew.total_seconds())
                self.metrics.oldest_transaction.set(oldest)
            except (DatabaseAwayError, TimeoutError):
                pass  # the database part says so, once
            beat()
            await pause(stop, GAUGES_EVERY)

    async def count(self, connection: AsyncConnection) -> dict[str, Any]:
        with taking_up_to(connection, COUNTED_WITHIN):
            return await figures(connection, self.assembly)

    def listens(self, name: str, url: str) -> None:
        """Note one listener; the last of them makes us ready, once."""
        self.listening[name] = url
        expected = {"admin", "webhooks"} if "receiver" in self.roles else {"admin"}
        if self.listening.keys() == expected:
            log.info(
                "daemon.ready",
                webhooks=self.listening.get("webhooks"),
                admin=self.listening["admin"],
                roles=list(self.roles),
                baseline=self.database.in_baseline,
            )
            notify("READY=1")

    def condition(self, *, draining: bool) -> Condition:
        """How we are; a drain has a deadline of its own, and its loops are over."""
        if draining:
            return Condition(told="stopping: what is under way is finished")
        if stalled := self.progress.stalled():
            return Condition(told=f"stalled: {', '.join(stalled)}", alive=False)
        if self.database.away is not None:
            return Condition(told=f"waiting for the database: {self.database.away}")
        return Condition(told=f"serving: {', '.join(self.roles)}")

    def count_scan(self, report: ScanReport) -> None:
        self.metrics.scans.labels(report.sender, report.end.value).inc()
        self.due.set()
