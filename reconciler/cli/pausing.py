"""`reconciler outbox pause` and `reconciler outbox resume`."""

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from reconciler.cli.acting import actor, reason_option
from reconciler.cli.redriving import Items, entries
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

Command = Callable[..., Any]


def pausing_options(command: Command) -> Command:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


OPTIONS = (
    click.option("--destination", help="All that goes to this destination."),
    click.option("--effect", help="All of this effect."),
    click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing."),
    click.option("--yes", is_flag=True, help="Accepted; nothing is asked: it can be undone."),
    reason_option(required=True),
    config_option,
    json_option,
    reports_errors,
)


@click.command("pause", short_help="Send nothing more, until it is resumed.")
@pausing_options
def pause(**said: Any) -> None:
    """
    Send nothing more to a destination, or of an effect, until it is resumed.

    It counts for every replica from its next look at the outbox, over restarts too. Calls that
    are under way end as they will; what is asked for meanwhile waits, and nothing is lost.

    \b
    Example:
      reconciler outbox pause --destination payments --reason 'they asked us to'
      reconciler outbox pause --effect receipt --reason 'the template is wrong'
    """
    done("pause", **said)


@click.command("resume", short_help="Send again what was paused.")
@pausing_options
def resume(**said: Any) -> None:
    """
    Send again what was paused: its destination's limits keep what waited from storming it.

    \b
    Example:
      reconciler outbox resume --destination payments --reason 'they are back'
    """
    done("resume", **said)


def done(
    word: str,
    *,
    destination: str | None,
    effect: str | None,
    dry_run: bool,
    yes: bool,  # noqa: ARG001 - so that scripts may say it as everywhere
    reason: str,
    config: Path | None,
    as_json: bool,
) -> None:
    if destination is None and effect is None:
        raise click.UsageError(f"say what to {word}: --destination, --effect, or both")
    how = {"reason": reason, "dry_run": dry_run}
    items = run(acted(config, word, destination=destination, effect=effect, how=how))
    if as_json:
        counts = dict.fromkeys(RESULTS[word], 0)
        for item in items:
            counts[item["result"]] += 1
        emit({"items": items, "counts": counts, "dry_run": dry_run, "next": None})
        return
    for item in items:
        say(sentence(item, dry_run=dry_run))
    if dry_run:
        click.echo("rolled back: nothing was kept")


RESULTS = {"pause": ("paused", "already_paused"), "resume": ("resumed", "not_paused")}


def sentence(item: dict[str, Any], *, dry_run: bool = False) -> str:
    """
    What became of one pause.

    >>> said = {"destination": "payments", "effect": None, "waiting": 1}
    >>> sentence({**said, "result": "not_paused"})
    'payments was not paused; 1 entry is pending'
    """
    what = item["destination"]
    if item["effect"]:
        what = f"{printable(item['effect'])} at {what}"
    verb = "would be" if dry_run else "is"
    pending = entries(item["waiting"])
    match item["result"]:
        case "paused":
            return f"{what} {verb} paused; {wait(pending, item['waiting'])}"
        case "already_paused":
            return f"{what} was paused already, {since(item)}; {wait(pending, item['waiting'])}"
        case "resumed":
            goes = f"{pending} may go"
            return f"{what} {verb} resumed, after a pause {since(item)}; {goes}"
        case _:
            is_ = "is" if item["waiting"] == 1 else "are"
            return f"{what} was not paused; {pending} {is_} pending"


def wait(pending: str, number: int) -> str:
    return f"{pending} {'waits' if number == 1 else 'wait'}"


def since(pause: dict[str, Any]) -> str:
    """Since when, by whom and why something is paused, in a few words."""
    why = f": {printable(pause['reason'])}" if pause["reason"] else ""
    return f"since {brief(pause['paused_at'])} by {printable(pause['actor'])}{why}"


async def acted(
    config: Path | None,
    word: str,
    *,
    destination: str | None,
    effect: str | None,
    how: dict[str, Any],
) -> Items:
    from reconciler.operations import pausing
    from reconciler.operations.acting import Order
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened

    act = {"pause": pausing.pause, "resume": pausing.resume}[word]
    assembly = assemble(config)
    async with aclosing(assembly), opened(assembly.loaded) as database:
        order = Order(engine=database.engine, assembly=assembly, actor=actor(), **how)
        return await act(order, pausing.Meant(destination=destination, effect=effect))
