"""`reconciler migrate`."""

from pathlib import Path

import click

from reconciler.cli.acting import actor
from reconciler.cli.shared import config_option, emit, json_option, reports_errors, run


@click.command("migrate")
@config_option
@json_option
@click.option(
    "--restored",
    is_flag=True,
    help="Say that this database was restored from a backup: hold what may have been sent since.",
)
@reports_errors
def command(*, config: Path | None, as_json: bool, restored: bool) -> None:
    """
    Bring the database's tables to what this version needs.

    Safe to run at any time and more than once; nothing is ever migrated backwards.

    \b
    Example:
      reconciler migrate --config /etc/reconciler/reconciler.toml
    """
    revision = run(migrated(config, restored=restored))
    if as_json:
        emit({"migration": revision})
    else:
        click.echo(f"the database is at migration {revision}")


async def migrated(config: Path | None, *, restored: bool) -> str:
    from reconciler import migrate
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import give_birthdays, opened
    from reconciler.operations.restoring import say_restored

    assembly = assemble(config)
    async with opened(assembly.loaded, migrated=False) as database:
        revision = await migrate.upgrade(database.engine)
        await give_birthdays(database.engine, assembly.kinds)
        if restored:
            await say_restored(database.engine, actor=actor())
    return revision
