"""`reconciler status`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from outbox.entry import State
from reconciler.cli.pausing import since
from reconciler.cli.redrive_runs import progress
from reconciler.cli.shared import (
    brief,
    config_option,
    emit,
    json_option,
    printable,
    reports_errors,
    run,
    table,
)
from reconciler.cli.terminal import say


@click.command("status")
@config_option
@json_option
@reports_errors
def command(*, config: Path | None, as_json: bool) -> None:
    """
    Show what stands, what waits and what failed.

    \b
    Example:
      reconciler status
      reconciler status --json
    """
    found = run(looked(config))
    if as_json:
        emit(found)
    else:
        show(found)


async def looked(config: Path | None) -> dict[str, Any]:
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened
    from reconciler.operations.status import status

    assembly = assemble(config)
    async with opened(assembly.loaded) as database:
        return await status(database.engine, assembly, url=database.url)


def show(found: dict[str, Any]) -> None:
    database = found["database"]
    click.echo(f"database   {database['url']}")
    click.echo(
        f"           PostgreSQL {database['server_version']}, migration {database['migration']}\n"
    )
    if (generation := found["generation"]) and generation["number"] > 1:
        click.echo(
            f"restored   generation {generation['number']} since {brief(generation['opened_at'])}:"
            f" {generation['reason']}\n"
            f"           {generation['held']} entries held,"
            f" healed {generation['healed_at'] or 'not yet'}\n"
        )
    kinds = [
        (
            name,
            kind,
            facts["baseline_completed_at"] or ("in baseline" if facts["listed"] else "no list"),
            facts["last_completed_at"] or "never",
            facts["watermark"] or "",
            facts["last_error"] or "",
        )
        for name, sender in found["senders"].items()
        for kind, facts in sender["kinds"].items()
    ]
    if kinds:
        head = ("sender", "kind", "baseline", "last scan", "watermark", "last error")
        table(kinds, head=head, drop_empty=True)
        click.echo()
    senders = [
        (name, sender["last_delivery_at"] or "never", sender["quarantined"])
        for name, sender in found["senders"].items()
    ]
    table(senders, head=("sender", "last delivery", "quarantined"))
    click.echo()
    outbox = found["outbox"]
    states = tuple(state.value for state in State)
    table([tuple(outbox[state] for state in states)], head=states)
    if outbox["oldest_due_at"]:
        click.echo(f"\noldest due since {brief(outbox['oldest_due_at'])}")
    held = [line for one in outbox["destinations"].items() for line in standing(*one)]
    held += [progress(run) for run in outbox["redrive_runs"]]
    if held:
        click.echo()
        for line in held:
            say(line)


def standing(name: str, one: dict[str, Any]) -> Iterator[str]:
    """
    What keeps the calls to a destination back, a line each; none where nothing does.

    >>> well = {"paused": None, "paused_effects": {}, "breaker": "closed", "slowed_until": None}
    >>> list(standing("payments", well))
    []
    """
    if one["paused"]:
        yield f"{name} is paused {since(one['paused'])}"
    for effect, pause in one["paused_effects"].items():
        yield f"{printable(effect)} at {name} is paused {since(pause)}"
    if one["breaker"] == "open":
        probe = one["probe_at"]
        to_come = f", not before {brief(probe)}" if probe else ""
        yield (
            f"{name} is not well since {brief(one['opened_at'])}: {printable(one['reason'])};"
            f" the next call is a probe{to_come}"
        )
    if one["slowed_until"]:
        until = brief(one["slowed_until"])
        yield f"{name} asked for fewer calls: a quarter of its rate until {until}"
