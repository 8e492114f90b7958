"""`reconciler outbox`."""

from pathlib import Path
from typing import Any

import click

from outbox.entry import State
from reconciler.cli.choosing import choosing_options
from reconciler.cli.pausing import pause, resume, since
from reconciler.cli.redrive import redrive
from reconciler.cli.redriving import discard
from reconciler.cli.repeating import repeat
from reconciler.cli.resolving import resolve
from reconciler.cli.shared import (
    body_of,
    brief,
    config_option,
    emit,
    json_option,
    plain,
    printable,
    reports_errors,
    run,
    table,
)

COLUMNS = ("created_at", "state", "attempts", "effect", "destination", "key")
#: shown to people only where they say something
SILENT = frozenset(
    {
        *("part", "repetition", "ordered", "call_open", "redriven", "refusals"),
        *("attempts_before", "hold_after_dead", "looks"),
    }
)
STATES = tuple(state.value for state in State)


@click.group("outbox")
def command() -> None:
    """
    List and show outbox entries; redrive, resolve or discard those that stopped; pause what goes.

    \b
    Example:
      reconciler outbox list --state uncertain
      reconciler outbox show 019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10
      reconciler outbox redrive 019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10
    """


command.add_command(redrive)
command.add_command(discard)
command.add_command(repeat)
command.add_command(resolve)
command.add_command(pause)
command.add_command(resume)


@command.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only in this state.")
@choosing_options
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--after", help="The `next` of an earlier page.")
@config_option
@json_option
@reports_errors
def list_(
    *,
    config: Path | None,
    as_json: bool,
    state: str | None,
    limit: int,
    after: str | None,
    **about: Any,
) -> None:
    """
    List entries, newest first.

    \b
    Example:
      reconciler outbox list --destination payments --state dead --json
      reconciler outbox list --older-than 2h --error 'answered 503'
    """
    narrowed = {name: value for name, value in about.items() if value is not None}
    found = run(listed(config, state=state, about=narrowed, limit=limit, after=after))
    if not found["items"]:
        click.echo("no entry matches", err=True)
        for wrong in unknown(config, narrowed):
            click.echo(wrong, err=True)
    if as_json:
        emit(found)
        return
    table(
        [row(item) for item in found["items"]],
        head=(*COLUMNS, "to", "id", "last_error", "waiting for"),
        drop_empty=True,
    )
    if found["next"]:
        click.echo(f"more: --after {found['next']}", err=True)


@command.command("show")
@click.argument("entry_id")
@config_option
@json_option
@reports_errors
def show(*, entry_id: str, config: Path | None, as_json: bool) -> None:
    """
    Show one entry: its frozen request, its key and every attempt.

    \b
    Example:
      reconciler outbox show 019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10 --json
    """
    found = run(shown(config, entry_id))
    if as_json:
        emit(found)
        return
    whole = plain(found)
    for name, value in whole.items():
        if name == "body_base64":
            said, text = body_of(whole)
            click.echo(f"{said:<18} {text}")
        elif name == "paused":
            if value:
                click.echo(f"{name:<18} {since(found[name])}")
        elif name != "attempts" and not is_silent(name, value):
            click.echo(f"{name:<18} {printable(value)}")
    head = ("attempt", "started_at", "finished_at", "verdict", "status", "error")
    click.echo()
    if not found["attempts"]:
        click.echo("no attempt was made")
        return
    table([tuple(attempt[name] for name in head) for attempt in found["attempts"]], head=head)


def unknown(config: Path | None, said: dict[str, Any]) -> list[str]:
    from reconciler.operations.naming import unknown_names
    from reconciler.settings import load

    return list(unknown_names(load(config).settings, said))


async def listed(config: Path | None, *, state: str | None, **wanted: Any) -> dict[str, Any]:
    from reconciler.operations.opening import looking
    from reconciler.operations.reading import holding, list_outbox

    async with looking(config) as (connection, settings):
        return await list_outbox(
            connection,
            state=State(state) if state else None,
            holding=holding(settings),
            **wanted,
        )


async def shown(config: Path | None, entry_id: str) -> dict[str, Any]:
    from reconciler.operations.opening import looking
    from reconciler.operations.reading import entry_id as as_id
    from reconciler.operations.reading import holding, show_outbox

    wanted = as_id(entry_id)
    async with looking(config) as (connection, settings):
        return await show_outbox(connection, wanted, holding=holding(settings))


def is_silent(name: str, value: object) -> bool:
    """
    Whether a line about it would tell a person nothing.

    >>> is_silent("due_at", None), is_silent("looks", 0), is_silent("idempotent", False)
    (True, True, False)
    """
    return value is None or (name in SILENT and value in (0, "0"))


def row(item: dict[str, Any]) -> tuple[Any, ...]:
    """An entry in a table; of a mail that follows from no resource the recipient tells it apart."""
    to = item["path"] if item["method"] == "MAIL" else None
    facts = (item[name] for name in COLUMNS)
    return (*facts, to, item["id"], item["last_error"], what_for(item))


def what_for(item: dict[str, Any]) -> str:
    """
    What an entry waits for, in a column.

    >>> what_for({"waiting_for": "pause", "waiting_until": None})
    'pause'
    """
    until = item["waiting_until"]
    return " until ".join(filter(None, [item["waiting_for"], until and brief(until)]))
