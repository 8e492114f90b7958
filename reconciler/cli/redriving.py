"""`reconciler outbox discard`, and what it has in common with `reconciler outbox redrive`."""

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from outbox.entry import State
from reconciler.cli.acting import (
    Moment,
    Progress,
    actor,
    limit_option,
    reason_option,
    require_yes,
    yes_option,
)
from reconciler.cli.choosing import CHOOSING, choosing_options
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

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reconciler.operations.assembly import Assembly
    from reconciler.operations.redriving import Filters

STOPPED = (State.DEAD.value, State.SKIPPED.value, State.UNCERTAIN.value)
DISCARDABLE = (*STOPPED, State.PENDING.value)
PAST = {"redrive": "redriven", "discard": "discarded"}

Items = list[dict[str, Any]]


@click.command("discard", short_help="Give entries up that nobody wants any more.")
@click.argument("ids", metavar="[ID]...", nargs=-1, type=click.UUID)
@click.option("--state", type=click.Choice(DISCARDABLE), help="With filters; else the dead ones.")
@choosing_options
@click.option("--since", type=Moment(), help="That stopped since: a time, or 2h ago.")
@click.option("--before", type=Moment(), help="That stopped before.")
@limit_option
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@yes_option
@reason_option(required=True)
@config_option
@json_option
@reports_errors
def discard(
    *,
    ids: tuple[UUID, ...],
    limit: int,
    dry_run: bool,
    yes: bool,
    reason: str,
    config: Path | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """
    Give entries up that nobody wants any more; those that wait behind them may go then.

    A call that is under way is not stopped: if it succeeds, its entry is delivered all the same.

    \b
    Example:
      reconciler outbox discard 019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10 --reason 'paid in cash'
      reconciler outbox discard --effect reminder --state pending --older-than 7d \\
        --reason 'nobody wants last week to be mentioned' --dry-run
    """
    said = {name: value for name, value in filters.items() if value is not None}
    require_choice(ids, said)
    asks = bool(said) and not dry_run and require_yes(yes=yes, what="discard entries")
    how = {"reason": reason}
    items = run(
        handled(
            config,
            ids=ids,
            said=said,
            limit=limit,
            dry_run=dry_run,
            asks=asks,
            how=how,
            word="discard",
        )
    )
    if items is None:
        click.echo("nothing was done", err=True)
        sys.exit(4)
    finish(items, as_json=as_json, dry_run=dry_run, done="discarded")
    if said and len(items) >= limit and not as_json:
        click.echo(f"stopped at --limit {limit}: there may be more", err=True)
    sys.exit(1 if refused(items) else 0)


def require_choice(ids: tuple[UUID, ...], said: dict[str, Any]) -> None:
    if bool(ids) == bool(said):
        raise click.UsageError(
            f"say either IDs or which entries: --state, {CHOOSING}, --since, --before"
        )


async def handled(config: Path | None, *, word: str, **wanted: Any) -> Items | None:
    """What was redriven or discarded and what was refused; None where the person said no."""
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened

    assembly = assemble(config)
    async with aclosing(assembly), opened(assembly.loaded) as database:
        return await acted(database.engine, assembly, word=word, **wanted)


async def acted(
    engine: "AsyncEngine",
    assembly: "Assembly",
    *,
    ids: tuple[UUID, ...],
    said: dict[str, Any],
    limit: int,
    dry_run: bool,
    asks: bool,
    how: dict[str, Any],
    word: str,
) -> Items | None:
    from reconciler.operations import redriving
    from reconciler.operations.acting import Order
    from reconciler.operations.naming import unknown_names

    act = {"redrive": redriving.redrive, "discard": redriving.discard}[word]
    done = f"would be {PAST[word]}"

    async def go(*, dry: bool) -> Items:
        order = Order(engine=engine, assembly=assembly, actor=actor(), dry_run=dry, **how)
        if ids:
            return await collected(act(order, list(dict.fromkeys(ids))))
        filters = filters_of(said)
        return await collected(redriving.of_many(order, filters, limit=limit, act=act))

    if asks:
        preview = await go(dry=True)
        if len(refused(preview)) == len(preview):
            return preview
        show(preview, done=done, err=True)
        ready = len(preview) - len(refused(preview))
        if not click.confirm(f"{word.capitalize()} {entries(ready)}?", err=True):
            return None
    items = await go(dry=dry_run)
    if not items:
        for wrong in unknown_names(assembly.loaded.settings, said):
            click.echo(wrong, err=True)
    return items


def filters_of(said: dict[str, Any]) -> "Filters":
    """Which entries are meant; the dead ones, where nothing else is said."""
    from reconciler.operations.redriving import Filters

    return Filters(**{**said, "state": State(said.get("state", State.DEAD))})


async def collected(items: AsyncIterator[dict[str, Any]]) -> Items:
    progress, found = Progress("entries"), []
    async for item in items:
        found.append(item)
        progress.at(len(found))
    return found


def refused(items: Items) -> Items:
    return [item for item in items if item["result"] == "refused"]


def finish(items: Items, *, as_json: bool, dry_run: bool, done: str) -> None:
    if as_json:
        counts = {done: len(items) - len(refused(items)), "refused": len(refused(items))}
        emit({"items": items, "counts": counts, "dry_run": dry_run, "next": None})
        return
    show(items, done=f"would be {done}" if dry_run else done)
    if dry_run:
        click.echo("rolled back: nothing was kept")


def show(items: Items, *, done: str, err: bool = False) -> None:
    was = "is" if done.startswith("would") else "was"
    for item in plain(items):
        what = "" if item["effect"] is None else f"  {item['effect']} at {item['destination']}"
        about = "" if item["key"] is None else f" about {item['kind']} {printable(item['key'])}"
        if item["result"] == "refused":
            say(f"{item['id']}{what}{about}  refused: {printable(item['why'])}", err=err)
            continue
        say(f"{item['id']}{what}{about}  {done}; it {was} {item['state']}", err=err)
        if item["call_open"]:
            click.echo("  a call of it is under way: if it succeeds, it is delivered", err=err)
    if len(items) != 1:
        ended = f"{len(items) - len(refused(items))} {done}, {len(refused(items))} refused"
        click.echo(f"{entries(len(items))}: {ended}" if items else NOTHING, err=err)


NOTHING = "no entry matches; without --state the dead ones are meant"


def entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"
