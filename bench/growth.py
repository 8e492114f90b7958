"""
How fast events are taken in, and entries leased and marked, in a database that has grown.

    python -m bench.growth                          5 million claims, 1 million delivered entries
    python -m bench.growth --claims 100000 --entries 20000

Two databases of one server, one of them grown, in turn; what counts is the ratio of the medians.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path

import psycopg
import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from bench.receiver import CONFIGURATION
from bench.relay.places import fresh, server
from outbox.entry import State, Verdict
from outbox.leasing import Leased, Wanted, lease
from outbox.settling import Mark, settle
from reconciler import migrate
from reconciler.database import engine_for
from reconciler.ledger.commit import commit
from reconciler.ledger.event import Event, Observation, Origin
from reconciler.ledger.rules import Rules
from reconciler.operations.assembly import assemble

BATCH = 100  # events a commit
SLOTS = 32  # entries a lease
GOAL = 0.8
LEASE = timedelta(minutes=1)

# Ids are the sender's: in no order, and as long as they are in practice.
CLAIMS = """
insert into reconciler.processed_events (sender, event_id, event_type, kind, key, version, outcome,
    body_digest, processed_at)
  select 'shop', 'evt_' || md5(n::text), 'order.paid', 'order', 'ord_' || md5((n / 5)::text),
      n %% 5, 'applied', md5(n::text), now() - n * interval '1 second'
    from generate_series(%(first)s::int, %(last)s::int) n;
insert into reconciler.resources (sender, kind, key, version, state, origin, updated_at)
  select 'shop', 'order', 'ord_' || md5(n::text), 4, '{"status": "paid", "amount": 1250}',
      'webhook', now()
    from generate_series(%(first)s::int / 5, %(last)s::int / 5) n on conflict do nothing
"""
DELIVERED = """
insert into reconciler.outbox (id, sender, event_id, effect, kind, key, revision, destination,
    idempotency_key, method, path, headers, body, state, attempts, first_attempt_at, completed_at)
  select md5(n::text)::uuid, 'shop', 'evt_' || md5(n::text), 'capture', 'order',
      'ord_' || md5((n / 5)::text), n %% 5, 'payments', 'key_' || n, 'POST', '/v1/charges', '{}',
      decode(repeat('78', 250), 'hex'), 'delivered', 1, now(), now()
    from generate_series(%(first)s::int, %(last)s::int) n;
insert into reconciler.outbox_attempts (entry_id, attempt, started_at, finished_at, verdict, status)
  select md5(n::text)::uuid, 1, now(), now(), 'delivered', 200
    from generate_series(%(first)s::int, %(last)s::int) n;
insert into reconciler.effect_keys (destination, idempotency_key, effect, entry_id, sender)
  select 'payments', 'key_' || n, 'capture', md5(n::text)::uuid, 'shop'
    from generate_series(%(first)s::int, %(last)s::int) n
"""
TABLES = ("processed_events", "resources", "outbox", "outbox_attempts", "effect_keys")
PIECE = 100_000  # rows a statement


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--claims", type=int, default=5_000_000)
    parser.add_argument("--entries", type=int, default=1_000_000, help="delivered ones")
    parser.add_argument("--events", type=int, default=5_000, help="taken in, and called, in a run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--url", help="a PostgreSQL where databases may be made; else a new one")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with server(asked.url) as cluster, ExitStack() as databases:
        empty, grown = (databases.enter_context(fresh(cluster)) for _ in range(2))
        for url in (empty, grown):
            asyncio.run(migrate.upgrade(url))
        tell(f"{asked.claims:,} claims and {asked.entries:,} delivered entries are being written")
        grow(grown, claims=asked.claims, entries=asked.entries)
        asyncio.run(compare(empty, grown, rounds=asked.rounds, events=asked.events))


def grow(url: str, *, claims: int, entries: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statements, rows in ((CLAIMS, claims), (DELIVERED, entries)):
            for first in range(1, rows + 1, PIECE):
                piece = {"first": first, "last": min(rows, first + PIECE - 1)}
                for statement in statements.split(";"):
                    connection.execute(statement, piece)
        for table in TABLES:
            connection.execute(f"vacuum analyze reconciler.{table}")
        connection.execute("checkpoint")


async def compare(empty: str, grown: str, *, rounds: int, events: int) -> None:
    runs: dict[str, list[Run]] = {"empty": [], "grown": []}
    numbers = count(1)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "reconciler.toml"
        file.write_text(CONFIGURATION)
        rules = assemble(file).rules
    async with opened(empty) as one, opened(grown) as other:
        engines = {"empty": one, "grown": other}
        for engine in engines.values():  # not counted: everything is loaded and compiled here
            await measured(engine, rules, numbers, events=BATCH)
        for _ in range(rounds):
            for name, engine in engines.items():
                runs[name].append(await measured(engine, rules, numbers, events=events))
                tell(f"{name:>6} {runs[name][-1]}")
    tell(f"medians of {rounds}")
    for what in ("taken_in", "called"):
        here, there = (
            statistics.median(getattr(run, what) for run in runs[name])
            for name in ("grown", "empty")
        )
        ratio, goal = here / there, f"the goal is {GOAL:g}"
        tell(f"  {what}: {here:.0f}/s grown, {there:.0f}/s empty: {ratio:.2f}, {goal}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run came to, a second."""

    taken_in: float  #: events, each with its claim, state and entry
    called: float  #: entries, each leased and marked as delivered

    def __str__(self) -> str:
        return f"{self.taken_in:7.0f} events/s taken in, {self.called:7.0f} entries/s called"


async def measured(
    engine: AsyncEngine, rules: Rules, numbers: Iterator[int], *, events: int
) -> Run:
    """Take *events* new events in, and call all that follows from them but for the network."""
    begun = time.perf_counter()
    for _ in range(0, events, BATCH):
        await commit(engine, rules, [event(next(numbers)) for _ in range(BATCH)])
    taken_in = time.perf_counter() - begun
    begun, called = time.perf_counter(), 0
    while leased := await leased_some(engine):
        async with engine.begin() as connection:
            await settle(connection, [delivered(one) for one in leased])
        called += len(leased)
    return Run(taken_in=events / taken_in, called=called / (time.perf_counter() - begun))


async def leased_some(engine: AsyncEngine) -> list[Leased]:
    wanted = Wanted(
        destination="payments",
        free=SLOTS,
        lease=LEASE,
        hold_after_dead=False,
        max_attempts=12,
        key_life=timedelta(hours=23),
        concurrency=SLOTS,
    )
    async with engine.begin() as connection:
        leased, *_ = await lease(connection, [wanted])
    return leased


def delivered(one: Leased) -> Mark:
    return Mark(
        id=one.id,
        attempt=one.attempt,
        started_at=one.leased_at,
        state=State.DELIVERED,
        wait=timedelta(0),
        maybe_sent=True,
        refusals=0,
        verdict=Verdict.DELIVERED,
        status=200,
        error=None,
        ordered=one.ordered,
    )


def event(number: int) -> Event:
    state = {"status": "paid", "amount": 1250, "currency": "EUR"}
    return Event(
        sender="shop",
        event_id=f"new_{number * 7919 % 1_000_003}_{number}",
        type="order.paid",
        origin=Origin.WEBHOOK,
        body={"data": state},
        raw=b"x" * 400,
        observation=Observation(kind="order", key=f"new_{number}", version=1, state=state),
    )


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[AsyncEngine]:
    engine = engine_for(url)
    try:
        yield engine
    finally:
        await engine.dispose()


def tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
