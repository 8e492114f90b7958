"""The mechanics of the outbox's stories: entries, a relay, a destination, and time by SQL."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import relay
from outbox.backoff import Backoff
from outbox.destinations import Channel, Destination
from outbox.destinations.http import HttpDestination
from outbox.egress import Egress, read_networks
from outbox.enqueue import enqueue
from outbox.entry import Enqueued, NewEntry
from outbox.flow_tables import destination_flow
from outbox.store import outbox, outbox_attempts
from outbox.verdict import AnswerRules
from tests.outbox.pretend import Pretend

#: pretend destinations live on loopback, which nobody may reach unless that is said
HERE = Egress(allowed=read_networks(["127.0.0.0/8", "::1/128"]))
RULES = AnswerRules(
    conflict="in_progress", not_done=frozenset(), retry_after_max=timedelta(hours=1)
)
POLICY = relay.Policy(
    poll=timedelta(milliseconds=20),
    lease=timedelta(seconds=60),
    backoff=Backoff(base=timedelta(minutes=10), cap=timedelta(hours=1)),
)


def an_entry(number: int = 1, **changes: Any) -> NewEntry:
    fields: dict[str, Any] = {
        "sender": "shop",
        "event_id": f"evt_{number}",
        "effect": "capture",
        "destination": "payments",
        "idempotency_key": f"key_{number}",
        "method": "POST",
        "path": "/v1/charges",
        "headers": {"Content-Type": "application/json"},
        "body": b'{"amount": 1}',
        **changes,
    }
    return NewEntry(**fields)


@dataclass(slots=True, kw_only=True)
class World:
    """One database, a destination called `payments`, and relays to be started."""

    engine: AsyncEngine
    pretend: Pretend
    policy: relay.Policy = POLICY
    destination: Destination = field(init=False)
    others: dict[str, Destination] = field(default_factory=dict)
    channels: list[Channel] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.destination = Destination(
            channel=self.channel(),
            rules=RULES,
            concurrency=8,
            timeout=timedelta(seconds=5),
            max_attempts=12,
            key_ttl=timedelta(hours=24),
            key_margin=None,
            after_dead="continue",
        )

    def channel(self, url: str | None = None, **changes: Any) -> HttpDestination:
        channel = HttpDestination(
            base_url=url or self.pretend.url,
            key_header="Idempotency-Key",
            concurrency=8,
            **{"egress": HERE, **changes},
        )
        self.channels.append(channel)
        return channel

    def set(self, **changes: Any) -> None:
        self.destination = replace(self.destination, **changes)

    @property
    def destinations(self) -> dict[str, Destination]:
        return {"payments": self.destination, **self.others}

    async def enqueue(self, *entries: NewEntry, **how: Any) -> list[Enqueued]:
        async with self.engine.begin() as connection:
            return await enqueue(connection, entries, **how)

    async def relay_once(self, **edges: Any) -> int:
        return await relay.run_once(self.engine, self.destinations, self.policy, **edges)

    @contextlib.asynccontextmanager
    async def running(self, **edges: Any) -> AsyncIterator["Running"]:
        """A relay at work for as long as the block runs; its end is an orderly stop."""
        started = Running()
        async with asyncio.TaskGroup() as group:
            started.task = group.create_task(
                relay.run(
                    self.engine,
                    self.destinations,
                    self.policy,
                    hint=started.hint,
                    stop=started.stop,
                    progress=started.turn,
                    **edges,
                )
            )
            try:
                yield started
            finally:
                started.stop.set()

    async def entries(self) -> list[Any]:
        async with self.engine.connect() as connection:
            rows = await connection.execute(
                select(outbox).order_by(outbox.c.event_id, outbox.c.effect, outbox.c.part)
            )
            return list(rows.all())

    async def entry(self) -> Any:
        (one,) = await self.entries()
        return one

    async def states(self) -> list[str]:
        return [row.state for row in await self.entries()]

    async def attempts(self) -> list[Any]:
        async with self.engine.connect() as connection:
            rows = await connection.execute(
                select(outbox_attempts).order_by(
                    outbox_attempts.c.entry_id, outbox_attempts.c.attempt
                )
            )
            return list(rows.all())

    async def time_passes(self, duration: timedelta) -> None:
        """Everything that the database's clock is held against moves into the past."""
        async with self.engine.begin() as connection:
            await connection.execute(
                update(outbox).values(
                    due_at=outbox.c.due_at - duration,
                    first_attempt_at=outbox.c.first_attempt_at - duration,
                    created_at=outbox.c.created_at - duration,
                )
            )
            flow = destination_flow.c
            moments = (flow.filled_at, flow.slowed_until, flow.opened_at, flow.probe_at)
            await connection.execute(
                update(destination_flow).values({one: one - duration for one in moments})
            )

    async def waits(self) -> list[float | None]:
        """Seconds until each entry is due."""
        async with self.engine.connect() as connection:
            rows = await connection.scalars(
                select(func.extract("epoch", outbox.c.due_at - func.clock_timestamp())).order_by(
                    outbox.c.event_id
                )
            )
            return [None if value is None else float(value) for value in rows]

    async def until(self, condition: Callable[[], Any]) -> None:
        await until(condition)


@dataclass(slots=True)
class Running:
    hint: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    turns: int = 0
    task: asyncio.Task[None] | None = None

    def turn(self) -> None:
        self.turns += 1


async def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Wait for *condition*, which may be a coroutine function."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.005)


class Crash(BaseException):
    """The process is gone: nothing after the point happens."""


def crash_at(name: str) -> Callable[[str], None]:
    def point(reached: str) -> None:
        if reached == name:
            raise Crash

    return point


async def run_sql(engine: AsyncEngine, statement: str) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(statement))
