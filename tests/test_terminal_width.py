"""What commands print fits into the terminal, and an id in it can be copied whole."""

import doctest
import fcntl
import importlib
import os
import pkgutil
import pty
import struct
import subprocess
import sys
import termios

import pytest

from reconciler import cli

MODULES = sorted(each.name for each in pkgutil.iter_modules(cli.__path__))
ID = "019adf5e-7c1b-7d5e-9c55-0d2a8c1f2a10"
PRINTS = f"""
from reconciler.cli.shared import table
from reconciler.cli.terminal import say

head = ("created_at", "state", "attempts", "effect", "destination", "key", "id", "last_error")
table(
    [("2026-12-01T10:00:00Z", "dead", 1, "capture", "payments", "ord_42", "{ID}", "answered 422")],
    head=head,
)
say("{ID}  capture at payments about order ord_42  redriven; it was dead")
"""


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_command_are_true(name: str):
    """What a docstring shows is what comes out."""
    assert 0 == doctest.testmod(importlib.import_module(f"reconciler.cli.{name}")).failed


def test_a_terminal_of_80_columns():
    """A table that is wider goes on below, a sentence breaks between words; no id is cut."""
    shown = printed_on_a_terminal(columns=80)

    assert [
        "created_at            state  attempts  effect   destination  key",
        "    id                                    last_error",
        "2026-12-01T10:00:00Z  dead   1         capture  payments     ord_42",
        f"    {ID}  answered 422",
        f"{ID}  capture at payments about order ord_42",
        "  redriven; it was dead",
    ] == shown


def test_a_wide_terminal():
    """Where there is room a row is a line."""
    head, row, sentence = printed_on_a_terminal(columns=200)

    assert head.endswith("last_error")
    assert row.endswith(f"{ID}  answered 422")
    assert sentence.endswith("redriven; it was dead")


def printed_on_a_terminal(*, columns: int) -> list[str]:
    """The lines that *PRINTS* writes to a terminal so wide."""
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    child = subprocess.Popen([sys.executable, "-c", PRINTS], stdout=theirs, env=environment)
    os.close(theirs)
    written = b""
    while chunk := read_or_end(terminal):
        written += chunk
    os.close(terminal)
    assert 0 == child.wait()
    return written.decode().replace("\r\n", "\n").splitlines()


def read_or_end(terminal: int) -> bytes:
    """What was written; b"" at its end, which Linux tells by EIO."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
