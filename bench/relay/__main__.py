"""
Work off a backlog of calls to one fast local destination, beside the job queues one might use.

    python -m bench.relay                      all of them, 20,000 entries, 32 in flight
    python -m bench.relay --only ours pgqueuer --entries 5000 --rounds 1
    python -m bench.relay --idle               from commit to call, with nothing else to do

Runs alternate; what counts are the ratios within one run of this command. Needs node and npm for
two of the peers; all of them are fetched from their registries when they are not there yet.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg

from bench.relay import cpu
from bench.relay.peers import CONTENDERS, FROM_NPM, FROM_PYPI, PLACE, Contender, installed
from bench.relay.places import ROOT, destination, fresh, server

GOALS = {"procrastinate": 6.0, "graphile-worker": 2.0, "pg-boss": 1.5, "pgqueuer": 1.0}
LIMIT = 600.0  #: seconds for one run


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.relay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [one.name for one in CONTENDERS]
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=32, help="calls in flight")
    parser.add_argument("--rounds", type=int, default=3, help="how often they alternate")
    parser.add_argument("--only", nargs="+", choices=names, help="these contenders")
    parser.add_argument("--idle", action="store_true", help="measure from commit to call instead")
    parser.add_argument("--directory", type=Path, default=PLACE, help="where peers are installed")
    parser.add_argument("--url", help="a PostgreSQL where databases may be made; else a new one")
    parser.add_argument("--json", action="store_true", help="one document on standard output")
    asked = parser.parse_args()
    wanted = [one for one in CONTENDERS if not asked.only or one.name in asked.only]
    installed(asked.directory, wanted)
    with server(asked.url) as cluster:
        said(cluster, wanted, asked)
        results = asyncio.run(compared(cluster, wanted, asked))
    if asked.json:
        print(json.dumps(results))


def said(cluster: str, wanted: Sequence[Contender], asked: argparse.Namespace) -> None:
    """What is compared, in which versions and with which settings."""
    with psycopg.connect(cluster) as connection:
        version = connection.info.parameter_status("server_version")
        synchronous = connection.execute("show synchronous_commit").fetchone()
        fsync = connection.execute("show fsync").fetchone()
    assert synchronous is not None
    assert fsync is not None
    tell(
        f"PostgreSQL {version}, fsync {fsync[0]}, synchronous_commit {synchronous[0]};"
        f" Python {platform.python_version()}; {os.cpu_count()} processors,"
        f" load {os.getloadavg()[0]:.1f}"
    )
    tell(f"{', '.join((*FROM_PYPI, *FROM_NPM))}; concurrency {asked.concurrency}")
    for one in wanted:
        tell(f"  {one.name}: {one.settings}")


async def compared(
    cluster: str, wanted: Sequence[Contender], asked: argparse.Namespace
) -> dict[str, Any]:
    runs: dict[str, list[Run]] = {one.name: [] for one in wanted}
    postmaster = cpu.postmaster_of(cluster)
    async with destination() as url:
        for _ in range(asked.rounds):
            for one in wanted:
                with fresh(cluster) as database:
                    bench = Bench(
                        contender=one,
                        place=asked.directory,
                        database=database,
                        destination=url,
                        concurrency=asked.concurrency,
                        postmaster=postmaster,
                    )
                    if asked.idle:
                        run = await bench.idle(asked.entries if asked.entries < 1000 else 100)
                    else:
                        run = await bench.backlog(asked.entries)
                runs[one.name].append(run)
                tell(f"{one.name:>22} {run}")
    medians = {name: median(done) for name, done in runs.items()}
    tell(f"medians of {asked.rounds}")
    for name, run in medians.items():
        tell(f"{name:>22} {run}{beside(medians, name)}")
    return {
        name: {
            "rate": run.rate,
            "p50_ms": run.p50,
            "cpu_us": run.cpu,
            "server_cpu_us": run.server_cpu,
        }
        for name, run in medians.items()
    }


def beside(medians: dict[str, "Run"], name: str) -> str:
    """How many times as much ours does, and what the goal is."""
    ours = medians.get("ours")
    if ours is None or name == "ours" or not (ours.rate and medians[name].rate):
        return ""
    goal = f", the goal is {GOALS[name]:g}" if name in GOALS else ""
    return f"   ours does {ours.rate / medians[name].rate:.2f} times as many{goal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run came to; a zero was not measured."""

    rate: float = 0.0  #: calls a second, from the first to the last
    cpu: float = 0.0  #: microseconds of the worker's process a call
    server_cpu: float = 0.0  #: microseconds of PostgreSQL a call
    repeated: int = 0
    p50: float = 0.0  #: milliseconds from commit to call
    p99: float = 0.0

    def __str__(self) -> str:
        if self.p50:
            return f"commit to call {self.p50:7.1f} ms (p50) {self.p99:7.1f} ms (p99)"
        used = f"{self.cpu:6.0f} us CPU each and {self.server_cpu:5.0f} of PostgreSQL's"
        return f"{self.rate:7.0f} calls/s {used}, {self.repeated} repeated"


def median(runs: Sequence[Run]) -> Run:
    def middle(name: str) -> Any:
        return statistics.median(getattr(run, name) for run in runs)

    return Run(
        rate=middle("rate"),
        cpu=middle("cpu"),
        server_cpu=middle("server_cpu"),
        repeated=max(run.repeated for run in runs),
        p50=middle("p50"),
        p99=middle("p99"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One contender on a database of its own."""

    contender: Contender
    place: Path
    database: str
    destination: str
    concurrency: int
    postmaster: int | None

    async def backlog(self, entries: int) -> Run:
        """Let it work off *entries* that are all due."""
        await self.does("setup")
        await self.does("enqueue", "0", str(entries))
        self.asked("forget")
        async with self.working() as process:
            seen = await self.until(1)  # what it took to start is not counted
            done, before = seen["keys"], self.used(process.pid)
            seen = await self.until(entries)
            used = [
                after - before for after, before in zip(self.used(process.pid), before, strict=True)
            ]
        each = 1e6 / max(1, entries - done)
        return Run(
            rate=(entries - 1) / (seen["last"] - seen["first"]),
            cpu=used[0] * each,
            server_cpu=used[1] * each,
            repeated=seen["calls"] - seen["keys"],
        )

    def used(self, worker: int) -> tuple[float, float]:
        """Seconds of CPU that the worker's process and the server have used so far."""
        return cpu.of_process(worker), cpu.of_server(self.postmaster)

    async def idle(self, entries: int) -> Run:
        """Ask for one call at a time of a worker that has nothing to do."""
        await self.does("setup")
        self.asked("forget")
        if self.contender.kind == "ours":  # the hint is given in the process that commits
            lines = await self.does("trickle", str(entries))
        else:
            async with self.working():
                await asyncio.sleep(3)
                lines = await self.does("trickle", str(entries))
                await self.until(entries)
        came = self.asked("times")
        told = [json.loads(line) for line in lines.splitlines() if line.startswith(b"{")]
        waits = sorted(max(0.0, came[one["key"]] - one["committed"]) * 1000 for one in told)
        return Run(p50=statistics.median(waits), p99=waits[int(len(waits) * 0.99)])

    async def until(self, entries: int) -> dict[str, Any]:
        """Wait until as many keys have come."""
        deadline = time.monotonic() + LIMIT
        while (seen := self.asked("count"))["keys"] < entries:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.contender.name}: {seen}")
            await asyncio.sleep(0.05)
        return seen

    def asked(self, what: str) -> dict[str, Any]:
        with urlopen(f"{self.destination}/{what}", timeout=10) as answer:  # noqa: S310
            return dict(json.load(answer))

    async def does(self, *words: str) -> bytes:
        process = await self.spawn(*words, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{self.contender.name} {words}: {process.returncode}")
        return out

    @asynccontextmanager
    async def working(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await self.spawn("work", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), 20)
                except TimeoutError:
                    process.kill()
                    await process.wait()

    async def spawn(
        self, *words: str, stdout: int, stderr: int | None = None
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self.contender.words(self.place),
            *words,
            stdout=stdout,
            stderr=stderr,
            cwd=ROOT,
            env={
                **os.environ,
                "DATABASE_URL": self.database,
                "DESTINATION_URL": self.destination,
                "CONCURRENCY": str(self.concurrency),
                **self.contender.environment,
            },
        )


def tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
