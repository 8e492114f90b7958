"""`reconciler baseline`."""

import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from reconciler.cli.shared import (
    config_option,
    emit,
    json_option,
    plain,
    reports_errors,
    run,
    table,
)


@click.command("baseline")
@click.argument("sender", required=False)
@click.argument("kind", required=False)
@click.option("--accept", is_flag=True, help="Say that it is complete, without a scan.")
@config_option
@json_option
@reports_errors
def command(
    *, sender: str | None, kind: str | None, accept: bool, config: Path | None, as_json: bool
) -> None:
    """
    Show every kind's baseline; with SENDER KIND, complete it now by a full scan.

    Until its baseline is complete, a kind re-does no effect of the past.

    \b
    Example:
      reconciler baseline
      reconciler baseline shop order
      reconciler baseline shop order --accept
    """
    if (sender is None) != (kind is None) or (accept and kind is None):
        raise click.UsageError("say both SENDER and KIND, or neither")
    found, failed = run(based(config, sender=sender, kind=kind, accept=accept))
    if as_json:
        emit({"items": found, "next": None})
    else:
        head = ("sender", "kind", "born_at", "completed_at", "completed_by")
        rows = [tuple(item[name] for name in head) for item in plain(found)]
        table(rows, head=head)
    sys.exit(1 if failed else 0)


async def based(
    config: Path | None, *, sender: str | None, kind: str | None, accept: bool
) -> tuple[list[dict[str, Any]], bool]:
    from reconciler.ledger import baselines
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import give_birthdays, opened
    from reconciler.operations.reconciling import accept_baseline, reconcile

    assembly, failed = assemble(config), False
    async with aclosing(assembly), opened(assembly.loaded) as database:
        await give_birthdays(database.engine, assembly.kinds)
        if sender is not None and kind is not None:
            if accept:
                await accept_baseline(database.engine, assembly, sender=sender, kind=kind)
            else:
                done = await reconcile(
                    database.engine, assembly, sender=sender, kind=kind, full=True
                )
                failed = done.failed
        async with database.engine.connect() as connection:
            states = await baselines.states(connection)
    rows = [
        {
            "sender": name,
            "kind": one,
            "born_at": state.born_at,
            "completed_at": state.completed_at,
            "completed_by": state.completed_by,
        }
        for (name, one), state in sorted(states.items())
    ]
    return rows, failed
