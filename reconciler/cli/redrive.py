"""`reconciler outbox redrive`."""

import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from reconciler.cli import redrive_runs
from reconciler.cli.acting import Moment, reason_option, require_yes, yes_option
from reconciler.cli.choosing import choosing_options
from reconciler.cli.redriving import (
    STOPPED,
    Items,
    finish,
    handled,
    refused,
    require_choice,
)
from reconciler.cli.shared import config_option, emit, json_option, reports_errors, run


@click.command("redrive", short_help="Call what stopped again, under the SAME keys.")
@click.argument("ids", metavar="[ID]...", nargs=-1, type=click.UUID)
@click.option("--state", type=click.Choice(STOPPED), help="With filters; else the dead ones.")
@choosing_options
@click.option("--since", type=Moment(), help="That stopped since: a time, or 2h ago.")
@click.option("--before", type=Moment(), help="That stopped before.")
@click.option("--limit", type=click.IntRange(min=1), help="With filters: at the most so many.")
@click.option("--rate", type=redrive_runs.Pace(), help="In the background, so fast, like 50/s.")
@click.option("--status", "asks_status", is_flag=True, help="Show the background runs.")
@click.option("--stop", type=click.UUID, metavar="RUN", help="End a background run.")
@click.option("--out-of-order", is_flag=True, help="Also what later calls have overtaken.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@yes_option
@reason_option()
@config_option
@json_option
@reports_errors
def redrive(
    *,
    ids: tuple[UUID, ...],
    limit: int | None,
    rate: str | None,
    asks_status: bool,
    stop: UUID | None,
    out_of_order: bool,
    dry_run: bool,
    yes: bool,
    reason: str | None,
    config: Path | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """
    Give entries that stopped new attempts, under the SAME idempotency keys.

    Dead ones, skipped ones, and uncertain ones whose destination honours keys. Refused is what
    could take effect twice: exit 1, and each says why. More than a hundred, or with --rate, are
    redriven in the background by whatever relays run, and go behind what is live.

    \b
    Example:
      reconciler outbox redrive 019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10
      reconciler outbox redrive --destination payments --since 6h --dry-run
      reconciler outbox redrive --destination payments --rate 50/s --reason 'they are back'
      reconciler outbox redrive --status
    """
    said = {name: value for name, value in filters.items() if value is not None}
    if asks_status or stop:
        if said or ids or rate or (asks_status and stop):
            raise click.UsageError("--status and --stop stand alone")
        runs(config, stop, reason=reason, dry_run=dry_run, as_json=as_json)
        return
    require_choice(ids, said)
    if ids and (rate or limit):
        raise click.UsageError("--rate and --limit are for many: single entries go at once")
    asks = not dry_run and require_yes(yes=yes, what="redrive entries")
    wanted: dict[str, Any] = {
        "said": said,
        "dry_run": dry_run,
        "asks": asks,
        "how": {"reason": reason, "out_of_order": out_of_order},
    }
    found: dict[str, Any] | None = None
    if ids:
        items = run(handled(config, ids=ids, limit=len(ids), word="redrive", **wanted))
        if items is not None:
            found = {"items": items, "run": None, "matching": len(items)}
    else:
        found = run(redrive_runs.asked(config, limit=limit, rate=rate, **wanted))
    if found is None:
        click.echo("nothing was done", err=True)
        sys.exit(4)
    tell(found, as_json=as_json, dry_run=dry_run)
    sys.exit(1 if refused(found["items"]) else 0)


def tell(found: dict[str, Any], *, as_json: bool, dry_run: bool) -> None:
    items: Items = found["items"]
    if as_json:
        gone = len(refused(items))
        counts = {"redriven": len(items) - gone, "refused": gone, "matching": found["matching"]}
        emit({"items": items, "counts": counts, "run": found["run"], "dry_run": dry_run,
              "next": None})  # fmt: skip
        return
    if found["run"] is not None:
        redrive_runs.begun(found["run"])
        return
    finish(items, as_json=False, dry_run=dry_run, done="redriven")
    if found["matching"] > len(items):
        click.echo(f"{found['matching']} match; these are the first", err=True)
    if dry_run and found["matching"] > redrive_runs.AT_ONCE:
        click.echo("so many would be redriven in the background", err=True)


def runs(
    config: Path | None, stop: UUID | None, *, reason: str | None, dry_run: bool, as_json: bool
) -> None:
    """Show the background runs, or end one of them."""
    if stop is None:
        found = run(redrive_runs.listed(config))
    else:
        found = run(redrive_runs.stopped(config, stop, reason=reason, dry_run=dry_run))
    if as_json:
        emit(found)
    elif stop is None:
        redrive_runs.show(found)
    else:
        redrive_runs.told(found)
