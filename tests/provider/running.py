"""One scenario, from a new database to what is wrong with it."""

import asyncio
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from reconciler import migrate
from tests.clusters import made_database
from tests.provider.judge import faults_of, figures_of, met
from tests.provider.scenarios import SCENARIOS, killed, mail, refused, seen
from tests.provider.world import a_world

SHOWN = 8  #: faults of one run
CALM = ("refused", "late")  #: where the provider makes no trouble of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is done."""

    entries: int  #: for the relays that are killed
    few: int  #: for everything else
    mails: int
    refused: float  #: seconds for which the database refuses writes
    every: float = 1.0  #: seconds between two kills
    most: float = math.inf  #: kills


LONG = Size(entries=10_000, few=900, mails=400, refused=60.0)
MIDDLE = Size(entries=400, few=120, mails=60, refused=7.0)
SHORT = Size(entries=60, few=60, mails=20, refused=1.0, every=0.4, most=6)


@dataclass(slots=True, kw_only=True)
class Result:
    """What one scenario came to."""

    name: str
    seed: int
    faults: list[str]
    figures: dict[str, Any]
    met: Counter[str] = field(default_factory=Counter)
    must: Sequence[str] = ()  #: what a long run of it has to meet

    def tell(self) -> None:
        facts = ", ".join(f"{name} {value}" for name, value in self.figures.items())
        say(f"{self.name}, seed {self.seed}: {facts}")
        kinds = Counter(fault.partition(":")[0] for fault in self.faults)
        worst = sorted(self.faults, key=lambda fault: fault.startswith("undrained"))
        for fault in worst[:SHOWN]:
            say(f"  FAULT {fault}")
        if len(self.faults) > SHOWN:
            say(f"  and more: {dict(kinds)}")


def run(name: str, *, cluster: str, seed: int, size: Size, packages: Path | None = None) -> Result:
    """Run the scenario *name* on a database of its own; a harness that breaks is a fault too."""
    with (
        made_database(cluster, f"provider_{name}_{time.time_ns()}") as url,
        tempfile.TemporaryDirectory(prefix="provider-") as directory,
    ):
        asyncio.run(migrate.upgrade(url))
        return asyncio.run(ran(name, Path(directory), url, seed=seed, size=size, packages=packages))


async def ran(
    name: str, directory: Path, url: str, *, seed: int, size: Size, packages: Path | None = None
) -> Result:
    """Run the scenario *name* on a migrated database that is empty."""
    began = time.monotonic()
    match name:
        case "killed":
            scenario = partial(killed, entries=size.entries, every=size.every, most=size.most)
        case "refused":
            scenario = partial(refused, entries=size.few, seconds=size.refused)
        case "mail":
            scenario = partial(mail, entries=size.mails, every=size.every, most=size.most)
        case _:
            scenario = partial(SCENARIOS[name], entries=size.few)
    async with a_world(
        directory,
        url,
        seed=seed,
        packages=packages,
        calm=name in CALM,
        concurrency=4 if name == "refused" else 8,
    ) as world:
        done = await scenario(world)
        found = await seen(world, done)
    took = round(time.monotonic() - began, 1)
    return Result(
        name=name,
        seed=seed,
        faults=[*done.faults, *faults_of(found)],
        figures={**figures_of(found), **done.figures, "seconds": took},
        met=met(found) + done.met,
        must=done.must,
    )


def say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
