"""Run by hand: `python -m tests.replicas --seed 1`; exits with 1 where two differ from one."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from tests.clusters import a_cluster, made_database
from tests.replicas import scenarios, versions
from tests.replicas.plan import drawn
from tests.replicas.result import Result
from tests.replicas.running import Meanwhile, Ran, Replica, run
from tests.replicas.world import CONFIGURATION, PATIENT

SHORT, LONG = 300, 900  #: events
PACE = 0.02  #: seconds between two of them
IMPATIENT = 3.0  #: seconds that a sender waits where replicas stand still
UPGRADE = "rolling upgrade"
HASTY = CONFIGURATION.replace('lease = "2s"', 'lease = "2s"\ndeadline = "3s"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One way for replicas to be, or to be treated."""

    name: str
    replicas: list[Replica]
    events: int = SHORT
    meanwhile: Meanwhile | None = None
    configuration: str = CONFIGURATION
    refuses_nothing: bool = False  #: every delivery must have been answered with 2xx at once
    first_python: str | None = None
    answer_within: float = PATIENT
    slower: int = 1  #: how much: what happens meanwhile has to be over before the load is


def every() -> Iterator[Scenario]:
    """All but the upgrade, for which the version before must be built first."""
    two = scenarios.TWO
    yield Scenario(name="two", replicas=two)
    yield Scenario(name="mixed roles", replicas=scenarios.MIXED)
    ahead = scenarios.skewed("+120s", zone="Asia/Kathmandu")
    if ahead is None:
        sys.stderr.write("SKIPPED skewed clocks, summer time: apt install faketime\n")
    else:
        fast = Replica(name="r2", environment=ahead)
        yield Scenario(name="skewed clock", replicas=[two[0], fast])
        yield from over_the_hour()
    yield Scenario(name="frozen", replicas=two, events=LONG, meanwhile=scenarios.frozen_in_a_call)
    yield Scenario(
        name="leaders change",
        replicas=two,
        events=LONG,
        meanwhile=scenarios.changing_leaders,
        configuration=HASTY,
        answer_within=IMPATIENT,
        slower=2,
    )
    yield Scenario(
        name="rolling restart",
        replicas=two,
        events=LONG,
        meanwhile=scenarios.rolling_restart,
        refuses_nothing=True,
    )


def upgrade(revision: str, *, repository: Path, into: Path) -> Scenario:
    old = versions.installed(revision, repository=repository, into=into)
    return Scenario(
        name=f"{UPGRADE} from {revision[:12]} and back",
        replicas=scenarios.TWO,
        events=LONG,
        meanwhile=scenarios.upgrading(old=old, new=sys.executable),
        refuses_nothing=True,
        first_python=old,
    )


def over_the_hour() -> Iterator[Scenario]:
    """Helsinki sets its clocks back, and forward, seconds after whoever scans has started."""
    for moment in ("2026-10-25 03:59:56", "2027-03-28 02:59:56"):
        clock = scenarios.skewed(f"@{moment}", zone="Europe/Helsinki")
        assert clock is not None
        yield Scenario(
            name=f"summer time {moment[:10]}",
            replicas=[
                Replica(name="r1", roles=("receiver", "relay")),
                Replica(name="r2", roles=("reconciler", "relay"), environment=clock),
            ],
        )


@dataclass(slots=True)
class Proof:
    """What has been run so far."""

    seed: int
    pace: float
    cluster: str
    alone: dict[int, Result] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def prove(self, scenario: Scenario) -> None:
        """Run *scenario*, and one replica under the same load if that has not been yet."""
        if scenario.events not in self.alone:
            ran = self.run(
                Scenario(name="one", replicas=[Replica(name="r1")], events=scenario.events)
            )
            self.alone[scenario.events] = ran.result
        ran = self.run(scenario)
        line = self.lines[-1]
        line["faults"] += self.alone[scenario.events].differences(ran.result)
        if scenario.refuses_nothing and ran.figures["unanswered"]:
            line["faults"].append(f"not answered at once: {ran.figures['unanswered']}")
        for fault in line["faults"]:
            sys.stderr.write(f"  FAULT {fault}\n")

    def run(self, scenario: Scenario) -> Ran:
        steps = drawn(seed=self.seed, events=scenario.events)
        name = f"replicas_{os.getpid()}_{len(self.lines)}"
        with made_database(self.cluster, name) as url:
            ran = asyncio.run(
                run(
                    url,
                    steps,
                    scenario.replicas,
                    seed=self.seed,
                    pace=self.pace * scenario.slower,
                    meanwhile=scenario.meanwhile,
                    configuration=scenario.configuration,
                    first_python=scenario.first_python,
                    answer_within=scenario.answer_within,
                )
            )
        self.lines.append({"scenario": scenario.name, "faults": list(ran.faults), **ran.figures})
        sys.stderr.write(f"{scenario.name}: {json.dumps(ran.figures)}\n")
        return ran


@click.command()
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--pace", type=float, default=PACE, help="Seconds between two events.")
@click.option("--only", default="", help="Scenarios whose name begins so.")
@click.option("--from", "revision", help="The revision to upgrade from.")
@click.option("--repository", type=click.Path(path_type=Path), default=versions.ROOT)
@click.option("--json", "as_json", is_flag=True, help="All figures, as one document.")
def main(
    *, seed: int, pace: float, only: str, revision: str | None, repository: Path, as_json: bool
) -> None:
    """
    Hold several replicas against one under the same seeded load, whatever happens to them.

    Needs git and this repository's history for the rolling upgrade, Debian's faketime for clocks.
    """
    with tempfile.TemporaryDirectory(prefix="upgrade-") as name, a_cluster() as cluster:
        proof = Proof(seed=seed, pace=pace, cluster=cluster)
        for scenario in every():
            if scenario.name.startswith(only):
                proof.prove(scenario)
        if UPGRADE.startswith(only):
            before = revision or versions.previous(repository)
            proof.prove(upgrade(before, repository=repository, into=Path(name)))
    if not proof.lines:
        raise click.BadParameter(f"no scenario begins with {only!r}", param_hint="--only")
    failed = [line["scenario"] for line in proof.lines if line["faults"]]
    if as_json:
        click.echo(json.dumps({"seed": seed, "runs": proof.lines, "passed": not failed}))
    elif failed:
        click.echo(f"seed {seed}: {', '.join(failed)}: not as one replica")
    else:
        click.echo(f"seed {seed}: {len(proof.lines)} runs, all as one replica")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
