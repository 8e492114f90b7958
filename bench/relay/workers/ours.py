"""Ours: `reconciler serve --role relay`, and for the latency the relay with its hint."""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import structlog

from outbox import relay
from outbox.backoff import Backoff
from outbox.enqueue import enqueue
from outbox.entry import NewEntry
from reconciler import migrate
from reconciler.database import engine_for
from reconciler.operations.assembly import assemble

CONFIGURATION = """\
[database]
url = "{database}"

[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
state_directory = "{state}"

[destinations.bench]
base_url = "{destination}"
concurrency = {concurrency}
allow_private = ["127.0.0.0/8"]
"""


def entries(start: int, count: int) -> Sequence[NewEntry]:
    return [
        NewEntry(
            sender="bench",
            event_id=f"evt_{number}",
            effect="call",
            destination="bench",
            idempotency_key=f"key-{number}",
            method="POST",
            path="/v1/calls",
            headers={"Content-Type": "application/json"},
            body=json.dumps({"number": number, "amount": 1250, "note": "x" * 200}).encode(),
        )
        for number in range(start, start + count)
    ]


async def enqueued(start: int, count: int) -> None:
    engine = engine_for(os.environ["DATABASE_URL"])
    for first in range(start, start + count, 1000):
        async with engine.begin() as connection:
            await enqueue(connection, entries(first, min(1000, start + count - first)))
    await engine.dispose()


def configured() -> Path:
    place = Path(tempfile.mkdtemp(prefix="bench-relay-"))
    file = place / "reconciler.toml"
    file.write_text(
        CONFIGURATION.format(
            database=os.environ["DATABASE_URL"],
            state=place / "state",
            destination=os.environ["DESTINATION_URL"],
            concurrency=os.environ["CONCURRENCY"],
        )
    )
    return file


def work() -> None:
    words = [sys.executable, "-m", "reconciler", "serve", "--role", "relay"]
    os.execv(sys.executable, [*words, "--config", str(configured())])  # noqa: S606


async def trickled(count: int) -> None:
    """
    Ask for one call at a time, of a relay that has nothing else to do, and hint as the daemon
    does after each of its commits.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    assembly = assemble(configured())
    settings = assembly.loaded.settings.relay
    backoff = Backoff(base=settings.backoff_base, cap=settings.backoff_cap)
    policy = relay.Policy(poll=settings.poll, lease=settings.lease, backoff=backoff)
    engine = engine_for(os.environ["DATABASE_URL"])
    hint, stop = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(
            relay.run(
                engine,
                assembly.destinations,
                policy,
                hint=hint,
                stop=stop,
                progress=lambda: None,
            )
        )
        for number in range(count):
            await asyncio.sleep(0.05 + number % 7 / 100)
            async with engine.begin() as connection:
                await enqueue(connection, entries(number, 1))
            committed = time.time()
            hint.set()
            print(json.dumps({"key": f"key-{number}", "committed": committed}), flush=True)
        await asyncio.sleep(1)
        stop.set()
    await assembly.aclose()
    await engine.dispose()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["setup"]:
            asyncio.run(migrate.upgrade(os.environ["DATABASE_URL"]))
        case ["enqueue", start, count]:
            asyncio.run(enqueued(int(start), int(count)))
        case ["work"]:
            work()
        case ["trickle", count]:
            asyncio.run(trickled(int(count)))
