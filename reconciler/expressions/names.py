"""Which names an expression may use where, and headers that do not mind their case."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

ENVELOPE_NAMES = frozenset({"body", "headers"})
"""`event`, `from`, `also_read`; with `root="body"` any other name is a member of `body`."""

BECOMES_NAMES = frozenset({"state", "kind", "key", "sender"})
"""`becomes`, which is evaluated twice: over `state`, and over `previous` in its place."""

EFFECT_NAMES = BECOMES_NAMES | {
    *("body", "headers", "event_id", "type", "occurred_at", "origin"),
    *("version", "previous", "current", "change", "effect"),
}
"""`when`, `params`, `request`, `json`, `headers` and `idempotency_key`."""

PATH_NAMES = frozenset({"key"})
"""The `path` of `get`."""

HANDSHAKE_NAMES = frozenset({"body", "headers", "query", "method"})
"""`when` and `text` of a handshake."""

ANSWER_NAMES = frozenset({"status", "headers", "body"})
"""`success_when` and `retry_when`, over a destination's answer."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, and which there are."""
    names = sorted(known)
    meant = get_close_matches(name, names, n=1)
    guess = f"did you mean {meant[0]!r}? " if meant else ""
    return f"{guess}known are {', '.join(names)}" if names else "no names are known here"


class CaseInsensitive(Mapping[str, str]):
    """
    Headers, found whatever their case; several lines of one name are joined by a comma.

    >>> CaseInsensitive([("X-Id", "1"), ("x-id", "2")])["X-ID"]
    '1, 2'
    """

    __slots__ = ("_lines",)

    def __init__(self, lines: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        self._lines: dict[str, str] = {}
        for name, value in lines.items() if isinstance(lines, Mapping) else lines:
            low = name.lower()
            self._lines[low] = f"{self._lines[low]}, {value}" if low in self._lines else value

    def __getitem__(self, name: str) -> str:
        return self._lines[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def __repr__(self) -> str:
        return f"CaseInsensitive({sorted(self._lines)})"  # names only: values may be secret


#: in `params` of `delivered`: the answer, and what an entry is known by
DELIVERED_NAMES = ANSWER_NAMES | {
    *("entry_id", "sender", "event_id", "effect", "part", "kind", "key", "destination"),
    "idempotency_key",
}

#: in the path of a look-up: what an entry is known by, and the JSON that it sent
LOOK_UP_NAMES = frozenset(
    {
        *("entry_id", "sender", "event_id", "effect", "part", "kind", "key", "destination"),
        *("idempotency_key", "request"),
    }
)
