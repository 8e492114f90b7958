"""
The demo can fail: without the claim, the guard or the stable key it exits with 1.

    python -m tests.demo_mutants [part, or the beginning of its name ...]
"""

import json
import sys
from dataclasses import replace

from tests.mutants import CLAIM, GUARD, STABLE_KEY, Mutant, mutated, run_in

PARTS = {
    "claim": CLAIM,
    "claim's answer": replace(
        CLAIM,
        file="reconciler/ledger/claims.py",
        before="return {(row.sender, row.event_id) for row in taken}",
        after='return {(row["sender"], row["event_id"]) for row in rows}',
    ),
    "guard": GUARD,
    "stable key of an entry": STABLE_KEY,
    "stable key of a change": replace(
        STABLE_KEY,
        file="reconciler/ledger/keys.py",
        before='key = f"{event.sender}:{event.kind}:{event.key}:{event.version}:{effect}"',
        after="key = str(__import__('uuid').uuid4())",
    ),
}


def demo_without(mutant: Mutant, *, events: int = 300) -> tuple[int, str]:
    """Run the demo with one part of the product taken out: its exit code, and what it found."""
    with mutated(mutant) as copy:
        words = ("--seed", "1", "--events", str(events), "--json")
        ran = run_in(copy, "reconciler", "demo", *words)
    if not ran.stdout:
        return ran.returncode, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    names = ("lost_effects", "doubled_effects", "did_not_occur", "differences")
    return ran.returncode, ", ".join(f"{name}: {brief(found[name])}" for name in names)


def brief(value: object) -> object:
    return len(value) if isinstance(value, list) else value


def main(wanted: list[str]) -> int:
    failures = 0
    for name, mutant in PARTS.items():
        if wanted and not name.startswith(tuple(wanted)):
            continue
        code, found = demo_without(mutant)
        failures += code != 1
        sys.stdout.write(f"without the {name}: exit {code} ({found})\n")
        sys.stdout.flush()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
