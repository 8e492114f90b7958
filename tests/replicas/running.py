"""One run: replicas, a load, what happens to them meanwhile, and what came of it."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.replicas.plan import Step
from tests.replicas.result import (
    Disturbed,
    Result,
    converged,
    faults_of,
    faults_of_turns,
    metric,
    result_of,
)
from tests.replicas.world import CONFIGURATION, PATIENT, World, a_world
from tests.world import Daemon, eventually

ALL = ("receiver", "relay", "reconciler")
SHARE = 1 / 5  #: of deliveries and of attempts, that each of two must have handled more than

FAMILIES = {
    "deliveries": "reconciler_webhook_requests_total",
    "attempts": "reconciler_outbox_attempts_total",
    "passes": "reconciler_scans_total",
}

Meanwhile = Callable[["Running"], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What one replica is started with."""

    name: str
    roles: tuple[str, ...] = ALL
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Running:
    """Replicas at work."""

    world: World
    replicas: Mapping[str, Replica]
    daemons: dict[str, Daemon] = field(default_factory=dict)
    disturbed: list[Disturbed] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)  #: what must have happened for it to count

    async def start(self, name: str) -> Daemon:
        replica = self.replicas[name]
        daemon = await self.world.replica(
            name, "--role", ",".join(replica.roles), **replica.environment
        )
        self.daemons[name] = daemon
        return daemon

    async def restart(self, name: str) -> None:
        """Stop *name* with SIGTERM, which must end it with 0, and start it again."""
        with self.disturbing(name):
            await self.daemons[name].stops()
            await self.start(name)
        self.met["restarts"] += 1

    @contextmanager
    def disturbing(self, name: str) -> Iterator[None]:
        """Note that what *name* had under way may have been broken off."""
        began = time.monotonic()
        yield
        self.disturbed.append(Disturbed(name=name, began=began, ended=time.monotonic()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of a run."""

    result: Result
    faults: list[str]
    figures: Mapping[str, Any]


async def run(
    database_url: str,
    steps: list[Step],
    replicas: list[Replica],
    *,
    seed: int,
    pace: float,
    meanwhile: Meanwhile | None = None,
    configuration: str = CONFIGURATION,
    first_python: str | None = None,
    answer_within: float = PATIENT,
) -> Ran:
    """Let *steps* happen before *replicas*, until all has converged; then stop them and look."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="replicas-") as name:
        async with a_world(
            Path(name),
            database_url,
            seed=seed,
            configuration=configuration,
            answer_within=answer_within,
        ) as world:
            world.python = first_python or world.python
            code, _, said = await world.command("migrate")
            assert 0 == code, said
            world.sender.sets("ord_0", status="old", amount=1)  # a watermark needs an order
            running = Running(world=world, replicas={one.name: one for one in replicas})
            for one in replicas:
                await running.start(one.name)
            await world.baseline_over()
            return await _load(running, steps, pace=pace, meanwhile=meanwhile, began=began)


async def _load(
    running: Running,
    steps: list[Step],
    *,
    pace: float,
    meanwhile: Meanwhile | None,
    began: float,
) -> Ran:
    world, faults = running.world, []
    story = asyncio.create_task(meanwhile(running)) if meanwhile else None
    await world.emit(steps, pace=pace)
    if story is not None:
        if not story.done():
            faults.append("the load ended before what was to happen meanwhile")
        await story
    await converged(world, steps)
    await world.scans(1)
    if story is None:
        await eventually(lambda: counts_agree(running))
    shares = shares_of(world)
    for daemon in running.daemons.values():
        await daemon.stops()
    result = await result_of(world)
    faults += faults_of(result, world, steps) + faults_of_turns(
        world.sender.passes, running.disturbed
    )
    if meanwhile is None:
        faults += faults_of_shares(running, shares)
    figures = {
        **shares,
        "unanswered": dict(Counter(f"{one.status} {one.outcome}" for one in world.unanswered)),
        **running.met,
        "seconds": round(time.monotonic() - began, 1),
    }
    return Ran(result=result, faults=faults, figures=figures)


def shares_of(world: World) -> dict[str, dict[str, int]]:
    """Who did how much, as the balancer and the pretend worlds have counted it."""
    return {
        "deliveries": dict(sorted(world.balancer.connections.items())),
        "attempts": dict(sorted(world.destination.by.items())),
        "passes": dict(Counter(caller for _, caller, _ in sorted(world.sender.passes))),
    }


async def counts_agree(running: Running) -> bool:
    """Whether the replicas' own metrics say what the worlds have counted."""
    told = {
        what: {name: await metric(daemon, family) for name, daemon in running.daemons.items()}
        for what, family in FAMILIES.items()
    }
    seen = {
        what: {name: counted.get(name, 0) for name in running.daemons}
        for what, counted in shares_of(running.world).items()
    }
    return told == seen


def faults_of_shares(running: Running, shares: Mapping[str, Mapping[str, int]]) -> list[str]:
    """
    Replicas of the same roles must each have done their share.

    A relay beside a receiver is told at once of what there is to call, and one that has none
    beside it looks every now and then: it gets what the other one leaves.
    """
    found = []
    same = {one.roles for one in running.replicas.values()}
    if len(same) > 1:
        return found
    for what, role in (("deliveries", "receiver"), ("attempts", "relay")):
        doing = [one.name for one in running.replicas.values() if role in one.roles]
        total = sum(shares[what].values())
        for name in doing:
            share = shares[what].get(name, 0) / total
            if share <= SHARE:
                found.append(f"{name} handled {share:.0%} of {what}")
    return found
