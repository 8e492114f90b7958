"""One round: load, the primary goes, its standby takes over; what was lost, and how long."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from tests.failover.cluster import Cluster, a_cluster
from tests.replicas.plan import Step, drawn, effects_of
from tests.replicas.result import CLAIMED, converged, held, missing
from tests.replicas.world import World, a_world
from tests.world import Daemon, eventually

READY_WITHIN = 5.0  #: seconds from the new primary's first write to the daemon's readiness
UNHEALED = ("--role", "receiver,relay")  #: what heals itself hides its own losses
PACE = 0.02  #: seconds between two events
ONE_LOOK = 4.0  #: seconds after which the daemon has certainly looked at its database again
BEFORE = 60  #: events that are acknowledged before the primary goes
UNREPLICATED = 20  #: acknowledged after the standby has stopped to hear of them


@dataclass(slots=True, kw_only=True)
class Round:
    """What one round came to."""

    how: str
    seed: int
    acknowledged: int = 0
    lost: int = 0  #: acknowledged events that are not claimed
    doubled: list[str] = field(default_factory=list)  #: effects that took place twice
    unperformed: list[str] = field(default_factory=list)  #: of events that are claimed
    gap: float = 0.0  #: seconds in which nothing was acknowledged
    ready_after: float = 0.0  #: seconds from the new primary's first write to /readyz 200
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


async def one_round(how: str, *, seed: int, events: int) -> Round:
    """Run one round of *how*, a name in HOW."""
    began = time.monotonic()
    told = [step if step.delays else replace(step, delays=(0.0,)) for step in
            drawn(seed=seed, events=events)]  # fmt: skip
    found = Round(how=how, seed=seed)
    with tempfile.TemporaryDirectory(prefix="failover-world-") as name:
        async with (
            a_cluster(synchronous=how != "asynchronous") as cluster,
            a_world(Path(name), cluster.url, seed=seed, answer_within=30) as world,
        ):
            for words in (("migrate",), ("reconcile", "shop", "order")):
                code, _, said = await world.command(*words)  # birthday, and baseline
                assert 0 == code, said
            daemon = await world.replica("r1", *UNHEALED)
            await cluster.streams()
            await HOW[how](Lab(cluster=cluster, world=world, daemon=daemon), told, found)
            if daemon.process.returncode is not None:
                found.faults.append("the daemon has ended")
            await daemon.stops()
    found.seconds = round(time.monotonic() - began, 1)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """The servers and the world around the daemon."""

    cluster: Cluster
    world: World
    daemon: Daemon

    async def acknowledged(self, count: int) -> None:
        """Wait until *count* more events have been acknowledged."""
        wanted = len(self.world.acknowledged) + count

        async def there() -> bool:
            return len(self.world.acknowledged) >= wanted

        await eventually(there, within=60)

    async def taken_over(self, found: Round, change: Callable[[], Awaitable[None]]) -> None:
        """Let *change* make another server the primary; measure how long that is felt."""
        looking = asyncio.create_task(self.ready_for_good())
        went = time.monotonic()
        await change()
        writable = time.monotonic()
        await self.acknowledged(1)
        found.gap = round(time.monotonic() - went, 2)
        found.ready_after = round(max(0.0, await looking - writable), 2)
        if found.ready_after > READY_WITHIN:
            found.faults.append(f"ready only {found.ready_after} s after the new primary was")

    async def ready_for_good(self) -> float:
        """When `/readyz` has begun to answer 200 and nothing else, for longer than one look."""
        began = since = time.monotonic()
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            while time.monotonic() < since + ONE_LOOK:
                assert time.monotonic() < began + 60, "the daemon did not become ready again"
                if (await client.get(f"{self.daemon.admin}/readyz")).status_code != 200:
                    since = time.monotonic()
                await asyncio.sleep(0.05)
        return since

    async def judge(self, steps: list[Step], found: Round) -> set[str]:
        """Hold what was acknowledged against what is claimed now; return what is lost."""
        claims = {row["event_id"] for row in await self.world.rows(CLAIMED)}
        lost = self.world.acknowledged - claims
        performed = Counter(self.world.destination.effects)
        there = [step for step in steps if step.event_id in claims]
        found.acknowledged, found.lost = len(self.world.acknowledged), len(lost)
        found.doubled = sorted(name for name, times in performed.items() if times > 1)
        asked = set(effects_of(there)) - await held(self.world)
        found.unperformed = sorted(asked - performed.keys())
        return lost


async def failover(lab: Lab, steps: list[Step], found: Round) -> None:
    """kill -9 of the primary and all its processes; nothing that was acknowledged may be lost."""
    async with asyncio.TaskGroup() as load:
        load.create_task(lab.world.emit(steps, pace=PACE))
        await lab.acknowledged(BEFORE)
        await lab.taken_over(found, lab.cluster.fail_over)
    await whole(lab, steps, found)


async def switchover(lab: Lab, steps: list[Step], found: Round) -> None:
    """As planned, under load: the old primary follows the new one."""
    async with asyncio.TaskGroup() as load:
        load.create_task(lab.world.emit(steps, pace=PACE))
        await lab.acknowledged(BEFORE)
        await lab.taken_over(found, lab.cluster.switch_over)
    await lab.cluster.streams()
    await whole(lab, steps, found)


async def split(lab: Lab, steps: list[Step], found: Round) -> None:
    """
    After the failover the old primary comes back, and takes writes: it stands first in the URL.

    Whoever has seen the new primary does not use it.
    """
    half = len(steps) // 2
    async with asyncio.TaskGroup() as load:
        load.create_task(lab.world.emit(steps[:half], pace=PACE))
        await lab.acknowledged(BEFORE)
        await lab.taken_over(found, lab.cluster.fail_over)
    stale = lab.cluster.primary
    stale.configure(synchronous_standby_names="''")  # nothing of its own would hold it up
    await stale.start()
    before = await stale.asked("select count(*) from reconciler.processed_events")
    # every connection of the daemon is gone: it has to choose again
    await lab.cluster.standby.asked(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'reconciler'"
    )
    await lab.world.emit(steps[half:], pace=PACE)
    if before != await stale.asked("select count(*) from reconciler.processed_events"):
        found.faults.append("the former primary was written to")
    if "database.former_primary" not in lab.daemon.log:
        found.faults.append("the former primary was not met")
    await stale.stop("immediate")
    if not found.faults:
        await whole(lab, steps, found)


async def whole(lab: Lab, steps: list[Step], found: Round) -> None:
    """Nothing is lost, nothing doubled, and all that was asked for was performed."""
    await converged(lab.world, steps)
    lost = await lab.judge(steps, found)
    if lost or found.doubled or found.unperformed:
        found.faults.append(f"lost {sorted(lost)}, {found.doubled}, {found.unperformed}")


async def asynchronous(lab: Lab, steps: list[Step], found: Round) -> None:
    """
    The control: what the standby had not received is gone, though it was acknowledged; the checker
    must see that. One full scan heals the states, under the keys that were used before.
    """
    world = lab.world
    load = asyncio.create_task(world.emit(steps, pace=PACE))
    await lab.acknowledged(BEFORE)
    lab.cluster.primary.freeze_sending()
    await lab.acknowledged(UNREPLICATED)
    await lab.taken_over(found, lab.cluster.fail_over)
    await load
    await world.settled()
    lost = await lab.judge(steps, found)
    if not lost:
        found.faults.append("the control has shown no loss")
    if not await missing(world, []):
        found.faults.append("no state was lost: there was nothing to heal")
    code, said, err = await world.command("reconcile", "shop", "order", "--full")
    assert 0 == code, said + err
    facts = [step for step in steps if step.event_id in lost and step.facts is None]
    await converged(world, [step for step in steps if step not in facts])
    await lab.judge([step for step in steps if step.facts is not None], found)
    if found.doubled or found.unperformed:
        found.faults.append(f"not healed: {found.doubled} doubled, {found.unperformed} missing")


HOW: Mapping[str, Callable[[Lab, list[Step], Round], Awaitable[Any]]] = {
    "failover": failover,
    "switchover": switchover,
    "split": split,
    "asynchronous": asynchronous,
}
