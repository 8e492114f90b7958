"""One seed from its plan to its verdict: trouble, quiet, judgment; reconciler on, judgment."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg

from reconciler.proving import history
from reconciler.proving.history import History
from reconciler.proving.misbehaving_http import listen
from tests.history.destination import Destination
from tests.history.faults import break_things
from tests.history.judge import Rows, Violation, judge
from tests.history.plan import Plan, Round, plan
from tests.history.replicas import Replica
from tests.history.sender import Sender
from tests.history.server import Cluster, rows
from tests.history.told import Line
from tests.history.troubles import met
from tests.history.waiting import until
from tests.nursery import Nursery
from tests.postgres_proxy import PostgresProxy

OFF, ON = "receiver,relay", "receiver,relay,reconciler"
QUIET = 240.0  #: seconds in which everything must come to rest, on a machine without time too
POINT = 10.0  #: seconds in which a crash point must be met under load
LOOK_EVERY = 0.1
BREAKER_OPENED = '"relay.breaker_opened"'
DUE = "select count(*) from reconciler.outbox where state = 'pending' and due_at is not null"
ASKED = "select count(*) from reconciler.fetch_requests"
OUR_ORDERS = "select key, version, state from reconciler.resources where not deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a seed came to."""

    seed: int
    violations: tuple[str, ...]
    kinds: Counter[str]
    """`lost`, `doubled`, `undrained`, `other`: how many of each."""
    met: Counter[str]
    seconds: float
    directory: str
    postgresql: str


async def run(
    seed: int,
    *,
    cluster: Cluster,
    nursery: Nursery,
    directory: Path,
    packages: Path | None = None,
) -> Result:
    """
    Run *seed* with its histories in *directory*; *packages*: a copy of the product to run.

    Judged twice: while nothing has healed what was lost (reconciler off), and when it has.
    """
    began = time.monotonic()
    with cluster.database(f"history_{seed}") as url:
        async with AsyncExitStack() as running:
            world = await World.made(
                plan(seed),
                cluster,
                url,
                directory,
                nursery=nursery,
                packages=packages,
                running=running,
            )
            violations = await world.live_through()
        counts = met(*world.histories(), world.last_rows)
        counts["breaker opened"] = sum(one.said(BREAKER_OPENED) for one in world.replicas)
    return Result(
        seed=seed,
        violations=tuple(str(one) for one in violations),
        kinds=Counter(one.kind for one in violations),
        met=counts,
        seconds=time.monotonic() - began,
        directory=str(directory),
        postgresql=cluster.version,
    )


@dataclass(kw_only=True)
class World:
    """All that runs for one seed."""

    plan: Plan
    cluster: Cluster
    url: str
    directory: Path
    sender: Sender
    replicas: Sequence[Replica]
    faults: History
    last_rows: Rows

    @classmethod
    async def made(
        cls,
        plan: Plan,
        cluster: Cluster,
        url: str,
        directory: Path,
        *,
        nursery: Nursery,
        packages: Path | None,
        running: AsyncExitStack,
    ) -> "World":
        faults = History(directory / "faults.jsonl")
        replicas: list[Replica] = []
        sender = Sender(
            plan,
            History(directory / "sender.jsonl"),
            address=lambda number: replicas[number].address,
        )
        running.push_async_callback(sender.close)
        destination = Destination(plan, History(directory / "destination.jsonl"))
        api, pay = await listen(sender.answer), await listen(destination.answer)
        running.push_async_callback(api.close)
        running.push_async_callback(pay.close)
        for number in range(plan.replicas):
            replica = Replica(
                number,
                proxy=await running.enter_async_context(PostgresProxy(url)),
                directory=directory,
                history=faults,
                nursery=nursery,
                packages=packages,
            )
            replica.configure(plan, sender=api.url, destination=pay.url)
            running.push_async_callback(replica.stop, gently=False)
            replicas.append(replica)
        if plan.replicas > 1:
            faults.write("two replicas")
        if plan.ordered:
            faults.write("ordered")
        if plan.lanes:
            faults.write("lanes")
        if plan.rate is not None:
            faults.write("rate")
        return cls(
            plan=plan,
            cluster=cluster,
            url=url,
            directory=directory,
            sender=sender,
            replicas=replicas,
            faults=faults,
            last_rows={},
        )

    async def live_through(self) -> list[Violation]:
        await self.start(OFF, self.plan.before)
        await self.trouble(self.plan.before)
        await self.rest(self.is_drained, "the reconciler off")
        found = await self.judged("off", reconciled=False)
        if found:  # what comes later could only hide it
            return found
        await self.stop()
        await self.start(ON, self.plan.aftermath)
        await self.trouble(self.plan.aftermath)
        await self.rest(self.has_converged, "the reconciler on")
        self.sender.tell_what_was_held()
        await self.rest(self.has_converged, "what was held back told")
        await self.stop()
        return await self.judged("on", reconciled=True)

    async def start(self, roles: str, round_: Round) -> None:
        self.replicas[0].crash_at.extend(round_.crash_at)
        async with asyncio.TaskGroup() as starting:
            for replica in self.replicas:
                starting.create_task(replica.start(roles))

    async def stop(self) -> None:
        async with asyncio.TaskGroup() as stopping:
            for replica in self.replicas:
                stopping.create_task(replica.stop())

    async def trouble(self, round_: Round) -> None:
        """Events come while things break, and until the first daemon has died where it should."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self.sender.emit(round_.events))
            both.create_task(
                break_things(
                    round_.faults,
                    sender=self.sender,
                    replicas=self.replicas,
                    cluster=self.cluster,
                    history=self.faults,
                )
            )
        first = self.replicas[0]
        for event in round_.encores:
            if not first.is_to_crash:
                break
            await self.sender.emit_next(event)
        if not await until(lambda: not first.is_to_crash, within=POINT):
            self.faults.write("point not met", at=first.armed)
            await first.disarm()

    async def rest(self, at_rest: "Callable[[], object]", when: str) -> None:
        """Everybody is up, everything is acknowledged, and nothing is left to do."""
        up = await until(lambda: all(one.address for one in self.replicas), within=QUIET)
        told = await until(lambda: not self.sender.deliveries, within=QUIET)
        deadline, quiet = time.monotonic() + QUIET, False
        while up and told and not quiet and time.monotonic() < deadline:
            quiet = bool(await at_rest())  # type: ignore[misc]
            await asyncio.sleep(0 if quiet else LOOK_EVERY)
        if not quiet:
            said = f"no rest with {when}: all up {up}, all acknowledged {told}"
            self.faults.write("restless", said=said)

    async def is_drained(self) -> bool:
        return await self.value(DUE) == 0

    async def has_converged(self) -> bool:
        """Whether the sender's final states are ours, and nothing waits to be read or called."""
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            cursor = await connection.execute(OUR_ORDERS)
            ours = {key: (version, state) for key, version, state in await cursor.fetchall()}
        alike = all(
            order in ours
            and ours[order][0] == theirs["version"]
            and all(theirs.get(name) == value for name, value in ours[order][1].items())
            for order, theirs in self.sender.orders.items()
        )
        return alike and await self.value(ASKED) == 0 and await self.is_drained()

    async def value(self, statement: str) -> int:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            cursor = await connection.execute(statement.encode())
            row = await cursor.fetchone()
        assert row is not None
        return int(row[0])

    async def judged(self, name: str, *, reconciled: bool) -> list[Violation]:
        """Keep the database's testimony beside the histories, and judge."""
        self.last_rows = await rows(self.url)
        (self.directory / f"rows-{name}.json").write_text(json.dumps(self.last_rows, indent=1))
        sender, destination, faults = self.histories()
        return judge(sender, destination, faults, self.last_rows, reconciled=reconciled)

    def histories(self) -> tuple[Iterable[Line], Iterable[Line], Iterable[Line]]:
        sender, destination, faults = (
            list(history.read(self.directory / f"{name}.jsonl"))
            for name in ("sender", "destination", "faults")
        )
        return sender, destination, faults
