"""The database server dies under a running daemon and comes back: nobody restarts the daemon."""

import asyncio
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from reconciler import migrate
from reconciler.embedded_server import Server
from tests.clusters import made_database, new_directory
from tests.kills.judge import CURSES, faults_of, lost, quiet
from tests.kills.load import Load
from tests.world import PLAIN, Daemon, a_world, eventually

pytestmark = pytest.mark.anyio

READY_WITHIN = 5.0  #: seconds after the server takes connections again (L5)


@dataclass(kw_only=True)
class Health:
    """What a daemon says of itself, asked again and again: status and moment of each answer."""

    daemon: Daemon
    alive: list[int] = field(default_factory=list)
    ready: list[tuple[int, float]] = field(default_factory=list)

    async def watch(self) -> None:
        async with httpx.AsyncClient(trust_env=False, verify=PLAIN, timeout=10) as client:
            while True:
                self.alive.append((await client.get(f"{self.daemon.admin}/livez")).status_code)
                answer = await client.get(f"{self.daemon.admin}/readyz")
                self.ready.append((answer.status_code, time.monotonic()))
                await asyncio.sleep(0.05)

    async def shows(self, status: int) -> float:
        """Wait until /readyz answers *status* from now on; when it did."""
        since = time.monotonic()

        async def shown() -> list[float]:
            return [at for found, at in self.ready if found == status and at > since]

        return (await eventually(shown))[0]


@pytest.fixture
def server() -> Iterator[Server]:
    """A PostgreSQL of this test's own."""
    directory = new_directory()
    directory.chmod(0o711)
    server = Server.under(directory, fast=True)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGQUIT], ids=["kill -9", "immediate"])
async def test_the_server_dies_under_load_and_comes_back(
    server: Server, tmp_path: Path, how: signal.Signals
):
    """
    Webhooks come in, calls go out, scans run; the server is killed, is away for two seconds, and
    recovers. Meanwhile /livez says that all is well, /readyz that nobody should send us anything,
    and deliveries are told to come again. Then the same process goes on by itself; nothing that
    it acknowledged is lost, nothing happened twice.
    """
    with made_database(server.url, "shop") as url:
        await migrate.upgrade(url)
        async with a_world(tmp_path, url) as world:
            await world.rows(CURSES)
            daemon = await world.start()
            await world.baseline_over()
            pid = daemon.process.pid
            load, health = Load(world=world, random=random.Random(4)), Health(daemon=daemon)
            watching = asyncio.create_task(health.watch())
            async with load.towards(daemon):
                await answered(load, 30)
                assert server.process is not None
                server.process.send_signal(how)
                await health.shows(503)
                await asyncio.sleep(2)  # an outage takes its time
                refused = load.answers[503]
                await back(server)
                began = time.monotonic()
                took = await health.shows(200) - began
                known = list(load.acknowledged)
                await answered(load, load.answers[200] + 30)
            assert refused > 0
            assert took < READY_WITHIN, f"ready {took:.1f} s after the server"
            assert [] == await lost(world, load), known
            await load.drained()
            await world.time_passes()
            await quiet(world)
            watching.cancel()
            assert [] == await faults_of(world, load)
            assert {200} == set(health.alive)
            assert (pid, None) == (daemon.process.pid, daemon.process.returncode)
            await daemon.stops()


async def test_server_and_daemon_die_at_once(server: Server, tmp_path: Path):
    """kill -9 of both in the middle of everything. Both are started; nothing else is done."""
    with made_database(server.url, "shop") as url:
        await migrate.upgrade(url)
        async with a_world(tmp_path, url) as world:
            await world.rows(CURSES)
            daemon = await world.start()
            await world.baseline_over()
            load = Load(world=world, random=random.Random(5))
            async with load.towards(daemon):
                await answered(load, 30)
                assert server.process is not None
                server.process.send_signal(signal.SIGKILL)
                daemon.process.kill()
                await daemon.dies()
            await back(server)
            assert [] == await lost(world, load)
            await world.start()
            await load.drained()
            await world.time_passes()
            await quiet(world)
            assert [] == await faults_of(world, load)
            await world.daemons[-1].stops()


async def answered(load: Load, many: int) -> None:
    """Wait until *many* deliveries have been acknowledged."""

    async def enough() -> bool:
        return load.answers[200] >= many

    await eventually(enough, within=60)


async def back(server: Server) -> None:
    """Start the server again, as soon as nothing is left of the old one; wait until it answers."""

    async def ended() -> bool:
        return server.has_ended()

    async def ready() -> bool:
        if server.has_ended() and server.is_waiting_for_children():
            server.launch()
        return server.is_ready()

    await eventually(ended)
    server.launch()
    await eventually(ready, within=60)
