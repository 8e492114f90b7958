"""`reconciler outbox resolve`."""

import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from reconciler.cli.acting import actor, reason_option
from reconciler.cli.redriving import Items, refused
from reconciler.cli.shared import (
    config_option,
    emit,
    json_option,
    plain,
    printable,
    reports_errors,
    run,
)
from reconciler.cli.terminal import say


@click.command("resolve", short_help="Say what became of calls of unknown outcome.")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=click.UUID)
@click.option(
    "--as",
    "outcome",
    type=click.Choice(["delivered", "not-delivered"]),
    required=True,
    help="What was found out at the destination.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--yes", is_flag=True, help="Accepted; nothing is asked: --as and --reason decide.")
@reason_option(required=True)
@config_option
@json_option
@reports_errors
def resolve(
    *,
    ids: tuple[UUID, ...],
    outcome: str,
    dry_run: bool,
    yes: bool,  # noqa: ARG001 - so that scripts may say it as everywhere
    reason: str,
    config: Path | None,
    as_json: bool,
) -> None:
    """
    Say what became of calls whose outcome is unknown, after looking at the destination.

    What was delivered is done. What was not is called again under the SAME key, with new
    attempts; where the destination may have forgotten that key it is dead, and only `repeat`, a
    new call under a new key, is left. Either way what waited behind it may go.

    \b
    Example:
      reconciler outbox resolve 019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10 --as delivered \\
        --reason 'ch_4711 in their dashboard'
    """
    delivered = outcome == "delivered"
    how = {"reason": reason, "dry_run": dry_run}
    items = run(resolved(config, ids=ids, delivered=delivered, how=how))
    if as_json:
        counts = {"resolved": len(items) - len(refused(items)), "refused": len(refused(items))}
        emit({"items": items, "counts": counts, "dry_run": dry_run, "next": None})
    else:
        show(items, dry_run=dry_run)
    sys.exit(1 if refused(items) else 0)


def show(items: Items, *, dry_run: bool) -> None:
    for item in plain(items):
        what = "" if item["effect"] is None else f"  {item['effect']} at {item['destination']}"
        if item["result"] == "refused":
            say(f"{item['id']}{what}  refused: {printable(item['why'])}")
            continue
        would = "would be " if dry_run else ""
        say(f"{item['id']}{what}  {would}{item['became']}: {printable(item['because'])}")
        if item["call_open"]:
            click.echo("  a call of it is under way: if it succeeds, it is delivered")
    if dry_run:
        click.echo("rolled back: nothing was kept")


async def resolved(
    config: Path | None, *, ids: tuple[UUID, ...], delivered: bool, how: dict[str, Any]
) -> Items:
    from reconciler.ledger.following import Following
    from reconciler.operations import resolving
    from reconciler.operations.acting import Order
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened

    assembly = assemble(config)
    async with aclosing(assembly), opened(assembly.loaded) as database:
        order = Order(engine=database.engine, assembly=assembly, actor=actor(), **how)
        follow = Following(rules=assembly.rules)
        some = list(dict.fromkeys(ids))
        return await resolving.resolve(order, some, delivered=delivered, follow=follow)
