"""`reconciler purge`."""

from pathlib import Path
from typing import Any

import click

from reconciler.cli.shared import config_option, emit, json_option, reports_errors, run, table


@click.command("purge")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.option("--sender", help="Only what this sender left.")
@config_option
@json_option
@reports_errors
def command(*, dry_run: bool, sender: str | None, config: Path | None, as_json: bool) -> None:
    """
    Remove what is older than `[retention]` keeps it: now, as the daemon does every few minutes.

    \b
    Example:
      reconciler purge --dry-run
      reconciler purge --sender shop
    """
    found = run(purged(config, dry_run=dry_run, only=sender))
    if as_json:
        emit(found)
        return
    items = found.pop("items")
    if items:
        table([tuple(item.values()) for item in items], head=tuple(items[0]))
    common = {what: rows for what, rows in found.items() if what not in {"dry_run", "next"}}
    for what, rows in common.items():
        click.echo(f"{what}  {rows}")
    click.echo("would go; nothing was removed" if dry_run else "removed", err=True)


async def purged(config: Path | None, *, dry_run: bool, only: str | None) -> dict[str, Any]:
    from reconciler.operations.opening import opened
    from reconciler.operations.purging import purge, would_purge
    from reconciler.settings import load

    loaded = load(config)
    async with opened(loaded) as database:
        work = would_purge if dry_run else purge
        return await work(database.engine, loaded.settings, only=only)
