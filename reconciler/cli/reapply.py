"""`reconciler reapply`."""

import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from reconciler.cli.acting import Progress, actor, reason_option
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

MOST_TOLD = 1000  #: resources of a kind that are told one by one


@click.command("reapply")
@click.argument("sender")
@click.argument("kind")
@click.argument("key", required=False)
@click.option("--dry-run", is_flag=True, help="Run your statements, then roll them back.")
@reason_option()
@config_option
@json_option
@reports_errors
def command(
    *,
    sender: str,
    kind: str,
    key: str | None,
    dry_run: bool,
    reason: str | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """
    Run your `apply` statements and handlers over the states that we hold: of one resource, or of
    all of KIND.

    For after a mistake in them was mended. No event is claimed and no effect asked for. Of a kind,
    what fails is told and the rest goes on; exit 1 then.

    \b
    Example:
      reconciler reapply shop order ord_42 --dry-run
      reconciler reapply shop order
    """
    how = {"sender": sender, "kind": kind, "dry_run": dry_run, "reason": reason}
    items, counts = run(reapplied(config, key=key, how=how))
    if as_json:
        emit({"items": items, "counts": counts, "dry_run": dry_run, "next": None})
    else:
        show(items, counts, one=key is not None)
        if dry_run:
            click.echo("rolled back: nothing was kept")
    sys.exit(1 if counts["failed"] else 0)


async def reapplied(
    config: Path | None, *, key: str | None, how: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The one item; or of a kind, those that failed or touched too few rows; and the counts."""
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened
    from reconciler.operations.reapplying import Order, reapply_all, reapply_one

    assembly = assemble(config)
    counts = {"reapplied": 0, "failed": 0, "gone": 0}
    async with aclosing(assembly), opened(assembly.loaded) as database:
        order = Order(engine=database.engine, assembly=assembly, actor=actor(), **how)
        if key is not None:
            item = await reapply_one(order, key)
            counts[item["result"]] += 1
            return [item], counts
        progress = Progress("resources")
        told: list[dict[str, Any]] = []
        async for batch in reapply_all(order):
            for item in batch:
                counts[item["result"]] += 1
                if is_worth_telling(item) and len(told) < MOST_TOLD:
                    told.append(item)
            progress.at(sum(counts.values()))
        return told, counts


def is_worth_telling(item: dict[str, Any]) -> bool:
    """Whether it failed, or touched fewer rows than it was expected to."""
    return item["result"] == "failed" or any(map(is_short, item["steps"]))


def is_short(step: dict[str, Any]) -> bool:
    return step["expected"] is not None and step["rows"] < step["expected"]


def show(items: list[dict[str, Any]], counts: dict[str, int], *, one: bool) -> None:
    for item in plain(items):
        version = "" if item["version"] is None else f" at version {item['version']}"
        deleted = " (deleted)" if item["deleted"] else ""
        fault = f": {printable(item['fault'])}" if item["fault"] else ""
        click.echo(f"{printable(item['key'])}{version}{deleted}  {item['result']}{fault}")
        for step in item["steps"]:
            if one or is_short(step):
                click.echo(f"  {step_of(step)}")
    if not one:
        failed = f", {counts['failed']} failed" if counts["failed"] else ""
        click.echo(f"{counted(counts['reapplied'], 'resource')} re-applied{failed}")


def step_of(step: dict[str, Any]) -> str:
    if not step["ran"]:
        return f"- {step['where']}: did not run: {printable(step['reason'])}"
    rows = "ran" if step["rows"] is None else f"ran, {counted(step['rows'], 'row')}"
    expected = f", of {step['expected']} expected" if is_short(step) else ""
    return f"+ {step['where']}: {rows}{expected}"
