"""`reconciler completion`."""

from pathlib import Path

import click
from click.shell_completion import ShellComplete, get_completion_class

from reconciler.cli.completing import ASKED_BY
from reconciler.cli.shared import config_option, emit, json_option, reports_errors

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@config_option
@json_option
@reports_errors
def command(*, shell: str, config: Path | None, as_json: bool) -> None:  # noqa: ARG001
    """
    Print the script that lets SHELL complete commands, options, and the names of senders,
    kinds, destinations and effects.

    They are read from the configuration, when they are asked for; never from the database.

    \b
    Example:
      reconciler completion bash > ~/.local/share/bash-completion/completions/reconciler
      reconciler completion zsh > ~/.zfunc/_reconciler
      reconciler completion fish > ~/.config/fish/completions/reconciler.fish
    """
    text = script(shell)
    if as_json:
        emit({"shell": shell, "script": text})
    else:
        click.echo(text)


def script(shell: str) -> str:
    """Click's own script for *shell*."""
    from reconciler.cli import main

    kind = get_completion_class(shell)
    assert kind is not None
    # not its own `source`, which for bash asks another bash how old it is
    return ShellComplete.source(kind(main, {}, "reconciler", ASKED_BY)).strip()
