"""The side of `reconciler outbox redrive` that asks for many, in the background."""

from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from reconciler.cli.acting import actor
from reconciler.cli.redriving import acted, entries, filters_of
from reconciler.cli.shared import brief, counted, printable, table
from reconciler.cli.terminal import say

AT_ONCE = 100  #: as many, chosen without a rate, are redriven by the command itself
PREVIEWED = 1000  #: of a dry run at the most


class Pace(click.ParamType[str]):
    """How fast: `10/s`, `600/m`, `5000/h`."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        import re

        if re.fullmatch(r"[1-9][0-9]{0,5}/[smh]", value) is None:
            self.fail(f"{printable(value)} is not a rate, like 10/s, 600/m or 5000/h", param, ctx)
        return str(value)


def per_second(rate: str) -> float:
    """
    Entries a second.

    >>> per_second("30/m")
    0.5
    """
    from reconciler.polling.rate import parse_rate

    count, period = parse_rate(rate)
    return count / period


async def asked(
    config: Path | None,
    *,
    said: dict[str, Any],
    limit: int | None,
    rate: str | None,
    dry_run: bool,
    asks: bool,
    how: dict[str, Any],
) -> dict[str, Any] | None:
    """
    Redrive what *said* finds: a few at once, as `items`, more by a `run`; of a dry run `items`.

    None where the person said no. `matching` is how many were found.
    """
    from reconciler.operations import redrive_runs
    from reconciler.operations.acting import Order
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened

    assembly = assemble(config)
    async with aclosing(assembly), opened(assembly.loaded) as database:
        order = Order(engine=database.engine, assembly=assembly, actor=actor(), **how)
        filters = filters_of(said)
        total = await redrive_runs.count(order, filters, limit=limit)
        if dry_run or (rate is None and total <= AT_ONCE):
            items = await acted(
                *(database.engine, assembly),
                ids=(),
                said=said,
                limit=min(limit or PREVIEWED, PREVIEWED),
                dry_run=dry_run,
                asks=asks,
                how=how,
                word="redrive",
            )
            return None if items is None else {"items": items, "run": None, "matching": total}
        pace = per_second(rate or assembly.loaded.settings.relay.redrive_rate)
        if asks:
            what = f"{entries(total)} in the background, at {pace:g}/s"
            if not click.confirm(f"Redrive {what}?", err=True):
                return None
        run = await redrive_runs.begin(order, filters, limit=limit, rate=pace, total=total)
        return {"items": [], "run": run, "matching": total}


async def listed(config: Path | None) -> dict[str, Any]:
    from reconciler.operations import redrive_runs
    from reconciler.operations.opening import looking

    async with looking(config) as (connection, _):
        return {"items": await redrive_runs.listed(connection), "next": None}


async def stopped(
    config: Path | None, run: UUID, *, reason: str | None, dry_run: bool
) -> dict[str, Any]:
    from reconciler.operations import redrive_runs
    from reconciler.operations.acting import Order
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened

    assembly = assemble(config)
    async with aclosing(assembly), opened(assembly.loaded) as database:
        order = Order(
            engine=database.engine,
            assembly=assembly,
            actor=actor(),
            reason=reason,
            dry_run=dry_run,
        )
        item = await redrive_runs.stop(order, run)
        return {"items": [item], "dry_run": dry_run, "next": None}


def show(found: dict[str, Any]) -> None:
    """Runs as a table, the latest first."""
    if not found["items"]:
        click.echo("no bulk redrive was ever asked for")
        return
    head = ("run", "state", "redriven", "refused", "of", "rate", "started_at", "by", "reason")
    table([row(item) for item in found["items"]], head=head)


def row(item: dict[str, Any]) -> tuple[Any, ...]:
    counts = (item["redriven"], item["refused"], item["total"])
    by = (item["actor"], item["reason"] or "")
    return (item["id"], item["state"], *counts, f"{item['rate']:g}/s", item["started_at"], *by)


def progress(item: dict[str, Any]) -> str:
    """
    How far a run is, in a line.

    >>> progress({"id": 7, "state": "running", "redriven": 50, "refused": 1, "left": 49,
    ...     "total": 100, "rate": 10.0, "ended_at": None})
    'redrive run 7 is running: 50 of 100 entries redriven, 1 refused; about 5 s left at 10/s'
    """
    state = item["state"]
    told = f"redrive run {item['id']} is {state}"
    if item["ended_at"]:
        told += f" since {brief(item['ended_at'])}"
    told += f": {item['redriven']} of {entries(item['total'])} redriven, {item['refused']} refused"
    if item["left"]:
        told += f"; about {lasting(item['left'] / item['rate'])} left at {item['rate']:g}/s"
    return told


def lasting(seconds: float) -> str:
    """
    About how long something takes.

    >>> lasting(5), lasting(600), lasting(100_000)
    ('5 s', '10 min', '28 h')
    """
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def begun(item: dict[str, Any]) -> None:
    """Say what was asked for, and how to follow and to stop it."""
    say(
        f"redrive run {item['id']}: {entries(item['total'])} at {item['rate']:g}/s, about"
        f" {lasting(item['total'] / item['rate'])}; relays work it off, what is live goes first"
    )
    say(
        f"follow it by `reconciler outbox redrive --status`, end it by `--stop {item['id']}`",
        err=True,
    )


def told(found: dict[str, Any]) -> None:
    """Say what a stop came to."""
    (item,) = found["items"]
    if item["result"] == "was_over":
        say(f"nothing to stop: {progress(item)}")
        return
    say(progress(item))
    if found["dry_run"]:
        click.echo("rolled back: nothing was kept")
        return
    gone = counted(item["redriven"], "redriven call")
    say(f"{gone} may still be waiting: `reconciler outbox pause` holds them back", err=True)
