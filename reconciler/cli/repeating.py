"""`reconciler outbox repeat`."""

import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from reconciler.cli.acting import actor, reason_option
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
from reconciler.errors import NeedsDecisionError


@click.command("repeat", short_help="Make a call again, as a NEW one, under a NEW key.")
@click.argument("entry_id", metavar="ID", type=click.UUID)
@click.option("--confirm", metavar="ID", help="The same id once more; a terminal asks for it.")
@click.option("--yes", is_flag=True, help="Accepted, and not enough: the id must be typed.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@reason_option()
@config_option
@json_option
@reports_errors
def repeat(
    *,
    entry_id: UUID,
    confirm: str | None,
    yes: bool,  # noqa: ARG001 - so that scripts may say it as everywhere, and learn what is missing
    dry_run: bool,
    reason: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """
    Make a call again as a NEW one, under a NEW key: the destination will perform it once more.

    For what is dead, uncertain, delivered or discarded, when somebody wants it done again. To try
    again what failed, under the key that it has, use `redrive`.

    \b
    Example:
      reconciler outbox repeat 019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10 --dry-run
      reconciler outbox repeat 019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10 \\
        --confirm 019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10 --reason 'they lost it, ticket 311'
    """
    if not dry_run and confirm is None and not sys.stdin.isatty():
        raise NeedsDecisionError(
            "nobody is there to type the id of the call that is to be made again",
            hint=f"--confirm {entry_id} confirms it; --dry-run shows what would be done",
        )
    if not dry_run and confirm is not None and not is_same(confirm, entry_id):
        raise NeedsDecisionError(
            f"--confirm {printable(confirm)} is not the id that is to be repeated",
            hint="nothing was done",
        )
    asks = not dry_run and confirm is None
    item = run(repeated(config, entry_id, asks=asks, dry_run=dry_run, reason=reason))
    if item is None:
        click.echo("nothing was done", err=True)
        sys.exit(4)
    if as_json:
        counts = {"repeated": int(item["new"] is not None), "refused": int(item["new"] is None)}
        emit({"items": [item], "counts": counts, "dry_run": dry_run, "next": None})
    else:
        show(item, done="would be repeated" if dry_run else "repeated")
        if dry_run:
            click.echo("rolled back: nothing was kept")
    sys.exit(1 if item["new"] is None else 0)


async def repeated(
    config: Path | None, entry_id: UUID, *, asks: bool, dry_run: bool, reason: str | None
) -> dict[str, Any] | None:
    """What came of it; None where the person did not type the id."""
    from reconciler.operations import repeating
    from reconciler.operations.acting import Order
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened

    assembly = assemble(config)
    async with aclosing(assembly), opened(assembly.loaded) as database:

        async def go(*, dry: bool) -> dict[str, Any]:
            order = Order(
                engine=database.engine,
                assembly=assembly,
                actor=actor(),
                reason=reason,
                dry_run=dry,
            )
            return await repeating.repeat(order, entry_id)

        if asks:
            preview = await go(dry=True)
            if preview["new"] is None:
                return preview
            show(preview, done="would be repeated", err=True)
            typed = click.prompt(
                "Type the id to make this call again", default="", show_default=False, err=True
            )
            if not is_same(typed, entry_id):
                return None
        return await go(dry=dry_run)


def is_same(typed: str, entry_id: UUID) -> bool:
    """
    Whether the whole id was typed.

    >>> is_same("019adf5e", UUID("019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10"))
    False
    """
    try:
        return UUID(typed.strip()) == entry_id
    except ValueError:
        return False


def show(item: dict[str, Any], *, done: str, err: bool = False) -> None:
    told = plain(item)
    what = "" if told["effect"] is None else f"  {told['effect']} at {told['destination']}"
    if told["new"] is None:
        say(f"{told['id']}{what}  refused: {printable(told['why'])}", err=err)
        return
    was = "is" if done.startswith("would") else "was"
    say(f"{told['id']}{what}  {done}; it {was} {told['state']}, and stays so", err=err)
    say(f"  as {told['new']['id']}, key {printable(told['new']['idempotency_key'])}", err=err)
    if told["call_open"]:
        click.echo("  a call of the first is under way still", err=err)
