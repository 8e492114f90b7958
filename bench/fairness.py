"""
Whether a backlog that goes nowhere costs others anything: from commit to call, beside it and not.

    python -m bench.fairness                 every case, a million entries, medians of five rounds
    python -m bench.fairness dead --entries 100000 --rounds 3

    dead     all of it is for a destination that refuses connections; the calls go to another one
    effect   it is of an effect that is paused; the calls are another effect's, there
    lane     it waits for the first call of its resource; the calls are about others, there

Rounds alternate between an empty database and one with the backlog. Exit 1 where the p50 with the
backlog is more than a fifth over the p50 without it.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.request import urlopen

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from bench.relay.__main__ import destination, fresh, server, tell
from outbox import relay
from outbox.backoff import Backoff
from outbox.enqueue import enqueue
from outbox.entry import NewEntry
from outbox.pausing import pause
from reconciler import migrate
from reconciler.database import engine_for
from reconciler.operations.assembly import Assembly, assemble
from reconciler.transactions import taking_up_to

MOST = 1.2  #: times as long, beside the backlog
FILLED_WITHIN = timedelta(minutes=10)
SETTLING = 3.0  #: seconds until the relay has found out how things are
CASES = ("dead", "effect", "lane")

CONFIGURATION = """\
[database]
url = "{database}"

[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
state_directory = "{state}"

[destinations.bench]
base_url = "{destination}"
ordered = true
allow_private = ["127.0.0.0/8"]

[destinations.gone]
base_url = "http://127.0.0.1:1"
allow_private = ["127.0.0.0/8"]
"""

BACKLOG = """
insert into reconciler.outbox (id, sender, event_id, effect, part, repetition, kind, key, revision,
    ordered, destination, idempotency_key, method, path, headers, body, state, due_at)
select gen_random_uuid(), 'bench', 'old_' || n, :effect, '', 0, 'order', :key, n, :ordered,
    :destination, 'old_' || n, 'POST', '/v1/calls', '{}', '{}', 'pending',
    case when :ordered and n = 1 then now() + interval '1 day'
         else now() - interval '1 day' + n * interval '1 millisecond' end
  from generate_series(1, :entries) n
"""
WHAT = {
    "dead": {"destination": "gone", "effect": "call", "key": "a", "ordered": False},
    "effect": {"destination": "bench", "effect": "paused", "key": "a", "ordered": False},
    "lane": {"destination": "bench", "effect": "call", "key": "a", "ordered": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fairness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--entries", type=int, default=1_000_000, help="of the backlog")
    parser.add_argument("--calls", type=int, default=100, help="in each round")
    parser.add_argument("--rounds", type=int, default=5, help="how often they alternate")
    parser.add_argument("--url", help="a PostgreSQL, and a superuser of it; else a new one")
    parser.add_argument("--json", action="store_true", help="one document on standard output")
    asked = parser.parse_args()
    if unknown := set(asked.cases) - set(CASES):
        parser.error(f"no case is called {', '.join(sorted(unknown))}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    results = {}
    with server(asked.url) as cluster:
        for case in asked.cases or CASES:
            results[case] = asyncio.run(compared(cluster, case, asked))
    if asked.json:
        print(json.dumps(results))
    sys.exit(1 if any(one["ratio"] > MOST for one in results.values()) else 0)


async def compared(cluster: str, case: str, asked: argparse.Namespace) -> dict[str, float]:
    """The p50 of both, in milliseconds, and how many times the one is the other."""
    found: dict[str, list[float]] = {"without": [], "with": []}
    with fresh(cluster) as empty, fresh(cluster) as deep:
        databases = {"without": empty, "with": deep}
        for url in databases.values():
            await migrate.upgrade(url)
        began = time.monotonic()
        await filled(deep, case, entries=asked.entries)
        tell(f"{case}: {asked.entries} entries made in {time.monotonic() - began:.0f} s")
        async with destination() as there:
            for number in range(asked.rounds):
                for name, url in databases.items():
                    p50 = await measured(url, there, calls=asked.calls, number=number)
                    found[name].append(p50)
                    tell(f"{case:>10} {name:>8} the backlog: p50 {p50:.2f} ms")
    without, beside = (statistics.median(found[name]) for name in databases)
    ratio = beside / without
    tell(f"{case}: {without:.2f} ms without, {beside:.2f} ms with, {ratio:.2f} times")
    return {"without_ms": without, "with_ms": beside, "ratio": ratio}


async def filled(url: str, case: str, *, entries: int) -> None:
    """Make the backlog in one statement, and let the server see it as after any night."""
    engine = engine_for(url)
    try:
        async with engine.connect() as connection:
            plain = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await plain.execute(text("set statement_timeout = 0"))
            with taking_up_to(plain, FILLED_WITHIN):
                await plain.execute(text(BACKLOG), {**WHAT[case], "entries": entries})
                await plain.execute(text("vacuum analyze reconciler.outbox"))
                await plain.execute(text("checkpoint"))  # else it is written beside what we measure
            if case == "effect":
                await pause(plain, "bench", effect="paused", actor="bench", reason="to be measured")
    finally:
        await engine.dispose()


async def measured(url: str, there: str, *, calls: int, number: int) -> float:
    """The p50 from commit to call, of calls asked for one at a time; in milliseconds."""
    with configured(url, there) as file:
        assembly = assemble(file)
        engine = engine_for(url)
        try:
            async with working(engine, assembly) as hint:
                committed = await trickled(engine, hint, calls=calls, number=number)
        finally:
            await assembly.aclose()
            await engine.dispose()
    came = arrivals(there)
    return statistics.median((came[key] - at) * 1000 for key, at in committed.items())


def arrivals(there: str) -> dict[str, float]:
    """When each key came first; they are forgotten by that."""
    with urlopen(f"{there}/times", timeout=10) as answer:  # noqa: S310
        came = json.load(answer)
    with urlopen(f"{there}/forget", timeout=10):  # noqa: S310
        return dict(came)


@asynccontextmanager
async def working(engine: AsyncEngine, assembly: Assembly) -> AsyncIterator[asyncio.Event]:
    """A relay that has found out how things are; its hint."""
    settings = assembly.loaded.settings.relay
    hint, stop = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(
            relay.run(
                engine,
                assembly.destinations,
                relay.Policy(
                    poll=settings.poll,
                    lease=settings.lease,
                    backoff=Backoff(base=settings.backoff_base, cap=settings.backoff_cap),
                ),
                hint=hint,
                stop=stop,
                progress=lambda: None,
            )
        )
        await asyncio.sleep(SETTLING)
        yield hint
        await asyncio.sleep(1)
        stop.set()


async def trickled(
    engine: AsyncEngine, hint: asyncio.Event, *, calls: int, number: int
) -> dict[str, float]:
    """Ask for one call after the other; when each was committed, by its key."""
    committed = {}
    for each in range(calls):
        await asyncio.sleep(0.05 + each % 7 / 100)
        key = f"key-{number}-{each}"
        entry = NewEntry(
            sender="bench",
            event_id=key,
            effect="call",
            destination="bench",
            idempotency_key=key,
            method="POST",
            path="/v1/calls",
            headers={"Content-Type": "application/json"},
            body=b'{"amount": 1250}',
            kind="order",
            key=key,
            ordered=True,
            revision=1,
        )
        async with engine.begin() as connection:
            await enqueue(connection, [entry])
        committed[key] = time.time()
        hint.set()
    return committed


@contextmanager
def configured(url: str, there: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-fairness-") as place:
        file = Path(place) / "reconciler.toml"
        file.write_text(
            CONFIGURATION.format(database=url, state=Path(place) / "state", destination=there)
        )
        yield file


if __name__ == "__main__":
    main()
