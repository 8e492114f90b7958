"""Seeds run side by side: jobs that have a PostgreSQL and a nursery each, and share a queue."""

import asyncio
import multiprocessing
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import structlog

from tests.history.seed import Result, run
from tests.history.server import Cluster, cluster
from tests.nursery import Nursery, nursery

LOOK_EVERY = 0.5  #: seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How seeds are run: with which packages, and where histories are kept."""

    packages: Path | None
    """A copy of the product to run instead of the installed one."""
    cold: bool
    """Whether each daemon is a new interpreter."""
    keep: Path | None
    """Where all histories are kept; None: those of failed seeds, in a temporary place."""


def results(seeds: Sequence[int], job: Job, *, jobs: int) -> Iterator[Result]:
    """Run *seeds* and yield what they came to, as they end; closed early, what runs is ended."""
    context = multiprocessing.get_context("spawn")
    waiting, ended, stop = context.Queue(), context.Queue(), context.Event()
    for seed in seeds:
        waiting.put(seed)
    workers = [
        context.Process(target=work, args=(waiting, ended, stop, job))
        for _ in range(min(jobs, len(seeds)))
    ]
    for worker in workers:
        worker.start()
    try:
        for _ in seeds:
            yield result_of(ended, workers)
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def result_of(ended: Any, workers: Sequence[Any]) -> Result:
    while True:
        try:
            result = ended.get(timeout=LOOK_EVERY)
        except Empty:
            assert any(worker.is_alive() for worker in workers), "every job has ended"
        else:
            assert isinstance(result, Result)
            return result


def work(waiting: Any, ended: Any, stop: Any, job: Job) -> None:
    """One job, in a process of its own."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with cluster() as server:
        asyncio.run(take_seeds(waiting, ended, stop, job, server))


async def take_seeds(waiting: Any, ended: Any, stop: Any, job: Job, server: Cluster) -> None:
    async with nursery(packages=job.packages, cold=job.cold) as daemons:
        while not stop.is_set():
            try:
                seed = await asyncio.to_thread(waiting.get, timeout=LOOK_EVERY)
            except Empty:
                continue
            running = asyncio.create_task(run_kept(seed, job, server, daemons))
            while not running.done() and not stop.is_set():
                await asyncio.wait({running}, timeout=LOOK_EVERY)
            if running.done():
                ended.put(running.result())
            else:  # nobody wants to know any more
                running.cancel()
                await asyncio.wait({running})


async def run_kept(seed: int, job: Job, server: Cluster, daemons: Nursery) -> Result:
    """Run a seed; its histories stay where they are asked for or have something to tell."""
    if job.keep:
        directory = job.keep / f"seed-{seed}"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    else:
        directory = Path(tempfile.mkdtemp(prefix=f"history-{seed}-"))
    try:
        found = await run(
            seed, cluster=server, nursery=daemons, directory=directory, packages=job.packages
        )
    except Exception:  # noqa: BLE001 - a seed that breaks the harness has failed, not the batch
        said = traceback.format_exc()[-2000:]
        found = Result(
            seed=seed,
            violations=(f"the harness broke: {said}",),
            kinds=Counter(other=1),
            met=Counter(),
            seconds=0.0,
            directory=str(directory),
            postgresql=server.version,
        )
    if not job.keep and not found.violations:
        shutil.rmtree(directory)
    return found
