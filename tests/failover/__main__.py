"""Run by hand: `python -m tests.failover`; needs Debian's PostgreSQL (apt install postgresql)."""

import asyncio
import json
import sys
from dataclasses import asdict

import click

from tests.failover.cluster import binaries
from tests.failover.rounds import HOW, Round, one_round

COLUMNS = ("how", "seed", "acknowledged", "lost", "doubled", "gap", "ready_after", "seconds")


@click.command()
@click.option("--rounds", type=int, default=1, show_default=True, help="Of each kind.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the first round.")
@click.option("--events", type=int, default=300, show_default=True)
@click.option("--only", type=click.Choice(list(HOW)), help="One kind of round.")
@click.option("--json", "as_json", is_flag=True, help="All figures, as one document.")
def main(*, rounds: int, seed: int, events: int, only: str | None, as_json: bool) -> None:
    """
    Kill a primary under load, promote its standby, and look for what was acknowledged.

    Exits with 1 where something was lost or doubled, readiness took too long, or the asynchronous
    control lost nothing.
    """
    if binaries() is None:
        sys.exit("no PostgreSQL of the system with pg_basebackup: apt install postgresql")
    kinds = [only] if only else list(HOW)
    if not as_json:
        click.echo("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    ran: list[Round] = []
    for number in range(seed, seed + rounds):
        for how in kinds:
            found = asyncio.run(one_round(how, seed=number, events=events))
            ran.append(found)
            if not as_json:
                facts = {**asdict(found), "doubled": len(found.doubled)}
                click.echo("| " + " | ".join(str(facts[name]) for name in COLUMNS) + " |")
            for fault in found.faults:
                sys.stderr.write(f"  FAULT {how} {number}: {fault}\n")
    passed = not any(one.faults for one in ran)
    if as_json:
        click.echo(json.dumps({"rounds": [asdict(one) for one in ran], "passed": passed}))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
