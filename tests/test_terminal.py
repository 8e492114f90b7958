"""Stories of what a stranger's text may do to the terminal, and a stranger's bytes to a command."""

import io
import json
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import pytest
import structlog
from click.testing import CliRunner

from reconciler import logs
from reconciler.cli import main, try_
from reconciler.cli.shared import emit, reports_errors
from reconciler.errors import ReconcilerError, UsageError
from reconciler.operations.reading import event_place, event_word, quarantine_place

EVIL = "a\x07\x9b31m\u202e\nforged"


def tame(written: str) -> bool:
    return written.replace("\n", "").isprintable()


def test_a_trial_shows_a_strangers_text_as_text(capsys: pytest.CaptureFixture[str]):
    """`try` is for bodies that somebody else wrote: none of it is spoken to the terminal."""
    effect = {"effect": "capture", "asked": True, "reason": EVIL, "state": "pending"}
    called = {"method": "POST", "path": "/x", "destination": "d"}
    sent = {"idempotency_key": EVIL, "body": EVIL}
    item: dict[str, Any] = {
        "event_id": EVIL,
        "type": EVIL,
        "outcome": "applied",
        "fault": EVIL,
        "kind": "order",
        "key": EVIL,
        "version": "1",
        "steps": [{"where": "apply[0]", "ran": False, "reason": EVIL}],
        "effects": [effect | called | sent, {"effect": "e", "asked": False, "reason": EVIL}],
    }

    try_.show(item)

    written = capsys.readouterr().out
    assert tame(written)
    assert not [line for line in written.splitlines() if line.startswith("forged")]


def test_json_on_a_terminal_is_only_json(capsys: pytest.CaptureFixture[str]):
    """JSON escapes ESC by itself, but neither C1 controls nor what turns the text round."""
    emit({"items": [{"event_id": EVIL, "name": "Zoë \U000e0041"}]})

    written = capsys.readouterr().out
    assert tame(written)
    assert "Zoë" in written
    assert EVIL == json.loads(written)["items"][0]["event_id"]
    assert "Zoë \U000e0041" == json.loads(written)["items"][0]["name"]


def test_an_error_is_told_as_text():
    """What went wrong may quote what is wrong; its lines stay lines."""

    @click.command()
    @reports_errors
    def fails() -> None:
        raise ReconcilerError("first\nrelation \x07\x9b is not there")

    assert "error: first\nrelation \\x07\\x9b is not there\n" == CliRunner().invoke(fails).stderr


@pytest.mark.parametrize(
    "words",
    [
        ["events", "list", "--key", "x\udcff"],
        ["events", "show", "shop", "\udcff"],
        ["reconcile", "shop", "order", "k\udcff"],
        ["try", "shop", "--body", "-", "--header", "X: \udcff"],
    ],
    ids=["an option", "an id", "a key", "one of several"],
)
def test_a_word_that_is_no_text_is_a_wrong_command_line(words: list[str]):
    """Bytes of another encoding in a shell's variable: exit 2, not a traceback."""
    told = CliRunner().invoke(main, words)

    assert 2 == told.exit_code
    assert "is not UTF-8" in told.stderr


def test_the_next_page_is_asked_for_by_a_word_that_a_shell_leaves_alone():
    """It is printed to be copied, and a sender's id stands in it."""
    moment = datetime(2026, 12, 1, 20, 54, 37, 329720, tzinfo=UTC)
    for event_id in (EVIL, "'; touch /tmp/x #", "$(x) `x` \\", "%41 evt", "evt_1"):
        word = event_word(moment, "shop", event_id)

        assert word == shlex.quote(word)
        assert (moment, "shop", event_id) == event_place(word)


@pytest.mark.parametrize("read", [event_place, quarantine_place])
def test_a_word_that_was_no_next_is_a_wrong_command_line(read: Callable[[str], object]):
    """Exit 2 with a sentence, not a traceback."""
    with pytest.raises(UsageError, match="is not the `next`"):
        read("zzz")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_traceback_in_the_log_is_told_as_text():
    """An exception may quote content, and the log may be a terminal."""
    out = Terminal()
    before = structlog.get_config()
    try:
        logs.configure(stream=out)
        structlog.get_logger().error("it.failed", exc_info=ValueError(EVIL))
    finally:
        structlog.configure(**before)

    written = out.getvalue()
    assert "ValueError" in written
    assert "\\x07\\x9b31m" in written
    assert not {"\x07", "\x9b", "\u202e"} & set(written)
