"""`reconciler check`."""

import sys
from pathlib import Path
from typing import Any

import click

from reconciler.cli.shared import (
    config_option,
    counted,
    emit,
    json_option,
    printable_lines,
    reports_errors,
    run,
)


@click.command("check")
@click.option("--online", is_flag=True, help="Also reach database, listings and destinations.")
@config_option
@json_option
@reports_errors
def command(*, config: Path | None, online: bool, as_json: bool) -> None:
    """
    Check the configuration exactly as `serve` would, and say everything that is wrong.

    Exit 0 when it can be used, 78 when it cannot.

    \b
    Example:
      reconciler check --config /etc/reconciler/reconciler.toml --online
    """
    found = run(checked(config, online=online))
    if as_json:
        emit(found)
    else:
        for problem in found["problems"]:
            click.echo(f"error: {printable_lines(problem['text'])}", err=True)
        for warning in found["warnings"]:
            click.echo(f"warning: {printable_lines(warning['text'])}", err=True)
        errors = counted(len(found["problems"]), "error")
        warnings = counted(len(found["warnings"]), "warning")
        click.echo(f"{errors}, {warnings}", err=bool(found["problems"]))
        for line in found["online"]:
            click.echo(line)
    sys.exit(78 if found["problems"] else 0)


async def checked(config: Path | None, *, online: bool) -> dict[str, Any]:
    from reconciler.operations.checking import check

    return await check(config, online=online)
