"""What asked for an effect that could not be rendered, kept so that it can be rendered later."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from reconciler import exact_json
from reconciler.exact_json import Json
from reconciler.ledger.causes import Cause
from reconciler.ledger.event import OWN_PREFIXES, Change, Event, Observation, Origin


def kept(cause: Cause) -> bytes | None:
    """
    Write *cause* down, as the effect saw it: state, what was held before, the version.

    What was delivered is not repeated: its bytes are kept elsewhere, for as long as bodies are.
    What the reconciler found out itself is kept nowhere else. None for what is nested too deeply.
    """
    event = cause.event
    document: dict[str, Json] = {
        "what": cause.what,
        "revision": cause.revision,
        "suppressed": cause.suppressed,
        "stale": cause.stale,
        "type": event.type,
        "origin": event.origin.value,
        "occurred_at": None if event.occurred_at is None else event.occurred_at.isoformat(),
        "body": event.body if is_ours(event.event_id) else None,
        "previous": _plain(event.previous),
        "current": _plain(event.current),
        "change": None if event.change is None else event.change.value,
        "observation": _observed(event.observation),
    }
    try:
        return exact_json.dumps(document).encode()
    except exact_json.NotJsonError:
        return None


def read(raw: bytes, event: Event) -> Cause:
    """
    Make the cause again: what was kept, over *event* as it was delivered.

    For what the reconciler found out itself *event* is only its sender and id.
    """
    document: Any = exact_json.parse(raw)
    seen = document["observation"]
    occurred_at = document["occurred_at"]
    told = replace(
        event,
        type=document["type"],
        origin=Origin(document["origin"]),
        occurred_at=None if occurred_at is None else datetime.fromisoformat(occurred_at),
        body=document["body"] if is_ours(event.event_id) else event.body,
        previous=document["previous"],
        current=document["current"],
        change=None if document["change"] is None else Change(document["change"]),
        observation=None if seen is None else Observation(**seen),
    )
    return Cause(
        event=told,
        what=document["what"],
        revision=document["revision"],
        suppressed=document["suppressed"],
        stale=document["stale"],
    )


def is_ours(event_id: str) -> bool:
    """Whether the reconciler made this event from what it listed or read."""
    return event_id.startswith(OWN_PREFIXES)


def _observed(seen: Observation | None) -> Json:
    if seen is None:
        return None
    return {
        "kind": seen.kind,
        "key": seen.key,
        "version": seen.version,
        "state": _plain(seen.state),
        "deleted": seen.deleted,
        "changed_at": seen.changed_at,
        "created_at": seen.created_at,
    }


def _plain(state: Mapping[str, Json] | None) -> Json:
    return None if state is None else dict(state)
