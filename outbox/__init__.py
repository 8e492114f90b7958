"""
A transactional outbox: entries written in your transaction, called by a relay.

An application needs these names, and `enqueue` from `outbox.enqueue`; everything else may change
with any version. docs/outbox-library.md shows them at work.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outbox.backoff import Backoff
    from outbox.destinations import Destination
    from outbox.destinations.http import HttpDestination
    from outbox.entry import Enqueued, NewEntry, State, outgoing_key
    from outbox.redriving import discard, redrive
    from outbox.relay import Policy, run, run_once
    from outbox.store import metadata
    from outbox.verdict import AnswerRules

__all__ = [
    "AnswerRules",
    "Backoff",
    "Destination",
    "Enqueued",
    "HttpDestination",
    "NewEntry",
    "Policy",
    "State",
    "discard",
    "metadata",
    "outgoing_key",
    "redrive",
    "run",
    "run_once",
]

_HOMES = {
    "AnswerRules": "outbox.verdict",
    "Backoff": "outbox.backoff",
    "Destination": "outbox.destinations",
    "Enqueued": "outbox.entry",
    "HttpDestination": "outbox.destinations.http",
    "NewEntry": "outbox.entry",
    "Policy": "outbox.relay",
    "State": "outbox.entry",
    "discard": "outbox.redriving",
    "metadata": "outbox.store",
    "outgoing_key": "outbox.entry",
    "redrive": "outbox.redriving",
    "run": "outbox.relay",
    "run_once": "outbox.relay",
}
_WITH_TABLES = ("outbox.generations", "outbox.positions", "outbox.flow_tables")


def __getattr__(name: str) -> Any:
    """Load a name when it is asked for: whoever only writes entries needs no HTTP client."""
    if name not in _HOMES:
        raise AttributeError(f"module 'outbox' has no attribute {name!r}")
    if name == "metadata":
        for module in _WITH_TABLES:
            import_module(module)
    return getattr(import_module(_HOMES[name]), name)
