"""
Kill relays, refuse writes, skew clocks: and let the provider judge by its own store.

    python -m tests.provider                       every scenario, ten thousand entries
    python -m tests.provider --only killed         one of them
    python -m tests.provider --short --runs 5      small, with seeds 1 to 5
    python -m tests.provider --plant "no order"    a bug, which its scenario has to notice
    python -m tests.provider --plant all

Exit code 0: nothing was wrong, and every kind of trouble was met, where the run was not a short
one; with --plant: it was caught.
"""

import argparse
import json
import sys
from collections import Counter
from dataclasses import replace

from tests.clusters import a_cluster
from tests.history.__main__ import origin
from tests.mutants import mutated
from tests.provider.planted import PLANTED
from tests.provider.running import LONG, MIDDLE, Result, Size, run, say
from tests.provider.scenarios import SCENARIOS

ENOUGH = 5000  #: entries that must meet everything
TRIES = 3  #: seeds in which a planted bug must be noticed


def main() -> int:
    asked = arguments().parse_args()
    size = MIDDLE if asked.short else LONG
    if asked.entries:
        size = replace(size, entries=asked.entries)
    with a_cluster() as cluster:
        if asked.plant:
            names = list(PLANTED) if "all" in asked.plant else asked.plant
            caught = {name: caught_by(name, cluster=cluster, seed=asked.seed) for name in names}
            write(asked, {"planted": caught})
            return 1 if None in caught.values() else 0
        return judged(asked, cluster=cluster, size=size)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.provider",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, help="the first one (default 1)")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds (default 1)")
    parser.add_argument("--only", choices=list(SCENARIOS), help="one scenario")
    parser.add_argument("--entries", type=int, help="for the relays that are killed")
    parser.add_argument("--short", action="store_true", help="some hundred entries, some seconds")
    parser.add_argument(
        "--plant", nargs="+", choices=[*PLANTED, "all"], help="break the product first"
    )
    parser.add_argument("--json", action="store_true", help="one document on standard output")
    return parser


def judged(asked: argparse.Namespace, *, cluster: str, size: Size) -> int:
    """Run the product as it is."""
    results, met = list[Result](), Counter[str]()
    for seed in range(asked.seed, asked.seed + asked.runs):
        for name in [asked.only] if asked.only else list(SCENARIOS):
            result = run(name, cluster=cluster, seed=seed, size=size)
            result.tell()
            results.append(result)
            met += result.met
    long = not asked.short and (asked.entries or ENOUGH) >= ENOUGH
    wanted = sorted({name for one in results for name in one.must}) if long else []
    missing = [name for name in wanted if not met[name]]
    for name in missing:
        say(f"NOT MET: {name}")
    runs = [{"scenario": one.name, "seed": one.seed, **one.figures} for one in results]
    faults = [fault for one in results for fault in one.faults]
    write(asked, {"runs": runs, "met": met, "not_met": missing, "faults": faults})
    return 1 if faults or missing else 0


def caught_by(name: str, *, cluster: str, seed: int) -> str | None:
    """What was said first of the bug *name*; None: nothing."""
    planted = PLANTED[name]
    with mutated(*planted.mutants) as copy:
        for number in range(seed, seed + TRIES):
            found = run(planted.scenario, cluster=cluster, seed=number, size=MIDDLE, packages=copy)
            if found.faults:
                say(f"{name}: caught by {planted.scenario}, seed {number}: {found.faults[0]}")
                return found.faults[0]
    say(f"{name}: NOT CAUGHT in {TRIES} seeds of {planted.scenario}")
    return None


def write(asked: argparse.Namespace, document: dict[str, object]) -> None:
    if asked.json:
        sys.stdout.write(json.dumps({"seed": asked.seed, **document, **origin()}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
