"""The command line: parses words, calls an operation, prints what it returned."""

import importlib

import click

from reconciler.cli import completing

COMMANDS = {
    "serve": ("reconciler.cli.serve", "Run the daemon in the foreground."),
    "check": ("reconciler.cli.check", "Check the configuration as `serve` would."),
    "try": ("reconciler.cli.try_", "Run a sample delivery and roll it back."),
    "migrate": ("reconciler.cli.migrate", "Bring the database to this version's schema."),
    "reconcile": ("reconciler.cli.reconcile", "Compare with the sender and correct."),
    "baseline": ("reconciler.cli.baseline", "Show, complete or accept baselines."),
    "status": ("reconciler.cli.status", "Show what stands, waits and failed."),
    "events": ("reconciler.cli.events", "List, show, replay and discard events."),
    "outbox": ("reconciler.cli.outbox", "List and show calls; redrive, resolve, pause them."),
    "why": ("reconciler.cli.why", "Tell one resource's whole story."),
    "reapply": ("reconciler.cli.reapply", "Run your statements over the states held."),
    "purge": ("reconciler.cli.purge", "Remove what is older than it has to be kept."),
    "sql": ("reconciler.cli.sql", "Run an SQL script on the configured database."),
    "completion": ("reconciler.cli.completion", "Print a script that completes in your shell."),
    "sandbox": ("reconciler.cli.sandbox", "Play with a pretend shop and a pretend destination."),
    "demo": ("reconciler.cli.demo", "Prove it: a lossy sender, a forgetful destination."),
}


class LazyGroup(click.Group):
    """Commands by name; a command's module is imported when it is asked for, not before."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = module.command
        if completing.is_asked():
            completing.by_names(command)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="webhook-reconciler", prog_name="reconciler")
def main() -> None:
    """
    Receive webhooks, apply each once, call what they ask for, correct what never arrived.

    \b
    Example:
      reconciler demo
      reconciler check --config /etc/reconciler/reconciler.toml
      reconciler reconcile shop order ord_42 --dry-run
    """
