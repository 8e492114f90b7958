"""The options by which entries of the outbox are chosen, the same for every command."""

from collections.abc import Callable
from typing import Any

import click

from reconciler.cli.acting import Moment

Command = Callable[..., Any]

CHOOSING = "--destination, --effect, --sender, --kind, --key, --error, --older-than, --younger-than"


def choosing_options(command: Command) -> Command:
    """What entries are about, what is said of their last attempt, and when they were asked for."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


OPTIONS = (
    click.option("--destination", help="Only to this destination."),
    click.option("--effect", help="Only of this effect."),
    click.option("--sender", help="Only caused by this sender."),
    click.option("--kind", help="Only about this kind."),
    click.option("--key", help="Only about this resource."),
    click.option(
        "--error",
        "--reason-like",
        "error",
        metavar="TEXT",
        help="Only where this is part of the last error, or of why it was skipped.",
    ),
    click.option(
        "--older-than",
        "asked_before",
        type=Moment(),
        help="Only asked for longer ago, like 2h; or before a time.",
    ),
    click.option(
        "--younger-than",
        "asked_since",
        type=Moment(),
        help="Only asked for since then, like 2h ago; or since a time.",
    ),
)
