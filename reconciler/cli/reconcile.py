"""`reconciler reconcile`."""

import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reconciler.cli.shared import (
    config_option,
    emit,
    json_option,
    plain,
    printable,
    reports_errors,
    run,
)

if TYPE_CHECKING:
    from reconciler.operations.reconciling import Reconciled


@click.command("reconcile")
@click.argument("sender")
@click.argument("kind", required=False)
@click.argument("key", required=False)
@click.option("--dry-run", is_flag=True, help="Run the real transaction, then roll it back.")
@click.option("--full", is_flag=True, help="Scan all of the listing, not only what changed.")
@click.option("--exit-code", is_flag=True, help="With --dry-run: exit 3 where drift was found.")
@config_option
@json_option
@reports_errors
def command(
    *,
    sender: str,
    kind: str | None,
    key: str | None,
    dry_run: bool,
    full: bool,
    exit_code: bool,
    config: Path | None,
    as_json: bool,
) -> None:
    """
    Compare with the sender now, and correct: one resource, one kind, or all of SENDER.

    Works with or without a running daemon, and ignores grace.

    \b
    Example:
      reconciler reconcile shop order ord_42 --dry-run
      reconciler reconcile shop order --full
    """
    if full and key is not None:
        raise click.UsageError("--full is about a whole kind, not one resource")
    done = run(reconciled(config, sender=sender, kind=kind, key=key, dry_run=dry_run, full=full))
    if as_json:
        emit(done.document())
    else:
        show(done)
    if done.failed:
        sys.exit(1)
    sys.exit(3 if exit_code and dry_run and done.drifted else 0)


async def reconciled(config: Path | None, **wanted: Any) -> "Reconciled":
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened
    from reconciler.operations.reconciling import reconcile

    assembly = assemble(config)
    async with aclosing(assembly), opened(assembly.loaded) as database:
        return await reconcile(database.engine, assembly, **wanted)


def show(done: "Reconciled") -> None:
    """What differed, field by field; what was done about it; what it asked for."""
    for item in plain(done.items):
        show_item(item)
    if done.omitted:
        click.echo(f"... and {done.omitted} more that were not in sync")
    for scan in done.scans:
        facts = scan.facts()
        figures = ", ".join(
            f"{facts[name]} {words}"
            for name, words in (
                ("items", "items"),
                ("in_sync", "in sync"),
                ("corrected", "would be corrected" if done.dry_run else "corrected"),
                ("left", "left"),
                ("failed", "failed"),
            )
        )
        click.echo(f"{facts['kind']}: {facts['mode']} scan {facts['end']}: {figures}")
        if scan.error:
            click.echo(f"  {printable(scan.error)}")
    if done.dry_run:
        click.echo("rolled back: nothing was kept")


def show_item(item: dict[str, Any]) -> None:
    click.echo(f"{item['sender']} {item['kind']} {printable(item['key'])}  {item['result']}")
    if item["drift"]:
        click.echo(f"  drift    {item['drift']}")
    for name in ("ours", "theirs"):
        side = item[name]
        click.echo(f"  {name:<8} {'nothing' if side is None else version_of(side)}")
    for one in item["differences"]:
        ours, theirs = printable(one["ours"]), printable(one["theirs"])
        click.echo(f"  ~ {printable(one['path']):<20} {ours}  ->  {theirs}")
    for effect in item["effects"]:
        click.echo(f"  + {effect['effect']} at {effect['destination']}")
        click.echo(f"    key {printable(effect['idempotency_key'])}")
    if item.get("error"):
        click.echo(f"  failed   {printable(item['error'])}")


def version_of(side: dict[str, Any]) -> str:
    deleted = " (deleted)" if side.get("deleted") else ""
    return f"version {side['version']}{deleted}"
