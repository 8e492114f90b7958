"""`reconciler try`."""

from pathlib import Path
from typing import Any

import click

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


@click.command("try")
@click.argument("sender")
@click.option("--body", type=click.File("rb"), required=True, help="The delivery; `-`: stdin.")
@click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="A header of the delivery.")
@config_option
@json_option
@reports_errors
def command(
    *, sender: str, body: Any, header: tuple[str, ...], config: Path | None, as_json: bool
) -> None:
    """
    Run a sample delivery of SENDER through the real transaction, and roll it back.

    Shows its outcome, the state, your statements, and each effect with yes or no and why. The
    signature is not asked for.

    \b
    Example:
      reconciler try shop --body sample.json
    """
    headers = dict(parsed(one) for one in header)
    found = run(tried(config, sender=sender, raw=body.read(), headers=headers))
    if as_json:
        emit(found)
        return
    for item in plain(found["items"]):
        show(item)
    click.echo("rolled back: nothing was kept")
    if not headers and any(item["event_id"] is None for item in found["items"]):
        click.echo(
            "hint: some senders put the id or the type in a header: give it with "
            "--header 'NAME: VALUE'",
            err=True,
        )


def parsed(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise click.UsageError(f"--header {text!r} is not 'NAME: VALUE'")
    return name.strip(), value.strip()


async def tried(
    config: Path | None, *, sender: str, raw: bytes, headers: dict[str, str]
) -> dict[str, Any]:
    from reconciler.operations.assembly import assemble
    from reconciler.operations.opening import opened
    from reconciler.operations.trying import attempt

    assembly = assemble(config)
    async with opened(assembly.loaded) as database:
        return await attempt(database.engine, assembly, sender=sender, raw=raw, headers=headers)


def show(item: dict[str, Any]) -> None:
    named = [item["event_id"] or "(no event id)", item.get("type"), item["outcome"]]
    click.echo("  ".join(printable(part) for part in named if part))
    if item.get("fault"):
        click.echo(f"  fault     {printable(item['fault'])}")
    if item.get("kind"):
        key = printable(item["key"])
        click.echo(f"  resource  {item['kind']} {key} at version {item['version']}")
    if item.get("change"):
        before, after = printable(item["previous"]), printable(item["state"])
        click.echo(f"  {item['change']:<9} {before} -> {after}")
    for step in item.get("steps", ()):
        what = ran(step) if step["ran"] else f"no: {printable(step['reason'])}"
        click.echo(f"  {step['where']}  {what}")
    for effect in item.get("effects", ()):
        if not effect["asked"]:
            click.echo(f"  {effect['effect']}  no: {printable(effect['reason'])}")
            continue
        why = f" ({printable(effect['reason'])})" if effect["reason"] else ""
        click.echo(f"  {effect['effect']}  yes: {effect['state']}{why}")
        click.echo(f"    {effect['method']} {effect['path']} at {effect['destination']}")
        click.echo(f"    key  {printable(effect['idempotency_key'])}")
        click.echo(f"    body {printable(effect['body'])}")


def ran(step: dict[str, Any]) -> str:
    """What a statement touched; a handler's count is its own."""
    return "ran" if step["rows"] is None else f"ran, {counted(step['rows'], 'row')}"
