"""`reconciler events replay` and `reconciler events discard`."""

import sys
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from reconciler.cli.acting import Moment, Progress, actor, limit_option, reason_option
from reconciler.cli.shared import (
    config_option,
    counted,
    emit,
    json_option,
    plain,
    printable,
    reports_errors,
    run,
)

FAILED = frozenset({"quarantined", "unrendered", "gone", "busy"})
BUSY = 75


@click.command("replay")
@click.argument("sender", required=False)
@click.argument("event_id", required=False)
@click.option("--copy", type=click.UUID, help="The copy of that id, for events without their own.")
@click.option("--all-quarantined", is_flag=True, help="All that quarantine keeps.")
@click.option("--unrendered", is_flag=True, help="Events whose effects could not be rendered.")
@click.option("--sender", "of_sender", help="With many: only of this sender.")
@click.option("--fault", metavar="TEXT", help="With many: only where this is part of the fault.")
@click.option("--since", type=Moment(), help="With many: that failed since: a time, or 2h ago.")
@click.option("--before", type=Moment(), help="With many: that failed before.")
@limit_option
@click.option("--out-of-order", is_flag=True, help="Also effects that later calls have overtaken.")
@click.option("--dry-run", is_flag=True, help="Run the real transaction, then roll it back.")
@reason_option()
@config_option
@json_option
@reports_errors
def replay(
    *,
    sender: str | None,
    event_id: str | None,
    copy: Any,
    all_quarantined: bool,
    unrendered: bool,
    of_sender: str | None,
    fault: str | None,
    since: datetime | None,
    before: datetime | None,
    limit: int,
    out_of_order: bool,
    dry_run: bool,
    reason: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """
    Apply events again that quarantine keeps, through the very same transaction.

    What is claimed leaves quarantine; what still fails stays, and exits with 1. Of an event that
    was claimed, effects that could not be rendered are rendered by the configuration of now.

    \b
    Example:
      reconciler events replay shop evt_9 --dry-run
      reconciler events replay --sender shop --since 6h
      reconciler events replay --unrendered --reason 'template mended'
    """
    filters = {"sender": of_sender, "fault": fault, "since": since, "before": before}
    many = all_quarantined or unrendered or any(value is not None for value in filters.values())
    one = sender is not None or copy is not None
    if one == many or (sender is None) != (event_id is None) or (sender and copy):
        raise click.UsageError(
            "say SENDER and EVENT_ID, or --copy, or which events: "
            "--sender, --fault, --since, --before, --all-quarantined, --unrendered"
        )
    wanted: dict[str, Any] = {"sender": sender, "event_id": event_id, "copy": copy}
    if many:
        wanted = {"filters": filters, "unrendered": unrendered, "limit": limit}
    how = {"reason": reason, "dry_run": dry_run, "out_of_order": out_of_order}
    items = run(replayed(config, how=how, **wanted))
    if as_json:
        emit({"items": items, "counts": counts(items), "dry_run": dry_run, "next": None})
    else:
        show(items, dry_run=dry_run)
        if many and len(items) >= limit:
            click.echo(f"stopped at --limit {limit}: there may be more", err=True)
    if one and [item["result"] for item in items] == ["busy"]:
        sys.exit(BUSY)
    sys.exit(1 if any(item["result"] in FAILED for item in items) else 0)


@click.command("discard")
@click.argument("sender", required=False)
@click.argument("event_id", required=False)
@click.option("--copy", type=click.UUID, help="The copy of that id, for events without their own.")
@reason_option(required=True)
@config_option
@json_option
@reports_errors
def discard(
    *,
    sender: str | None,
    event_id: str | None,
    copy: Any,
    reason: str,
    config: Path | None,
    as_json: bool,
) -> None:
    """
    Close what quarantine keeps of an event that nobody wants to have applied any more.

    \b
    Example:
      reconciler events discard shop evt_9 --reason 'a test of theirs'
    """
    if (sender is None) != (event_id is None) or (sender is None) == (copy is None):
        raise click.UsageError("say SENDER and EVENT_ID, or --copy")
    item = run(discarded(config, sender=sender, event_id=event_id, copy=copy, reason=reason))
    if as_json:
        emit({"items": [item], "next": None})
    else:
        click.echo(
            f"{name_of(plain(item))}  discarded: it was kept for: {printable(item['fault'])}"
        )


async def replayed(
    config: Path | None,
    *,
    how: dict[str, Any],
    filters: dict[str, Any] | None = None,
    unrendered: bool = False,
    limit: int = 0,
    copy: Any = None,
    sender: str | None = None,
    event_id: str | None = None,
) -> list[dict[str, Any]]:
    from reconciler.operations.acting import Order
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened
    from reconciler.operations.rendering import render_all
    from reconciler.operations.replayed import Filters
    from reconciler.operations.replaying import replay_all, replay_copy, replay_event

    assembly = assemble(config)
    async with aclosing(assembly), opened(assembly.loaded) as database:
        order = Order(engine=database.engine, assembly=assembly, actor=actor(), **how)
        if copy is not None:
            return await replay_copy(order, copy)
        if filters is None:
            assert sender is not None
            assert event_id is not None
            return await replay_event(order, sender, event_id)
        progress, items = Progress("events"), []
        of_many = render_all if unrendered else replay_all
        async for item in of_many(order, Filters(**filters), limit=limit):
            items.append(item)
            progress.at(len(items))
        return items


async def discarded(config: Path | None, *, reason: str, **wanted: Any) -> dict[str, Any]:
    from reconciler.operations.acting import Order
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened
    from reconciler.operations.replaying import discard

    assembly = assemble(config)
    async with aclosing(assembly), opened(assembly.loaded) as database:
        order = Order(engine=database.engine, assembly=assembly, actor=actor(), reason=reason)
        return await discard(order, **wanted)


def counts(items: list[dict[str, Any]]) -> dict[str, int]:
    """How many items came to each result."""
    found: dict[str, int] = {}
    for item in items:
        found[str(item["result"])] = found.get(str(item["result"]), 0) + 1
    return found


def show(items: list[dict[str, Any]], *, dry_run: bool) -> None:
    for item in plain(items):
        click.echo(f"{name_of(item)}  {told(item)}")
        for effect in item["effects"]:
            reason = f" ({printable(effect['reason'])})" if effect["reason"] else ""
            state = effect["state"] if effect["state"] != "pending" or reason else "due"
            click.echo(f"  + {effect['effect']} at {effect['destination']}: {state}{reason}")
            click.echo(f"    key {printable(effect['idempotency_key'])}")
    if len(items) != 1:
        parts = [f"{number} {WORDS[result]}" for result, number in counts(items).items()]
        click.echo(f"{counted(len(items), 'event')}" + (f": {', '.join(parts)}" if parts else ""))
    if dry_run:
        click.echo("rolled back: nothing was kept")


WORDS = {
    "replayed": "replayed",
    "rendered": "rendered",
    "superseded": "claimed already",
    "closed": "closed already",
    "duplicate": "with nothing to do",
    "quarantined": "still in quarantine",
    "unrendered": "still unrendered",
    "gone": "not kept any more",
    "busy": "busy",
}


def name_of(item: dict[str, Any]) -> str:
    return f"{item['sender']} {printable(item['event_id'] or item['copy'])}"


def told(item: dict[str, Any]) -> str:
    """What became of one event, in a line."""
    fault = printable(item["fault"]) if item["fault"] else ""
    about = ""
    if item["key"] is not None:
        version = "" if item["version"] is None else f" at version {item['version']}"
        about = f", {item['kind']} {printable(item['key'])}{version}"
    sentences = {
        "replayed": f"replayed: {item['outcome']}{about}",
        "rendered": "rendered again: it had been claimed before",
        "superseded": "superseded: it was claimed meanwhile, and its copy is closed",
        "closed": f"its copy was closed meanwhile, as {item['state']}",
        "duplicate": "it was claimed before, and nothing of it waits: nothing to do",
        "quarantined": f"still fails ({counted(item['failures'], 'time')} by now): {fault}",
        "unrendered": f"cannot be rendered still: {fault}",
        "gone": f"cannot be replayed: {fault}",
        "busy": f"busy: {fault}; try again",
    }
    return sentences[item["result"]]
