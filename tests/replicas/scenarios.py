"""What happens to replicas while they work, and the clocks that they work by."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from reconciler.proving.misbehaving_http import Request
from tests.replicas.running import Replica, Running
from tests.replicas.world import caller

FROZEN = 6.0  #: seconds; longer than the leases of relay (4 s) and scans (2 s)
STOOD_STILL = 4.0  #: seconds; several turns
FAKETIME = "/usr/lib/*/faketime/libfaketime.so.1"

TWO = [Replica(name="r1"), Replica(name="r2")]
MIXED = [
    Replica(name="r1", roles=("receiver", "relay")),
    Replica(name="r2", roles=("receiver", "reconciler")),
    Replica(name="r3", roles=("relay", "reconciler")),
]


def skewed(by: str, *, zone: str = "UTC") -> Mapping[str, str] | None:
    """The environment of a process whose wall clock is off; None where Debian's faketime is not."""
    found = sorted(Path("/").glob(FAKETIME.removeprefix("/")))
    if not found:
        return None
    return {
        "LD_PRELOAD": str(found[0]),
        "FAKETIME": by,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "TZ": zone,
    }


async def rolling_restart(running: Running) -> None:
    """One after the other, as a deployment does."""
    await asyncio.sleep(1)
    for name in running.replicas:
        await running.restart(name)


async def frozen_in_a_call(running: Running) -> None:
    """r1 stands still in a call of each destination, and r2 in a scan, past their leases."""
    world = running.world
    for what in ("/v1/notes", "/v1/closings"):
        seen = Freezing(running, "r1", where=what)
        world.destination.before = seen.look
        await seen.over()
        running.met["frozen in a call"] += 1
    seen = Freezing(running, "r2", where="/v1/orders")
    world.sender.before = seen.look
    await seen.over()
    running.met["frozen in a scan"] += 1


class Freezing:
    """Stops a replica while a request of its own is under way; the request is answered."""

    def __init__(self, running: Running, name: str, *, where: str) -> None:
        self.running, self.name, self.where = running, name, where
        self.began = asyncio.Event()

    async def look(self, request: Request) -> None:
        if self.began.is_set() or request.path != self.where or caller(request) != self.name:
            return
        self.running.daemons[self.name].process.send_signal(signal.SIGSTOP)
        self.began.set()

    async def over(self) -> None:
        """Wait until it stands still, and wake it after its leases have run out."""
        async with asyncio.timeout(30):
            await self.began.wait()
        with self.running.disturbing(self.name):
            await asyncio.sleep(FROZEN)
            self.running.daemons[self.name].process.send_signal(signal.SIGCONT)


async def changing_leaders(running: Running) -> None:
    """
    Whoever scans is killed in it, stopped before its turn, or stands still over several turns;
    a listing hangs. No turn is lost, and none is made up twice.
    """
    world = running.world
    await killed_in_a_scan(running)
    running.met["killed in a scan"] += 1
    for name in running.replicas:
        await running.restart(name)
    with contextlib.ExitStack() as disturbing:
        for name, daemon in running.daemons.items():
            disturbing.enter_context(running.disturbing(name))
            daemon.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(STOOD_STILL)
        for daemon in running.daemons.values():
            daemon.process.send_signal(signal.SIGCONT)
    running.met["stood still"] += 1
    await world.scans(2)

    async def hangs(request: Request) -> None:
        if request.path == "/v1/orders":
            world.sender.before = None  # once
            running.met["hung"] += 1
            await asyncio.Event().wait()

    world.sender.before = hangs
    await world.scans(3)


async def killed_in_a_scan(running: Running) -> None:
    """Kill whoever asks for the next listing, before it has the answer; start it again."""
    killed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def kills(request: Request) -> None:
        if request.path == "/v1/orders" and not killed.done():
            running.daemons[caller(request)].process.kill()
            killed.set_result(caller(request))

    running.world.sender.before = kills
    name = await killed
    running.world.sender.before = None
    with running.disturbing(name):
        await running.daemons[name].dies()
        await running.start(name)


def upgrading(*, old: str, new: str) -> Callable[[Running], Awaitable[None]]:
    """From the version of interpreter *old* to that of *new* and back, as documented."""

    async def story(running: Running) -> None:
        world = running.world
        await asyncio.sleep(1)
        world.python = new
        code, _, said = await world.command("migrate")
        assert 0 == code, said
        running.met["migrated under load"] += 1
        for name in running.replicas:
            await running.restart(name)
        await asyncio.sleep(1)
        world.python = old  # one minor back: it works on a schema that is one ahead
        for name in running.replicas:
            await running.restart(name)

    return story
