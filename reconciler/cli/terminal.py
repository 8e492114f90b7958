"""How wide the terminal is, and how lines and tables fit into it; a pipe is as wide as you like."""

import os
import sys
import textwrap
from collections.abc import Sequence

import click

INDENT = 4  #: of what goes on in a further line


def room(*, err: bool = False) -> int | None:
    """Columns of the terminal that stdout (stderr) is; None where it is none."""
    stream = sys.stderr if err else sys.stdout
    return (os.get_terminal_size(stream.fileno()).columns or None) if stream.isatty() else None


def say(text: str, *, err: bool = False, indent: int = 2) -> None:
    """Print a line; on a terminal it is broken between words, and goes on indented."""
    click.echo(broken(text, width=room(err=err), indent=indent), err=err)


def broken(text: str, *, width: int | None, indent: int) -> str:
    """
    *text* in lines of *width*. Words are never cut: an id is copied whole.

    >>> print(broken("019adf5e-7c1b  capture at payments  refused: busy", width=30, indent=2))
    019adf5e-7c1b  capture at
      payments  refused: busy
    """
    if width is None or len(text) <= width:
        return text
    return textwrap.fill(
        text,
        width=max(width, 2 * indent),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def folds(widths: Sequence[int], *, width: int | None) -> list[range]:
    """
    Which columns stand in which line of a row, so that none is cut that fits into a line.

    >>> folds([20, 9, 36], width=80), folds([20, 36, 36, 30], width=80), folds([20, 90], width=None)
    ([range(0, 3)], [range(0, 2), range(2, 4)], [range(0, 2)])
    """
    lines: list[range] = []
    begin, taken = 0, 0
    for at, wide in enumerate(widths):
        taken += wide + (2 if at > begin else 0)
        if width is not None and taken > width and at > begin:
            lines.append(range(begin, at))
            begin, taken = at, INDENT + wide
    return [*lines, range(begin, len(widths))]


def folded(rows: Sequence[Sequence[str]], *, width: int | None) -> list[str]:
    """
    The lines of a table, whose first row is its head; what does not fit beside goes below.

    >>> print("\\n".join(folded([("at", "id", "error"), ("10:00", "7c1b", "no")], width=12)))
    at     id
        error
    10:00  7c1b
        no
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    parts = folds(widths, width=width)
    lines = []
    for row in rows:
        for part in parts:
            cells = "  ".join(row[at].ljust(widths[at]) for at in part).rstrip()
            below = part.start > 0
            if cells or not below:
                lines.append(broken(" " * INDENT * below + cells, width=width, indent=INDENT))
    return lines
