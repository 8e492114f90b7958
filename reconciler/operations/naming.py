"""Names that a person says, held against those that are configured."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from reconciler.errors import UsageError
from reconciler.settings import Settings


def require_sender(senders: Collection[str], name: str) -> None:
    """Raise UsageError where no sender of that name is configured."""
    if name not in senders:
        raise UsageError(not_configured("sender", name, senders))


def not_configured(what: str, name: str, known: Iterable[str]) -> str:
    """
    Say that a name is nobody's, and whose names there are.

    >>> not_configured("sender", "shpo", ["shop"])
    "no sender 'shpo' is configured; there are: shop"
    """
    return f"no {what} {name!r} is configured; there are: {', '.join(known) or 'none'}"


def unknown_names(settings: Settings, said: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the names in *said*; entries of what was configured once may be kept."""
    known: dict[str, Collection[str]] = {
        "sender": settings.senders,
        "destination": settings.destinations,
        "effect": settings.effects,
    }
    for what, names in known.items():
        if what in said and said[what] not in names:
            yield not_configured(what, said[what], names)
