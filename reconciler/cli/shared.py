"""What every command has in common: its options, its JSON, its errors and exit codes."""

import asyncio
import base64
import errno
import functools
import json
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import click

from reconciler import exact_json
from reconciler.cli.terminal import folded, room
from reconciler.errors import DatabaseAwayError, ReconcilerError

SCHEMA = "reconciler.cli/1"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})  #: no more can be written

T = TypeVar("T")
Command = Callable[..., Any]


def config_option(command: Command) -> Command:
    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The configuration file; else $RECONCILER_CONFIG, ./config/reconciler.toml, "
        "/etc/reconciler/reconciler.toml.",
    )(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def reports_errors(command: Command) -> Command:
    """Say what is wrong and what to do on stderr, and exit with the error's own code."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        require_text(kwargs.values())
        try:
            return command(*args, **kwargs)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            give_up_output()
            sys.exit(141)
        except Exception as error:
            known = named(error)
            if known is None:
                raise
            click.echo(f"error: {printable_lines(str(known))}", err=True)
            if known.hint:
                click.echo(f"hint: {printable_lines(known.hint)}", err=True)
            sys.exit(known.exit_code)

    return wrapped


def named(error: Exception) -> ReconcilerError | None:
    """What *error* is to whoever called the command; None where it is a mistake of ours."""
    if isinstance(error, ReconcilerError) and not isinstance(error, DatabaseAwayError):
        return error
    if isinstance(error, OSError):
        if error.filename is not None or error.errno not in FULL:
            return None
        give_up_output()
        return ReconcilerError(f"the output cannot be written: {error.strerror}")
    from reconciler.transactions import said_to_a_person

    return said_to_a_person(error)


def give_up_output() -> None:
    """Where stdout takes no more, keep Python from trying again, and complaining, when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def require_text(words: Iterable[object]) -> None:
    """Refuse words of the command line that are no UTF-8: nothing that we hold is called so."""
    for word in words:
        if isinstance(word, tuple):
            require_text(word)
        elif isinstance(word, str) and not word.isprintable() and any(map(_is_half, word)):
            raise click.UsageError(f"{printable(word)} is not UTF-8")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one command's work, quietly interruptible; what it has to say goes to stderr."""
    from reconciler import logs

    logs.configure(level=logging.WARNING)
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        sys.exit(130)


def emit(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout; a sender's numbers with all their digits."""
    written = exact_json.dumps({"schema": SCHEMA, **plain(document)})
    if not written.isprintable():  # JSON escapes ESC, but neither C1 nor what turns text round
        written = "".join(
            each if each.isprintable() else json.dumps(each)[1:-1] for each in written
        )
    click.echo(written)


def plain(value: Any) -> Any:
    """
    What JSON can say without loss: times in RFC 3339 UTC, ids as text, numbers as they are.

    >>> from decimal import Decimal
    >>> plain({"at": datetime(2026, 12, 1, tzinfo=UTC), "amount": Decimal("12.30")})
    {'at': '2026-12-01T00:00:00Z', 'amount': Decimal('12.30')}
    """
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case UUID():
            return str(value)
        case Mapping():
            return {str(name): plain(member) for name, member in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(member) for member in value]
        case bytes():
            return value.hex()
        case _:
            return value


def table(rows: list[tuple[Any, ...]], *, head: tuple[str, ...], drop_empty: bool = False) -> None:
    """
    Print *rows* under *head*, columns as wide as they need to be; what may be long goes last.

    What does not fit into the terminal goes below. *drop_empty* leaves out the columns in which
    no row has anything.
    """
    if drop_empty and rows:
        kept = [at for at in range(len(head)) if any(row[at] not in (None, "") for row in rows)]
        head = tuple(head[at] for at in kept)
        rows = [tuple(row[at] for at in kept) for row in rows]
    cells = [head, *[tuple("" if cell is None else brief(cell) for cell in row) for row in rows]]
    for line in folded(cells, width=room()):
        click.echo(line)


def brief(value: object) -> str:
    """
    A value in a table: as printable, times to the second.

    >>> brief(datetime(2026, 12, 1, 20, 41, 48, 120507, tzinfo=UTC))
    '2026-12-01T20:41:48Z'
    """
    return printable(value.replace(microsecond=0) if isinstance(value, datetime) else value)


def counted(number: int, one: str) -> str:
    """
    A number of things that form their plural with an s.

    >>> counted(1, "row"), counted(0, "row")
    ('1 row', '0 rows')
    """
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def body_of(document: Mapping[str, Any]) -> tuple[str, str]:
    """
    The name and the text of the line that shows the bytes of *document*: as text if they are.

    >>> body_of({"body_base64": "eyJhIjogMX0="}), body_of({"body_base64": "/wA="})
    (('body', '{"a": 1}'), ('body_base64', '/wA='))
    """
    encoded = document["body_base64"]
    if encoded is None:
        return "body", "not kept"
    try:
        lines = base64.b64decode(encoded).decode().rstrip("\n").split("\n")
        return "body", "\n  ".join(printable(line.rstrip("\r")) for line in lines)
    except UnicodeDecodeError:
        return "body_base64", encoded


def printable(value: object) -> str:
    """Text for a terminal: a sender's control characters must not reach it."""
    said = plain(value)
    text = said if isinstance(said, str) else exact_json.dumps(said)
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def printable_lines(text: str) -> str:
    """Text of several lines for a terminal, each as printable."""
    return "\n".join(map(printable, text.split("\n")))


def _is_half(character: str) -> bool:
    """Whether a byte that was no UTF-8 became this half of a surrogate pair."""
    return "\ud800" <= character <= "\udfff"
