"""
A day in small: a steady load with trouble, short retention, and figures that must stay flat.

    python -m tests.soak --minutes 30 --rate 50 --faults 0.01
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tests.soak import judging
from tests.soak.sampling import Sample, look, share_of
from tests.soak.trouble import EVERY
from tests.soak.world import World, a_world
from tests.world import eventually

SAMPLE_EVERY = 5.0  #: seconds
DRAIN = 90.0  #: seconds in which everything must have come to its effect after the last event
KEPT_RATE = 0.95  #: of the events that were asked for must have happened
WRONG = (
    *("lost", "doubled", "unexpected", "refused"),
    *("not_booked", "booked_twice", "given_up", "too_few"),
)
LOST_AT_MOST = 20  #: names of what is wrong that are shown


@click.command()
@click.option("--minutes", type=float, default=30.0, show_default=True)
@click.option("--rate", type=float, default=50.0, show_default=True, help="Events a second.")
@click.option("--faults", type=float, default=0.01, show_default=True, help="Share of trouble.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--database", help="An empty database on a given server; else a private one.")
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True)
def main(
    *,
    minutes: float,
    rate: float,
    faults: float,
    seed: int,
    database: str | None,
    directory: Path | None,
    as_json: bool,
) -> None:
    """
    Run the daemon under load for so long; exit 0 if nothing was lost or doubled and memory,
    descriptors, threads, tables and backlog stayed flat, else 1.
    """
    with tempfile.TemporaryDirectory(prefix="reconciler-soak-") as fresh:
        place = directory or Path(fresh)
        place.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(
            soak(place, minutes=minutes, rate=rate, faults=faults, seed=seed, url=database)
        )
    click.echo(json.dumps(found) if as_json else "\n".join(shown(found)))
    sys.exit(0 if found["passed"] else 1)


async def soak(
    directory: Path, *, minutes: float, rate: float, faults: float, seed: int, url: str | None
) -> dict[str, Any]:
    """Run one soak; what it came to."""
    samples: list[Sample] = []
    latencies: list[float] = []
    async with a_world(directory, seed=seed, faults=faults, url=url) as world:
        sampling = asyncio.create_task(sample(world, samples, latencies, directory))
        killing = asyncio.create_task(world.kill_connections())
        await world.shop.live(target=world.target, rate=rate, seconds=minutes * 60)
        killing.cancel()
        sampling.cancel()
        await asyncio.wait([killing, sampling])
        for task in (killing, sampling):
            if not task.cancelled() and (error := task.exception()):
                raise error
        wrong = await drained(world)
    if world.shop.events < KEPT_RATE * rate * minutes * 60:
        wrong["too_few"] = [f"{world.shop.events} events in {minutes} minutes"]
    findings = judging.judge(samples)
    missing = sorted(EVERY - world.trouble.met.keys()) if faults else []
    return {
        "minutes": minutes,
        "rate": rate,
        "faults": faults,
        "seed": seed,
        "events": world.shop.events,
        "deliveries": world.shop.deliveries,
        "calls": world.destination.calls,
        "effects": len(world.destination.effects),
        "p50_ms": round(share_of(latencies, 0.5) * 1000, 1),
        "p99_ms": round(share_of(latencies, 0.99) * 1000, 1),
        "slowest_ms": round(max(latencies, default=0.0) * 1000, 1),
        "server_memory_mib": [
            round(one.server_memory / judging.MIB, 1)
            for one in (samples[len(samples) // 3], samples[-1])
        ],
        "trouble": dict(sorted(world.trouble.met.items())),
        "did_not_occur": missing,
        **wrong,
        "findings": [asdict(finding) for finding in findings],
        "passed": all(finding.flat for finding in findings)
        and not (missing or any(wrong.values())),
    }


async def sample(
    world: World, samples: list[Sample], latencies: list[float], directory: Path
) -> None:
    """Look every few seconds; each look is kept in a file too, for whoever wants to draw it."""
    began = time.monotonic()
    async with await world.connect() as connection:
        with (directory / "samples.jsonl").open("a", encoding="utf-8") as file:
            while True:
                await asyncio.sleep(SAMPLE_EVERY - (time.monotonic() - began) % SAMPLE_EVERY)
                recent = world.shop.take_latencies()
                latencies += recent
                one = await look(
                    connection,
                    daemon=world.daemon.pid,
                    at=time.monotonic() - began,
                    latencies=recent,
                )
                samples.append(one)
                file.write(json.dumps(asdict(one)) + "\n")
                file.flush()


async def drained(world: World) -> dict[str, list[str]]:
    """Wait for what still has to come; what is lost, doubled, refused or given up then."""
    effects = world.destination.effects

    async def all_there() -> bool:
        return not world.shop.expected - effects.keys()

    with suppress(AssertionError):
        await eventually(all_there, within=DRAIN)
    booked = {
        row["source_event"]: row["times"]
        for row in await world.query(
            "select source_event, count(*) as times from public.refunds group by 1"
        )
    }
    given_up = await world.query(
        "select effect, key, last_error from reconciler.outbox where state in ('dead', 'uncertain')"
    )
    return {
        "lost": first(world.shop.expected - effects.keys()),
        "doubled": first(name for name, times in effects.items() if times > 1),
        "unexpected": first(effects.keys() - world.shop.expected),
        "refused": first(world.shop.refused),
        "not_booked": first(world.shop.refunds - booked.keys()),
        "booked_twice": first(name for name, times in booked.items() if times > 1),
        "given_up": first(str(row) for row in given_up),
        "too_few": [],
    }


def first(names: Any) -> list[str]:
    return sorted(names)[:LOST_AT_MOST]


def shown(found: dict[str, Any]) -> Sequence[str]:
    """What a person reads."""
    plain = ("minutes", "rate", "faults", "seed", "events", "deliveries", "calls", "effects")
    lines = [", ".join(f"{name} {found[name]}" for name in plain)]
    lines.append(
        f"a delivery took {found['p50_ms']} ms (p50), {found['p99_ms']} ms (p99),"
        f" {found['slowest_ms']} ms at most; PostgreSQL's memory {found['server_memory_mib']} MiB"
    )
    lines += [", ".join(f"{name} {times}" for name, times in found["trouble"].items()), ""]
    lines += ["| what | after the warm-up | at the end | flat | rule |", "|---|---|---|---|---|"]
    lines += [
        f"| {one['what']} | {one['before']} | {one['after']} | {'yes' if one['flat'] else 'NO'} |"
        f" {one['rule']} |"
        for one in found["findings"]
    ]
    lines += ["", *(f"{name}: {found[name] or 'none'}" for name in WRONG)]
    if found["did_not_occur"]:
        lines.append(f"did not occur: {found['did_not_occur']}: this run shows less than it should")
    lines.append("passed" if found["passed"] else "FAILED")
    return lines


if __name__ == "__main__":
    main()
