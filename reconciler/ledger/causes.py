"""What a reaction hangs on: that something happened (fact), or that state became newer (change)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from reconciler.expressions import BECOMES_NAMES, EFFECT_NAMES, CaseInsensitive
from reconciler.ledger.event import Change, Event

NAMES = EFFECT_NAMES - {"effect"}  #: what `apply` and handlers may use

PATH_NAMES = frozenset(
    {"event_id", "type", "occurred_at", "origin", "body", "headers", "previous", "current"}
)  #: names whose value depends on who found a change out, or on what we happened to hold


def names_for(cause: Cause) -> dict[str, Any]:
    """Build the mapping that the expressions of *cause* see; once for all of its reactions."""
    event = cause.event
    return {
        "body": event.body,
        "headers": CaseInsensitive(event.headers),
        "sender": event.sender,
        "event_id": event.event_id,
        "type": event.type,
        "occurred_at": None if event.occurred_at is None else rfc3339(event.occurred_at),
        "origin": event.origin.value,
        "kind": event.kind,
        "key": event.key,
        "version": event.version,
        "state": event.state,
        "previous": event.previous,
        "current": event.current,
        "change": None if event.change is None else event.change.value,
    }


def names_before(names: Mapping[str, Any]) -> dict[str, Any]:
    """What `becomes` saw before the change: what we held in the place of what is held now."""
    return {name: names[name] for name in BECOMES_NAMES} | {"state": names["previous"]}


def rfc3339(moment: datetime) -> str:
    """
    Write *moment* in UTC.

    >>> rfc3339(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    '2026-01-02T03:04:05Z'
    """
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One fact or one change of one event, with what the guard found out about it."""

    event: Event  #: `previous`, `current` and `change` filled in
    what: Literal["fact", "change"]
    revision: int | None = None  #: of the resource's row; None: about no resource
    suppressed: str | None = None  #: why its effects are recorded as skipped (`baseline`)
    stale: bool = False  #: a fact that comes after newer state: counts where `if_stale` says so

    @property
    def deletes(self) -> bool:
        return self.event.change is Change.DELETED
