"""`reconciler events`."""

from pathlib import Path
from typing import Any

import click

from reconciler.cli.replaying import discard, replay
from reconciler.cli.shared import (
    body_of,
    config_option,
    emit,
    json_option,
    plain,
    printable,
    reports_errors,
    run,
    table,
)
from reconciler.ledger.event import Outcome

COLUMNS = ("processed_at", "outcome", "sender", "event_type", "kind", "key", "version", "event_id")
KEPT = ("last_seen_at", "failures", "sender", "event_id", "id", "fault")
#: a duplicate leaves nothing that could be listed
OUTCOMES = tuple(each.value for each in Outcome if each is not Outcome.DUPLICATE)


@click.group("events")
def command() -> None:
    """
    List and show events; replay or discard what is in quarantine.

    \b
    Example:
      reconciler events list --sender shop --outcome stale
      reconciler events show shop evt_9
      reconciler events replay shop evt_9
    """


command.add_command(replay)
command.add_command(discard)


@command.command("list")
@click.option("--sender", help="Only of this sender.")
@click.option(
    "--outcome",
    type=click.Choice(OUTCOMES),
    help="Only with this outcome; `quarantined` lists what quarantine keeps.",
)
@click.option("--kind", help="Only about this kind.")
@click.option("--key", help="Only about this resource.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--after", help="The `next` of an earlier page.")
@config_option
@json_option
@reports_errors
def list_(
    *, config: Path | None, as_json: bool, limit: int, after: str | None, **equal: str | None
) -> None:
    """
    List events, the latest first; what is in quarantine is listed by `--outcome quarantined`.

    \b
    Example:
      reconciler events list --outcome quarantined
    """
    narrowed = {name: value for name, value in equal.items() if value is not None}
    found = run(listed(config, equal=narrowed, limit=limit, after=after))
    if as_json:
        emit(found)
        return
    columns = KEPT if narrowed.get("outcome") == "quarantined" else COLUMNS
    rows = [tuple(item.get(name) for name in columns) for item in found["items"]]
    table(rows, head=columns, drop_empty=True)
    if found["next"]:
        click.echo(f"more: --after '{found['next']}'", err=True)


@command.command("show")
@click.argument("sender")
@click.argument("event_id")
@config_option
@json_option
@reports_errors
def show(*, sender: str, event_id: str, config: Path | None, as_json: bool) -> None:
    """
    Show one event: its bytes, what it came to, what it asked for.

    \b
    Example:
      reconciler events show shop evt_9 --json
    """
    found = run(shown(config, sender=sender, event_id=event_id))
    if as_json:
        emit(found)
        return
    whole = plain(found)
    for name, value in whole.items():
        if name == "body_base64":
            said, text = body_of(whole)
            click.echo(f"{said:<14} {text}")
        elif name == "quarantine" and value is not None:
            for part in ("fault", "failures", "first_seen_at", "last_seen_at", "state"):
                click.echo(f"{part:<14} {printable(value[part])}")
        elif name != "outbox":
            click.echo(f"{name:<14} {printable(value)}")
    for entry in whole["outbox"]:
        click.echo(f"asked for      {entry['effect']} at {entry['destination']}: {entry['state']}")


async def listed(config: Path | None, **wanted: Any) -> dict[str, Any]:
    from reconciler.operations.opening import reading
    from reconciler.operations.reading import list_events

    async with reading(config) as connection:
        return await list_events(connection, **wanted)


async def shown(config: Path | None, *, sender: str, event_id: str) -> dict[str, Any]:
    from reconciler.operations.opening import reading
    from reconciler.operations.reading import show_event

    async with reading(config) as connection:
        return await show_event(connection, sender, event_id)
