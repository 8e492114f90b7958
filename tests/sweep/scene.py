"""The parts of a daemon in one process, between a pretend sender, a destination and a database."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import relay
from outbox.backoff import Backoff
from reconciler.database import engine_for
from reconciler.ledger.commit import commit
from reconciler.operations.assembly import Assembly, assemble
from reconciler.operations.opening import give_birthdays
from reconciler.proving.misbehaving_http import Answer, Request
from reconciler.receiver.envelope import read_delivery
from tests.kills.judge import CURSES
from tests.sweep.sabotage import How, Sabotage
from tests.world import World, a_world, eventually, order_event

POLICY = relay.Policy(
    poll=timedelta(milliseconds=20),
    lease=timedelta(seconds=10),
    backoff=Backoff(base=timedelta(milliseconds=1), cap=timedelta(milliseconds=2)),
)
TABLES = {
    "processed_events": "event_id, event_type, kind, key, version, outcome",
    "resources": "kind, key, version, revision, state::text, deleted, origin",
    "outbox": "event_id, effect, part, kind, key, idempotency_key, body, state, call_open",
    "effect_keys": "destination, idempotency_key",
    "corrections": "kind, key, drift, old_version, new_version, event_id",
    "quarantine": "event_id, fault, state",
    "fetch_requests": "kind, key",
    "scans": "kind, mode, watermark, checkpoint::text, owner is null",
    "actions": "actor, action",
    "baselines": "kind, completed_at is not null",
}
MOST_CALLS = 4  #: of one key: a failure costs one more, not more than that
OWN_ID = re.compile(r"read:(\w+):(\w+):(\w+):\d+")


@dataclass(kw_only=True)
class Scene:
    """What scenarios act on."""

    world: World
    engine: AsyncEngine
    assembly: Assembly
    sabotage: Sabotage
    events: list[dict[str, Any]] = field(default_factory=list)
    """What the sender has to deliver: the same bytes each time."""

    async def take(self, *events: dict[str, Any]) -> list[str]:
        """Commit *events* as one delivery would; their outcomes."""
        contract = self.assembly.contracts["shop"]
        read = [
            event
            for one in events
            for event in read_delivery(contract, json.dumps(one).encode(), {}).events
        ]
        results = await commit(self.engine, self.assembly.rules, read)  # type: ignore[arg-type]
        return [str(result.outcome) for result in results]

    async def call(self) -> int:
        """Let a relay make the calls that are due."""
        return await relay.run_once(self.engine, self.assembly.destinations, POLICY)

    async def state(self) -> dict[str, Any]:
        """All that is held, but for what differs from run to run: times and ids of our own."""
        found: dict[str, Any] = {}
        stamps = [str(order["updated_at"]) for order in self.world.sender.orders.values()]
        newest = max(stamps, default="never")

        def told(row: dict[str, Any]) -> str:
            timeless = str(tuple(row.values())).replace(newest, "the newest")
            return OWN_ID.sub(r"read:\1:\2:\3", timeless)

        for table, columns in TABLES.items():
            rows = await self.world.rows(f"select {columns} from reconciler.{table}")  # noqa: S608
            found[table] = sorted(told(row) for row in rows)
        for table in ("orders", "refunds"):
            rows = await self.world.rows(f"select * from {table}")  # noqa: S608
            found[table] = sorted(str(tuple(row.values())) for row in rows)
        found["performed"] = self.world.destination.effects
        found["keys"] = sorted(set(self.world.destination.keys))
        return found

    async def bounded(self) -> None:
        """No connection is left in use or in a transaction, and no entry was tried for ever."""

        async def idle() -> bool:
            left = await self.world.rows(
                "select 1 from pg_stat_activity where datname = current_database()"
                " and application_name = 'reconciler' and state <> 'idle'"
            )
            return not left and self.engine.pool.checkedout() == 0  # type: ignore[attr-defined]

        await eventually(idle, within=10)
        calls = Counter(self.world.destination.keys)
        assert max(calls.values(), default=0) <= MOST_CALLS, calls

    async def clear(self) -> None:
        """As if nothing had ever been."""
        ours = await self.world.rows(
            "select tablename from pg_tables where schemaname = 'reconciler'"
            " and tablename <> 'alembic_version'"
        )
        names = [f"reconciler.{row['tablename']}" for row in ours] + ["orders", "refunds"]
        await self.world.rows(f"truncate {', '.join(names)}")
        await self.world.rows("alter table orders drop constraint if exists no_curses")
        await self.world.rows(CURSES)
        self.world.destination.troubles.clear()
        self.world.sender.orders.clear()
        for kept in (self.world.destination.calls, self.world.destination.performed):
            kept.clear()
        await give_birthdays(self.engine, self.assembly.kinds)

    async def orders(self, count: int, **facts: Any) -> list[dict[str, Any]]:
        """So many orders at the sender, an hour old, and the webhooks that would tell of them."""
        return [
            order_event(f"evt_{n}", self.world.sender.sets(f"ord_{n}", age=3600, **facts))
            for n in range(count)
        ]

    async def free(self) -> None:
        """Leases of whoever died are over, and what waited is due."""
        await self.world.time_passes()
        await self.world.rows(
            "update reconciler.scans set lease_until = null, owner = null, due_at = now()"
        )
        await self.world.rows("update reconciler.fetch_requests set due_at = now()")


def lossy(
    sabotage: Sabotage, perform: Callable[[Request], Awaitable[Answer]]
) -> Callable[[Request], Awaitable[Answer]]:
    """A server whose requests are calls that may go wrong."""

    async def answer(request: Request) -> Answer:
        met = sabotage.meets(request)
        if met is not None and met.lost:
            return met
        performed = await perform(request)
        return performed if met is None else Answer(lost=True)

    return answer


@asynccontextmanager
async def a_scene(directory: Path, url: str) -> AsyncIterator[Scene]:
    sabotage = Sabotage(how=How.BEFORE)
    async with a_world(directory, url, around=lambda perform: lossy(sabotage, perform)) as world:
        engine = engine_for(url, pool_size=4)
        assembly = assemble(world.config, environ=world.environment)
        try:
            with sabotage.of_the_database():
                yield Scene(world=world, engine=engine, assembly=assembly, sabotage=sabotage)
        finally:
            await assembly.aclose()
            await engine.dispose()
