"""How we log: an event name and facts; JSON for machines, coloured lines for a terminal."""

import contextlib
import json
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog


def configure(
    *,
    stream: TextIO | None = None,
    level: int = logging.INFO,
    as_json: bool = False,
    as_service: bool = False,
) -> None:
    """
    Send every log line to *stream* (stderr): JSON where that is no terminal, or *as_json*.

    A process that runs for years (*as_service*) says so once, and its lines cost less from then on.

    Results go to stdout; nothing that is said to a person ever mixes with them.
    """
    out = stream or sys.stderr
    terminal = out.isatty() and not as_json
    renderer: Any = (
        structlog.dev.ConsoleRenderer(timestamp_key="ts", pad_event_to=0)
        if terminal
        else as_json_line
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            *([] if terminal else [event_first]),
            structlog.processors.format_exc_info,
            escape_controls,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", Unfailing(out))),
        cache_logger_on_first_use=as_service,
    )
    for noisy in ("httpx", "httpcore", "apscheduler", "uvicorn", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def event_first(_: object, __: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Put the event's name first, where a person looks for it."""
    return {"event": facts.pop("event", ""), **facts}


# Made once: `json.dumps` would make an encoder for every line, at more than the line itself costs.
_ENCODED = json.JSONEncoder(ensure_ascii=True, default=repr).encode


def as_json_line(_: object, __: str, facts: MutableMapping[str, Any]) -> str:
    """One line for a machine; what JSON does not know is written as Python shows it."""
    return _ENCODED(facts)


def escape_controls(
    _: object, __: str, facts: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Escape control characters: a sender's text must not forge lines or colour a terminal."""
    for name, value in facts.items():
        if name == "exception":  # a traceback has lines of its own
            facts[name] = "\n".join(map(_escaped, str(value).split("\n")))
        elif isinstance(value, str):
            facts[name] = _escaped(value)
    return facts


def _escaped(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


class Unfailing:
    """
    A stream that loses what cannot be written, as to a disk that is full.

    What a line tells of must not fail because nobody could be told.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()
