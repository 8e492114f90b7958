"""
Run seeds of trouble against the real service, and judge what was written down.

    python -m tests.history --seeds 20             20 seeds, beginning with the first
    python -m tests.history --seeds 1 --first 7    the plan of seed 7 again
    python -m tests.history --plant "no claim"     stops at the first seed that notices the bug
    python -m tests.history --plant all            every planted bug

Exit code 0: no seed failed, and the batch met every kind of trouble; with --plant: it was caught.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.history.jobs import Job, results
from tests.history.planted import PLANTED
from tests.history.seed import Result
from tests.history.troubles import ENOUGH, REQUIRED, not_met
from tests.mutants import ROOT, mutated

SHOWN = 5  #: violations of one seed


def main() -> int:
    wanted = arguments().parse_args()
    seeds = range(wanted.first, wanted.first + wanted.seeds)
    if wanted.plant is None:
        return judged(seeds, wanted)
    names = list(PLANTED) if wanted.plant == "all" else [wanted.plant]
    caught = [caught_after(name, seeds, wanted) for name in names]
    if wanted.json:
        document = {"planted": dict(zip(names, caught, strict=True)), **origin()}
        sys.stdout.write(json.dumps(document) + "\n")
    return 1 if None in caught else 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.history",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=ENOUGH, help="how many (default 20)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default 2)")
    parser.add_argument("--plant", choices=[*PLANTED, "all"], help="break the product first")
    parser.add_argument("--keep", type=Path, help="keep all histories in this directory")
    parser.add_argument("--cold", action="store_true", help="each daemon a new interpreter")
    parser.add_argument("--json", action="store_true", help="one document on standard output")
    return parser


def judged(seeds: Sequence[int], wanted: argparse.Namespace) -> int:
    """Run a batch of the product as it is."""
    began = time.monotonic()
    met, kinds, failed = Counter[str](), Counter[str](), list[Result]()
    job = Job(packages=None, cold=wanted.cold, keep=wanted.keep)
    for result in results(seeds, job, jobs=wanted.jobs):
        met += result.met
        kinds += result.kinds
        if result.violations:
            failed.append(result)
        tell(result)
    missing = not_met(met) if len(seeds) >= ENOUGH else []
    facts = {
        "seeds": len(seeds),
        "first": seeds[0],
        **{kind: kinds[kind] for kind in ("lost", "doubled", "undrained", "other")},
        "not_met": missing,
        "seconds": round(time.monotonic() - began),
        **origin(),
    }
    say(", ".join(f"{name} {value}" for name, value in facts.items() if name != "not_met"))
    say("met: " + ", ".join(f"{name} {met[name]}" for name in REQUIRED))
    for name in missing:
        say(f"NOT MET: {name}")
    if wanted.json:
        document = {**facts, "met": met, "failed": [asdict(one) for one in failed]}
        sys.stdout.write(json.dumps(document) + "\n")
    return 1 if failed or missing else 0


def caught_after(name: str, seeds: Sequence[int], wanted: argparse.Namespace) -> int | None:
    """How many seeds it took to notice the bug *name*; None: they did not."""
    with mutated(*PLANTED[name]) as copy:
        job = Job(packages=copy, cold=wanted.cold, keep=wanted.keep)
        with closing(results(seeds, job, jobs=wanted.jobs)) as ending:
            for number, result in enumerate(ending, start=1):
                if result.violations:
                    first = result.violations[0].splitlines()[0]
                    say(f"{name}: caught after {number} seeds, by {result.seed}: {first}")
                    return number
    say(f"{name}: NOT CAUGHT in {len(seeds)} seeds")
    return None


def tell(result: Result) -> None:
    if not result.violations:
        say(f"seed {result.seed}: clean, {result.seconds:.1f} s")
        return
    facts = ", ".join(f"{name} {value}" for name, value in origin().items())
    say(f"seed {result.seed} FAILED ({facts}, PostgreSQL {result.postgresql})")
    for violation in result.violations[:SHOWN]:
        say(f"  {violation}")
    if len(result.violations) > SHOWN:
        say(f"  and {len(result.violations) - SHOWN} more")
    say(f"  histories: {result.directory}")


def origin() -> dict[str, Any]:
    """Which product this is."""
    ran = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {"commit": ran.stdout.strip() or "unknown"}


def say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
