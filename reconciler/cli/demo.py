"""`reconciler demo`."""

import random
import tempfile
from pathlib import Path
from typing import Any

import click

from reconciler.cli.shared import emit, json_option, reports_errors, run, table


@click.command("demo")
@click.option("--seed", type=int, help="The seed of every fate; without it a new one is drawn.")
@click.option(
    "--events", type=click.IntRange(50, 5000), default=300, show_default=True, help="How many."
)
@click.option(
    "--history",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep both histories, the configuration and the log in this new or empty directory.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    expose_value=False,
    help="Taken as by every command, but not read: the demo writes a configuration of its own.",
)
@json_option
@reports_errors
def command(*, seed: int | None, events: int, history: Path | None, as_json: bool) -> None:
    """
    Prove it on this machine: a sender that loses, repeats and reorders, a destination that
    loses answers, and the real daemon with a private PostgreSQL between them.

    Exit 0 when nothing was lost or doubled and both worlds agree, else 1.

    \b
    Example:
      reconciler demo --seed 7 --history ./demo-7
    """
    chosen = seed if seed is not None else random.SystemRandom().randrange(1, 1_000_000)
    if history is not None:
        history.mkdir(parents=True, exist_ok=True)
        if any(history.iterdir()):
            raise click.UsageError(f"{history} is not empty")
        found = prove(seed=chosen, events=events, directory=history.resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="reconciler-demo-") as directory:
            found = prove(seed=chosen, events=events, directory=Path(directory))
    if as_json:
        emit(found)
    else:
        show(found)
    raise SystemExit(0 if found["passed"] else 1)


def prove(*, seed: int, events: int, directory: Path) -> dict[str, Any]:
    from reconciler.proving import demo

    def say(text: str) -> None:
        click.echo(f"  {text}", err=True)

    return run(demo.run(seed=seed, events=events, directory=directory, say=say))


def show(found: dict[str, Any]) -> None:
    """The table that a person reads."""
    rows = [
        (block, name.replace("_", " "), figure)
        for block in ("sender", "reconciler", "destination")
        for name, figure in found[block].items()
    ]
    click.echo(f"\nseed {found['seed']}, {found['events']} events, {found['seconds']} s\n")
    table(rows, head=("who", "what", "count"))
    click.echo(f"\nlost effects     {found['lost_effects']}")
    click.echo(f"doubled effects  {found['doubled_effects']}")
    for line in found["differences"]:
        click.echo(f"differs          {line}")
    for name in found["did_not_occur"]:
        click.echo(f"did not occur    {name}: this run proves less than it should")
    good = "Both worlds agree: every effect happened once."
    click.echo(f"\n{good if found['passed'] else 'NOT PROVEN.'}")
