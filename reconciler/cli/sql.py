"""`reconciler sql`."""

from pathlib import Path
from typing import Any

import click

from reconciler.cli.shared import (
    config_option,
    counted,
    emit,
    json_option,
    reports_errors,
    run,
    table,
)


@click.command("sql")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@config_option
@json_option
@reports_errors
def command(*, file: Any, config: Path | None, as_json: bool) -> None:
    """
    Run the SQL script FILE (`-`: standard input) on the configured database.

    All or nothing, in one transaction: your own tables beside ours, or a question.

    \b
    Example:
      reconciler sql orders.sql
      echo "select count(*) from reconciler.resources" | reconciler sql -
    """
    results = run(ran(config, file.read()))
    if as_json:
        emit({"results": results})
        return
    for rows in results:
        if rows:
            table([tuple(row.values()) for row in rows], head=tuple(rows[0]))
        click.echo(f"({counted(len(rows), 'row')})")
    if not results:
        click.echo("done")


async def ran(config: Path | None, script: str) -> list[list[dict[str, Any]]]:
    from reconciler import settings
    from reconciler.operations.opening import opened
    from reconciler.operations.scripts import run_script

    async with opened(settings.load(config), migrated=False) as database:
        return await run_script(database.engine, script)
