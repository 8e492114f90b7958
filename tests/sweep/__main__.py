"""
Each database and network call of every scenario fails once: the end is that of a quiet run.

    python -m tests.sweep              all of them, every call, in three ways
    python -m tests.sweep calls reads  only these

A call breaks before it takes effect, breaks after it has, or is cancelled; then the scenario is
run again, as a sender, an operator or the schedule would. Ends with 1 where anything differs.
"""

import asyncio
import logging
import secrets
import sys
import tempfile
import time
from pathlib import Path

import structlog

from reconciler import migrate
from tests.clusters import a_cluster, made_database
from tests.sweep.scenarios import SCENARIOS
from tests.sweep.scene import a_scene
from tests.sweep.sweeping import sweep


def main(wanted: list[str]) -> int:
    names = [one.name for one in SCENARIOS]
    if unknown := set(wanted) - set(names):
        sys.stderr.write(f"no such scenario: {sorted(unknown)}; there are: {names}\n")
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    name = f"sweep_{secrets.token_hex(3)}"
    with (
        a_cluster() as cluster,
        made_database(cluster, name) as url,
        tempfile.TemporaryDirectory(prefix="sweep-") as place,
    ):
        return asyncio.run(swept(Path(place), url, wanted or names))


async def swept(place: Path, url: str, names: list[str]) -> int:
    await migrate.upgrade(url)
    faults = 0
    async with a_scene(place, url) as scene:
        for scenario in SCENARIOS:
            if scenario.name not in names:
                continue
            begun = time.monotonic()
            found = await sweep(scene, scenario)
            faults += len(found.faults)
            tell(f"{scenario.name}: {found.runs} failures, {time.monotonic() - begun:.0f} s")
            for fault in found.faults:
                tell(f"  WRONG: {fault}")
            if not found.runs:
                tell(f"  WRONG: {scenario.name} called nothing")
                faults += 1
    return 1 if faults else 0


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
