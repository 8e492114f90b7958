"""What commands that act have in common: who acts, which moment is meant, a yes, and progress."""

import os
import pwd
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from reconciler.cli.shared import printable
from reconciler.errors import NeedsDecisionError

PAUSE = 2.0  #: seconds between two words of progress
MOST = 100_000  #: of one bulk act

Command = Callable[..., Any]


def reason_option(*, required: bool = False) -> Callable[[Command], Command]:
    told = "Why; it is written down beside the act."
    return click.option(
        "--reason",
        required=required,
        metavar="TEXT",
        help=told,
        callback=_said if required else None,
    )


def _said(_: click.Context, __: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("it says nothing")
    return value


def yes_option(command: Command) -> Command:
    return click.option("--yes", is_flag=True, help="Do not ask; needed without a terminal.")(
        command
    )


def limit_option(command: Command) -> Command:
    return click.option(
        "--limit",
        type=click.IntRange(1, MOST),
        default=1000,
        show_default=True,
        help="With filters: at the most so many.",
    )(command)


class Moment(click.ParamType[datetime]):
    """A time with its offset, or how long ago: `2026-12-01T10:00:00Z`, `90m`, `2h ago`."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        from reconciler.settings.values import parse_duration

        try:
            ago = parse_duration(value.removesuffix(" ago"))
            if isinstance(ago, timedelta):
                return datetime.now(UTC) - ago
        except (ValueError, OverflowError):
            pass
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            self.fail(
                f"{printable(value)} is neither a time with its offset, like "
                "2026-12-01T10:00:00Z, nor how long ago, like 90m, 2h or 3d",
                param,
                ctx,
            )
        return moment


def actor() -> str:
    """Who acts: the person behind sudo, else the user of this process."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"uid {os.getuid()}"
    behind = os.environ.get("SUDO_USER", "")
    return behind if behind and behind.isprintable() else user


def require_yes(*, yes: bool, what: str) -> bool:
    """
    Whether a person still has to be asked. Raises NeedsDecisionError where nobody can be.

    >>> require_yes(yes=True, what="redrive")
    False
    """
    if not yes and not sys.stdin.isatty():
        raise NeedsDecisionError(
            f"nobody is there to confirm that you want to {what}",
            hint="--yes confirms it; --dry-run shows what would be done",
        )
    return not yes


class Progress:
    """Says on stderr how far a long run is, every now and then."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told = time.monotonic()

    def at(self, number: int) -> None:
        now = time.monotonic()
        if now - self._told >= PAUSE:
            self._told = now
            click.echo(f"... {number} {self._what} so far", err=True)
