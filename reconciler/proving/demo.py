"""The demo: a lossy sender, the real daemon, a forgetful destination, and their two histories."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
from psycopg.rows import dict_row

from reconciler import embedded
from reconciler.errors import ReconcilerError
from reconciler.proving import demo_world, history
from reconciler.proving.judge import Verdict, differences, judge, unlike_once

DEADLINE = 75.0  #: seconds until a world that does not converge is judged as it stands
LOOK_EVERY = 0.2  #: seconds
QUIET = 1.5  #: seconds in which nothing more may happen after everything has
IN_BASELINE = "select 1 from reconciler.baselines where completed_at is null"
OUR_ORDERS = """
select key, version, state from reconciler.resources where sender = 'shop' and not deleted
"""
BOOKED = "select source_event, count(*) as times from public.refunds group by source_event"
MUST_OCCUR = ("duplicate", "stale", "late", "corrected")

Say = Callable[[str], None]


async def run(*, seed: int, events: int, directory: Path, say: Say) -> dict[str, Any]:
    """
    Run one seeded demo in *directory* and return what it came to.

    Every figure but the `reconciler` block comes from the two histories that the pretend
    worlds write; the sender's final states are held against our `resources`.
    """
    began = time.monotonic()
    sender_history, destination_history = (
        directory / "sender.jsonl",
        directory / "destination.jsonl",
    )
    async with AsyncExitStack() as running:
        say("starting a pretend sender, a pretend destination and the daemon")
        destination, sender = await worlds(running, seed=seed, events=events, directory=directory)
        config = demo_world.write_configuration(
            directory, sender=sender[1], destination=destination
        )
        log = directory / "reconciler.log"
        await demo_world.make_tables(directory, config, log=log)
        daemon = await running.enter_async_context(
            demo_world.process("reconciler", "serve", "--config", str(config), log=log)
        )
        ready = await demo_world.ready_line(daemon, log=log)
        database = embedded.join(directory / "state")
        assert database is not None, "the daemon runs its private PostgreSQL"
        await baseline_is_over(database)
        say(f"the sender emits {events} events to {ready['webhooks']}")
        sender[0].stdin.write(f"{ready['webhooks']}/webhooks/shop\n".encode())
        await sender[0].stdin.drain()
        await converged(sender_history, destination_history, database=database, say=say)
        counts = await our_counts(database, metrics=f"{ready['admin']}/metrics")
        verdict = judge(history.read(sender_history), history.read(destination_history))
        differing = await worlds_differ(verdict, database=database)
    return report(
        verdict, seed=seed, events=events, counts=counts, differing=differing, began=began
    )


async def worlds(
    running: AsyncExitStack, *, seed: int, events: int, directory: Path
) -> tuple[str, tuple[Any, str]]:
    """Start both pretend worlds: the destination's address, and the sender with its address."""
    words = ("--seed", str(seed), "--history")
    log = directory / "worlds.log"
    destination = await running.enter_async_context(
        demo_world.process(
            "reconciler.proving.pretend_destination",
            *words,
            str(directory / "destination.jsonl"),
            log=log,
        )
    )
    sender = await running.enter_async_context(
        demo_world.process(
            "reconciler.proving.pretend_sender",
            *words,
            str(directory / "sender.jsonl"),
            "--events",
            str(events),
            log=log,
            stdin=asyncio.subprocess.PIPE,
        )
    )
    return (
        await demo_world.first_line(destination, log=log),
        (sender, await demo_world.first_line(sender, log=log)),
    )


async def baseline_is_over(database: str) -> None:
    """Wait for the first full scan of every kind: before it, what we see is history."""
    for _ in range(int(DEADLINE / LOOK_EVERY)):
        if not await query(database, IN_BASELINE):
            return
        await asyncio.sleep(LOOK_EVERY)
    raise ReconcilerError("the baseline did not complete")


async def converged(
    sender_history: Path, destination_history: Path, *, database: str, say: Say
) -> None:
    """
    Wait until both worlds agree and nothing more happens, or until the deadline.

    Does not judge: what is still missing or doubled then is seen by the verdict.
    """
    deadline, quiet_since, last, told = time.monotonic() + DEADLINE, None, None, 0.0
    while time.monotonic() < deadline:
        verdict = judge(history.read(sender_history), history.read(destination_history))
        missing = differences(verdict.orders, await our_orders(database))
        missing += verdict.refunds - (await booked(database)).keys()
        now = time.monotonic()
        if now - told > 2:
            told = now
            say(
                f"{verdict.deliveries} deliveries, {verdict.effects} effects, "
                f"{len(verdict.lost_effects)} still to come"
            )
        if verdict.finished and not missing and not verdict.lost_effects:
            if quiet_since is None or (verdict.deliveries, verdict.calls) != last:
                quiet_since, last = now, (verdict.deliveries, verdict.calls)
            if now - quiet_since > QUIET:
                return
        await asyncio.sleep(0.25)


async def worlds_differ(verdict: Verdict, *, database: str) -> list[str]:
    """Where the sender's final states, and its refunds, are not what is held and booked here."""
    return [
        *differences(verdict.orders, await our_orders(database)),
        *unlike_once(verdict.refunds, await booked(database)),
        *(f"{event_id}: a delivery was refused" for event_id in verdict.refused),
        *(f"{key}: a key that another path would not have used" for key in verdict.strange_keys),
    ]


async def booked(database: str) -> Mapping[str, int]:
    """How often each refund stands in the user's own table."""
    return {row["source_event"]: row["times"] for row in await query(database, BOOKED)}


async def our_orders(database: str) -> Mapping[str, Any]:
    rows = await query(database, OUR_ORDERS)
    return {row["key"]: row for row in rows}


async def our_counts(database: str, *, metrics: str) -> dict[str, int]:
    """The `reconciler` block: what the product says of itself."""
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(metrics)).text
    counts = {
        outcome: counter(text, "reconciler_events_total", f'outcome="{outcome}"')
        for outcome in ("applied", "duplicate", "stale", "late")
    }
    corrected = await query(database, "select count(*) as n from reconciler.corrections")
    asked = await query(database, "select count(*) as n from reconciler.outbox")
    return {**counts, "corrected": corrected[0]["n"], "effects_asked": asked[0]["n"]}


def counter(text: str, family: str, label: str) -> int:
    """The sum of one family's samples that carry *label*, from Prometheus' text format."""
    return int(
        sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith(family + "{") and label in line
        )
    )


async def query(database: str, statement: str) -> list[dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(database, row_factory=dict_row) as connection:
        return await (await connection.execute(statement)).fetchall()


def report(  # noqa: PLR0913 - the parts of one document
    verdict: Verdict,
    *,
    seed: int,
    events: int,
    counts: Mapping[str, int],
    differing: list[str],
    began: float,
) -> dict[str, Any]:
    """The demo's document; `passed` is false when the worlds differ or trouble did not occur."""
    missing = [name for name in MUST_OCCUR if not counts[name]]
    missing += [] if verdict.retried_calls else ["retried call"]
    good = not (verdict.lost_effects or verdict.doubled_effects or differing or missing)
    return {
        "seed": seed,
        "events": events,
        "sender": {
            "deliveries": verdict.deliveries,
            "lost": verdict.lost,
            "repeated": verdict.repeated,
            "late": verdict.late,
            "out_of_order": verdict.out_of_order,
        },
        "reconciler": dict(counts),
        "destination": {
            "calls": verdict.calls,
            "retried_calls": verdict.retried_calls,
            "effects": verdict.effects,
        },
        "lost_effects": len(verdict.lost_effects),
        "doubled_effects": len(verdict.doubled_effects),
        "differences": differing,
        "did_not_occur": missing,
        "passed": good and verdict.finished,
        "seconds": round(time.monotonic() - began, 1),
    }
