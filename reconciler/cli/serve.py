"""`reconciler serve`."""

from pathlib import Path

import click

from reconciler.cli.shared import config_option, reports_errors

ROLES = ("receiver", "relay", "reconciler")


@click.command("serve")
@config_option
@click.option(
    "--role",
    default=",".join(ROLES),
    show_default=True,
    help="Which parts this process runs, comma-separated.",
)
@click.option("--json", "as_json", is_flag=True, help="Log in JSON on a terminal too.")
@reports_errors
def command(*, config: Path | None, role: str, as_json: bool) -> None:
    """
    Run the daemon in the foreground until SIGTERM or Ctrl-C.

    When the listeners accept, one line `daemon.ready` with their addresses goes to stderr.

    \b
    Example:
      reconciler serve --config /etc/reconciler/reconciler.toml --role receiver,relay
    """
    roles = tuple(dict.fromkeys(name.strip() for name in role.split(",") if name.strip()))
    unknown = [name for name in roles if name not in ROLES]
    if unknown or not roles:
        raise click.UsageError(f"unknown role {unknown}; there are {', '.join(ROLES)}")
    from reconciler import daemon, logs, settings

    logs.configure(as_json=as_json, as_service=True)
    daemon.main(settings.load(config), roles=roles)
