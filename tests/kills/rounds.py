"""One round: a real `serve`, killed at a point or at any time while webhooks come in."""

import asyncio
import signal
import time
from dataclasses import dataclass, field

from reconciler import faults
from reconciler.proving.misbehaving_http import Request
from tests.kills.judge import lost
from tests.kills.load import Load
from tests.stories.conftest import UNHEALED
from tests.world import Daemon, World

DIES_WITHIN = 90.0  #: seconds
READY_WITHIN = 5.0  #: seconds from the start of a process, once the database answers (L5)
OLD = 10_050  #: claims to be purged: more than one batch

#: Points that are reached by a command, and by which.
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "in-migration": (("migrate",),),
    "between-indexes": (("migrate",),),
    "between-purge-and-horizon": (("purge",),),
    "between-purges": (("purge",),),
    "scan-after-take": (("reconcile", "shop", "order", "--full"),),
    "scan-after-page": (("reconcile", "shop", "order", "--full"),),
    "scan-before-checkpoint": (("reconcile", "shop", "order", "--full"),),
    "scan-after-checkpoint": (("reconcile", "shop", "order", "--full"),),
    "scan-before-complete": (("reconcile", "shop", "order", "--full"),),
    "read-between-fetch-and-apply": (("reconcile", "shop", "order", "ord_1"),),
}
FIRST = "generation-opened"  #: is reached by the first daemon that a database ever has
#: Needs a database that went back in time: `tests/stories/test_restore.py` kills a daemon there.
ELSEWHERE = frozenset({FIRST, "between-holds"})
ONLY_COMMANDS = frozenset({"in-migration", "between-indexes"})
WITHOUT_RECONCILER = ("after-", "before-", "commit-", "ack-", "in-quarantine", "relay-")


@dataclass(kw_only=True)
class Kills:
    """How often what was killed where, and how soon the next one was ready."""

    world: World
    load: Load
    hits: dict[str, int] = field(default_factory=dict)
    ready: list[float] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    watching: asyncio.Task[None] = field(init=False)

    async def at_point(self, at: str) -> None:
        """A daemon that kills itself at *at*, the first to third time that it comes there."""
        healing = not at.startswith(WITHOUT_RECONCILER)
        words = () if healing else UNHEALED
        times = self.load.random.choice([1, 1, 2, 3]) if at.startswith(("after-", "relay-")) else 1
        if at in ("between-purges", "between-purge-and-horizon"):
            await old_claims(self.world)
        if at == "scan-after-renewal":
            self.world.sender.before = slowly
        try:
            daemon = await self.started(*words, RECONCILER_TEST_CRASH_AT=f"{at}:{times}")
            async with self.load.towards(daemon):
                terminating = asyncio.create_task(self.terminated(daemon, when=at == "draining"))
                await self.death_of(daemon, at)
                await terminating
        finally:
            self.world.sender.before = None

    async def at_any_time(self) -> None:
        """A daemon with every role, killed from outside after a moment that nobody chose."""
        daemon = await self.started()
        async with self.load.towards(daemon):
            await self.watching
            await asyncio.sleep(self.load.random.uniform(0, 2.5))
            daemon.process.kill()
            await self.death_of(daemon, "any time")

    async def command(self, at: str, *words: str) -> None:
        """A command killed at *at*; then it is run again, and finishes what it had begun."""
        if at in ("between-purges", "between-purge-and-horizon"):
            await old_claims(self.world)
        if at == "between-indexes":
            await self.world.rows("drop index reconciler.outbox_completed_idx")
        if at == "in-migration":
            await self.world.rows("drop schema if exists fresh cascade")
        other = {"RECONCILER_DATABASE__SCHEMA": "fresh"} if at == "in-migration" else {}
        code, out, err = await self.world.command(*words, RECONCILER_TEST_CRASH_AT=at, **other)
        assert -signal.SIGKILL == code, (at, words, code, out + err)
        self.hits[f"{words[0]}: {at}"] = self.hits.get(f"{words[0]}: {at}", 0) + 1
        deadline = time.monotonic() + 20  # its lease has to run out; then it is free again
        while True:
            code, out, err = await self.world.command(*words, **other)
            if code == 0 or time.monotonic() > deadline:
                break
        assert 0 == code, (at, words, code, out + err)

    async def started(self, *words: str, **environment: str) -> Daemon:
        """Start a daemon; when it is ready is noted beside what goes on."""
        log_file = self.world.directory / f"serve-{len(self.world.daemons) + 1}.log"
        process = await self.world.serve(log_file, *words, **environment)
        daemon = Daemon(process=process, log_file=log_file)
        self.world.daemons.append(daemon)
        self.watching = asyncio.create_task(self.watch(daemon, begun=time.monotonic()))
        return daemon

    async def watch(self, daemon: Daemon, *, begun: float) -> None:
        """Note when *daemon* is ready, if it lives to be."""
        while daemon.process.returncode is None:
            ready = await self.ready_line(daemon)
            if ready is not None and await usable(daemon, ready["admin"]):
                self.ready.append(time.monotonic() - begun)
                daemon.admin = ready["admin"]
                daemon.webhooks = ready["webhooks"] or ""
                return
            await asyncio.sleep(0.02)

    async def ready_line(self, daemon: Daemon) -> dict[str, str] | None:
        try:
            return await daemon.ready_line()
        except AssertionError:  # it is dead already
            return None

    async def terminated(self, daemon: Daemon, *, when: bool) -> None:
        """SIGTERM, in the middle of the load."""
        if not when:
            return
        await self.watching
        await asyncio.sleep(0.5)
        daemon.process.terminate()

    async def death_of(self, daemon: Daemon, at: str) -> None:
        async with asyncio.timeout(DIES_WITHIN):
            code = await daemon.process.wait()
        assert -signal.SIGKILL == code, f"{at}: it ended with {code}\n{daemon.log[-3000:]}"
        await self.watching
        self.hits[at] = self.hits.get(at, 0) + 1
        self.losses += await lost(self.world, self.load)


def points() -> list[str]:
    """Every point that a daemon is killed at here."""
    return [at for at in faults.POINTS if at not in ELSEWHERE | ONLY_COMMANDS]


async def usable(daemon: Daemon, admin: str) -> bool:
    daemon.admin = admin
    try:
        return await daemon.is_usable()
    except Exception:  # noqa: BLE001 - it died while it was asked
        return False


async def slowly(request: Request) -> None:
    """Pages take longer than a third of a lease."""
    if request.path == "/v1/orders":
        await asyncio.sleep(1.2)


async def old_claims(world: World) -> None:
    """Claims of a hundred days ago, which the next purge removes."""
    await world.rows(
        "insert into reconciler.processed_events"
        " (sender, event_id, event_type, outcome, body_digest, processed_at)"
        " select 'shop', 'old_' || n, 'refund.succeeded', 'applied', 'digest',"
        " now() - interval '100 days' from generate_series(1, %s) n on conflict do nothing",
        OLD,
    )
