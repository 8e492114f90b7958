"""`reconciler why`."""

import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from reconciler.cli.shared import (
    brief,
    config_option,
    emit,
    json_option,
    printable,
    reports_errors,
    run,
)
from reconciler.cli.terminal import say


@click.command("why")
@click.argument("sender")
@click.argument("kind")
@click.argument("key")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="The latest so many moments.",
)
@config_option
@json_option
@reports_errors
def command(
    *, sender: str, kind: str, key: str, limit: int, config: Path | None, as_json: bool
) -> None:
    """
    Tell one resource's whole story, and end in a sentence: how it stands, and why.

    Exit 1 where nothing is known of it.

    \b
    Example:
      reconciler why shop order ord_42
    """
    found = run(explained(config, sender=sender, kind=kind, key=key, limit=limit))
    if as_json:
        emit(found)
    else:
        show(found)
    sys.exit(0 if found["known"] else 1)


async def explained(config: Path | None, **wanted: Any) -> dict[str, Any]:
    from reconciler.operations.assembly import assemble
    from reconciler.operations.explaining import why
    from reconciler.operations.opening import opened

    assembly = assemble(config)
    async with aclosing(assembly), opened(assembly.loaded) as database:
        return await why(database.engine, assembly, **wanted)


def show(found: dict[str, Any]) -> None:
    if found["omitted"]:
        click.echo(f"... {found['omitted']} earlier events and effects; --limit shows more\n")
    for moment in found["moments"]:
        at = brief(moment["at"])
        say(f"{at}  {moment['what']:<10}  {printable(moment['text'])}", indent=34)
    held = found["held"]
    if held is not None:
        click.echo(f"\nstate       {printable(held['state'])}")
    if found["moments"]:
        click.echo()
    say(printable(found["sentence"]), indent=0)
