"""Asking destinations what became of calls whose outcome is unknown, outside any transaction."""

import asyncio
import random as randomness
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import flow
from outbox.breaker import Seen
from outbox.destinations import Destination, Request
from outbox.entry import bounded
from outbox.flow import Changed, Permit
from outbox.look_leases import Unknown, put_off, take, wanted_of
from outbox.looking_up import Finding, Looked, LookUp, conclude
from outbox.marking import DATABASE_TROUBLE, told
from outbox.noting import Noting
from outbox.resolving import Said, settle_unknown
from outbox.resting import Follow
from outbox.telling import seen_in
from outbox.verdict import Answer, Failure, Reply, Sent

log = structlog.get_logger()

DOUBLINGS = 30
LONGEST_PAUSE = 5.0  # seconds, while the database is away


@dataclass(slots=True, kw_only=True)
class Looker:
    """Looks entries up for as long as it runs; two of them never look at one at the same time."""

    engine: AsyncEngine
    destinations: Mapping[str, Destination]
    lease: timedelta
    poll: timedelta
    may_call: Callable[[AsyncConnection], Awaitable[bool]]
    follow: Follow | None = None
    settled: Callable[[], None] = field(default=lambda: None)  #: told when an entry may go on
    noting: Noting = field(init=False)

    def __post_init__(self) -> None:
        self.noting = Noting(self.destinations, random=randomness.random)

    async def run(self, stop: asyncio.Event) -> None:
        """Look up what is due until *stop* is set, then end what is under way."""
        failures = 0
        while not stop.is_set():
            try:
                looked = await self.once()
                failures = 0
            except DATABASE_TROUBLE as error:
                if not failures:
                    log.warning("relay.look_ups_failed", error=told(error))
                failures, looked = failures + 1, 0
            if not looked:
                wait = self.poll.total_seconds() * 2.0 ** min(failures, DOUBLINGS)
                await pause(stop, min(wait, LONGEST_PAUSE) if failures else wait)

    async def once(self) -> int:
        """Look up what is due now; how many that was. Raises what the database raises."""
        wanted = {
            name: row
            for name, one in self.destinations.items()
            if (row := wanted_of(name, one, lease=self.lease)) is not None
        }
        if not wanted:
            return 0
        async with self.engine.begin() as connection:
            if not await self.may_call(connection):
                return 0
            taken = await self.take(connection, wanted)
        async with asyncio.TaskGroup() as looks:
            for one in taken:
                looks.create_task(self.look(one))
        return len(taken)

    async def take(
        self, connection: AsyncConnection, wanted: Mapping[str, Mapping[str, Any]]
    ) -> list[Unknown]:
        """Take what is due at destinations that may be called; it counts as calls do."""
        rates = {name: self.destinations[name].rate for name in wanted}
        asked = await flow.ask_to_look(connection, list(wanted.values()), rates)
        may = {one.destination: one for one in asked.permits}
        if not may:
            return []
        rows = [
            {**wanted[name], "free": free_of(wanted[name]["free"], one)}
            for name, one in sorted(may.items())
        ]
        taken = [
            replace(one, probe=may[one.destination].probe) for one in await take(connection, rows)
        ]
        called = Counter(one.destination for one in taken)
        await flow.take(connection, asked.permits, called, lease=self.lease)
        return taken

    async def look(self, one: Unknown) -> None:
        """Ask about one entry and write down what that came to."""
        destination = self.destinations[one.destination]
        asked = destination.look_up_of(one.effect)
        if asked is None:
            return
        made, result = await _ask(destination, asked, one)
        seen = seen_in(one, destination, result) if made else None
        looked = conclude(result, asked, looks=one.looks, since=one.since)
        try:
            async with self.engine.begin() as connection:
                await self.write(connection, one, looked, result)
                changes = await self.note(connection, one, seen)
        except DATABASE_TROUBLE as error:
            # Its lease runs out, and it is looked up again: nothing was decided but by a commit.
            log.warning("relay.look_up_lost", entry=str(one.id), error=told(error))
            return
        self.noting.tell(changes)
        log.info(
            "relay.looked_up",
            entry=str(one.id),
            destination=one.destination,
            effect=one.effect,
            look=one.looks,
            finding=looked.finding.value,
            reason=looked.reason,
        )
        if looked.finding is not Finding.UNDECIDED:
            self.settled()
        elif looked.wait is None:
            log.warning("relay.look_ups_used_up", entry=str(one.id), looks=one.looks)

    async def note(
        self, connection: AsyncConnection, one: Unknown, seen: Seen | None
    ) -> list[Changed]:
        """Write down what a look told of its destination; what was not asked told nothing."""
        if seen is None:
            probes = {one.destination} if one.probe else set()
            await flow.give_back(connection, {one.destination: 1}, probes=probes)
            return []
        if seen.trouble or seen.probe or seen.slowed is not None:
            return await self.noting.note_seen(connection, [seen])
        return []  # that it shows what it holds says little of whether it takes more

    async def write(
        self,
        connection: AsyncConnection,
        one: Unknown,
        looked: Looked,
        result: Answer | Reply | Failure,
    ) -> None:
        destination = self.destinations[one.destination]
        if looked.finding is Finding.UNDECIDED:
            await put_off(connection, one, looked)
            return
        delivered = looked.finding is Finding.FOUND
        said = Said(
            id=one.id,
            delivered=delivered,
            life=destination.key_life(lease=self.lease),
            reason=f"looked up: {looked.reason}, {'it is there' if delivered else 'not there'}",
            max_attempts=destination.max_attempts,
            looks=one.looks,
            attempts=one.attempts,
            answer=None if isinstance(result, Failure) else result,
        )
        settled = await settle_unknown(connection, [said])
        if not settled:
            log.info("relay.look_up_fenced", entry=str(one.id), look=one.looks)
        follow = self.follow
        rested = [
            each for each in settled if follow is not None and follow.wants(each.effect, each.state)
        ]
        if follow is not None and rested:
            await follow.follow(connection, rested)


def free_of(free: int, permit: Permit) -> int:
    return free if permit.most is None else min(free, permit.most)


async def _ask(
    destination: Destination, asked: LookUp, one: Unknown
) -> tuple[bool, Answer | Reply | Failure]:
    """Whether it was asked at all, and what came of it."""
    try:
        path = asked.path(one.names)
    except Exception as error:  # noqa: BLE001  # the user's template over an entry
        reason = bounded(f"the look-up cannot be made: {type(error).__name__}: {error}")
        return False, Failure(kind=Sent.NOT_SENT, reason=reason)
    request = Request(
        method="GET", path=path, headers=asked.headers, body=b"", idempotency_key=None,
        idempotent=True,
    )  # fmt: skip
    try:
        return True, await destination.channel.send(request, timeout=destination.timeout)
    except Exception as error:  # noqa: BLE001  # a channel that breaks must not take the others along
        reason = f"the channel broke: {type(error).__name__}"
        return True, Failure(kind=Sent.NOT_SENT, reason=reason)


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Sleep, but wake up at once when *event* is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
