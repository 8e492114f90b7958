"""What a run came to, read from the tables and from what the pretend worlds kept."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from tests.replicas.plan import Step, effects_of, told
from tests.replicas.world import INTERVAL, World
from tests.world import Daemon

WITHIN = 90.0  #: seconds for everything to converge
LATEST = 15.0  #: seconds between two scans on a machine that is busy with other things
CLAIMED = """
select event_id, case when kind is null then outcome else 'claimed' end as outcome
from reconciler.processed_events
where event_id not like 'correction:%' and event_id not like 'read:%'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """When a replica was stopped, killed or frozen, and until when."""

    name: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that must not depend on how many replicas there were."""

    states: Mapping[str, tuple[int, Mapping[str, Any]]]
    claims: Mapping[str, str]  #: an outcome only where the order of arrival does not decide it
    orders: Mapping[str, tuple[str, int]]  #: the user's own table
    refunds: Mapping[str, int]  #: rows of the user's other table, by event
    entries: Mapping[str, int]  #: outbox entries by effect
    performed: Sequence[tuple[str, str]]  #: key and reference of each effect that took place

    def differences(self, other: "Result") -> list[str]:
        found = []
        for one in fields(self):
            ours, theirs = getattr(self, one.name), getattr(other, one.name)
            if ours != theirs:
                found.append(f"{one.name}: {_apart(ours, theirs)}")
        return found


def _apart(ours: Any, theirs: Any) -> str:
    left = ours.items() if isinstance(ours, Mapping) else ours
    right = theirs.items() if isinstance(theirs, Mapping) else theirs
    only_left = [one for one in left if one not in right]
    only_right = [one for one in right if one not in left]
    return f"{only_left[:5]} beside {only_right[:5]}"


async def result_of(world: World) -> Result:
    states = await world.rows("select key, version, state from reconciler.resources order by key")
    claims = await world.rows(CLAIMED)
    orders = await world.rows("select * from orders order by id")
    refunds = await world.rows("select source_event, count(*) as n from refunds group by 1")
    entries = await world.rows("select effect, count(*) as n from reconciler.outbox group by 1")
    return Result(
        states={row["key"]: (row["version"], row["state"]) for row in states},
        claims={row["event_id"]: row["outcome"] for row in claims},
        orders={row["id"]: (row["status"], row["status_version"]) for row in orders},
        refunds={row["source_event"]: row["n"] for row in refunds},
        entries={row["effect"]: row["n"] for row in entries},
        performed=sorted((key, body["reference"]) for key, body in world.destination.performed),
    )


async def missing(world: World, steps: list[Step]) -> list[str]:
    """What has still to come, in words; nothing when all has converged."""
    found = []
    rows = await world.rows("select key, version from reconciler.resources")
    versions = {row["key"]: row["version"] for row in rows}
    for key, order in world.sender.orders.items():
        if versions.get(key) != order["version"]:
            found.append(f"{key} at {order['version']}, held at {versions.get(key)}")
    still = Counter(effects_of(steps)) - Counter(world.destination.effects)
    found += sorted(still.keys() - await held(world))
    waiting = await world.value(
        "select count(*) from reconciler.outbox where state = 'pending' and due_at is not null"
    )
    asked = await world.value("select count(*) from reconciler.fetch_requests")
    found += [f"{waiting} entries pending"] if waiting else []
    found += [f"{asked} reads asked for"] if asked else []
    return found


async def held(world: World) -> set[str]:
    """
    What waits for a person: effects at the destination without keys, whose last call may have
    been heard.
    """
    uncertain = await world.rows(
        "select effect || ' ' || event_id as name from reconciler.outbox"
        " where state = 'uncertain' and not idempotent"
    )
    return {row["name"] for row in uncertain}


async def converged(world: World, steps: list[Step]) -> None:
    """Wait until nothing has to come any more."""
    deadline = time.monotonic() + WITHIN
    while left := await missing(world, steps):
        assert time.monotonic() < deadline, f"did not converge: {left[:10]}"
        await asyncio.sleep(0.2)


def faults_of(result: Result, world: World, steps: list[Step]) -> list[str]:
    """What is wrong with a run by itself: lost and doubled effects, lost events."""
    performed = Counter(reference for _, reference in result.performed)
    found = [f"doubled: {name}" for name, times in performed.items() if times > 1]
    found += [f"never asked for: {name}" for name in performed.keys() - set(effects_of(steps))]
    found += [
        f"acknowledged and not claimed: {one}" for one in world.acknowledged - result.claims.keys()
    ]
    found += [f"never acknowledged: {one}" for one in told(steps) - world.acknowledged]
    applied = Counter(
        one.event_id
        for one in world.answered
        if one.outcome not in {"", "duplicate"} and one.status
    )
    found += [f"applied {n} times: {one}" for one, n in applied.items() if n > 1]
    return found


async def metric(daemon: Daemon, family: str, **labels: str) -> float:
    """The sum of the samples of *family* that carry *labels*, as the replica tells them."""
    shown = await daemon.shown("/metrics")
    assert shown is not None
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in shown.splitlines()
        if line.startswith((family + "{", family + " ")) and all(one in line for one in wanted)
    )


def faults_of_turns(
    passes: Sequence[tuple[float, str, str]], disturbed: Sequence[Disturbed] = ()
) -> list[str]:
    """
    Whether each slot was one scan: by when the sender was asked for a listing.

    A turn comes an interval after the last pass was completed. Two replicas that took the same
    one would ask sooner, one that lost it much later. Only a pass whose replica was *disturbed*
    in it goes on at once, at another.
    """
    found = []
    full = [one for one in passes if one[2] == "full"]
    if len(full) != 1:
        found.append(f"{len(full)} full scans where one was due")
    turns = [(at, caller) for at, caller, mode in passes if mode == "incremental"]
    for (before, caller), (after, _) in pairwise(turns):
        broken_off = any(
            one.name == caller and one.began < after and before < one.ended for one in disturbed
        )
        if after - before < INTERVAL and not broken_off:
            found.append(f"two scans within {after - before:.3f} s")
        if after - before > INTERVAL + LATEST:
            found.append(f"no scan for {after - before:.1f} s")
    return found
