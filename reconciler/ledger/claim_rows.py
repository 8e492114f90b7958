"""What the claim of an event says of it, as a row on its way to the server."""

import hashlib
from typing import Any

from sqlalchemy import BigInteger, Text

from reconciler import exact_json
from reconciler.ledger.event import Event, Outcome
from reconciler.ledger.rowsets import EVENT_ID, AnyRow, C

CLAIM_TYPES = {
    **EVENT_ID,
    "event_type": Text(),
    "kind": C,
    "key": C,
    "version": BigInteger(),
    "outcome": Text(),
    "body_digest": Text(),
    "state_digest": Text(),
}


def claim_row(event: Event, *, outcome: Outcome) -> dict[str, Any]:
    """What the claim of *event* says."""
    return {
        "sender": event.sender,
        "event_id": event.event_id,
        "event_type": event.type,
        "kind": event.kind,
        "key": event.key,
        "version": event.version,
        "outcome": outcome.value,
        "body_digest": body_digest(event),
        "state_digest": state_digest(event),
    }


def fact_row(claim_: AnyRow) -> dict[str, Any]:
    """A claim that is made already, as `claim_row` has it."""
    return {name: getattr(claim_, name) for name in CLAIM_TYPES}


def body_digest(event: Event) -> str:
    """SHA-256 of the delivery's exact bytes; of what was listed or read, for our own events."""
    if event.raw:
        return hashlib.sha256(event.raw).hexdigest()
    return exact_json.digest(event.body)


def state_digest(event: Event) -> str | None:
    """Digest of what the event itself says of the resource; None where it says nothing."""
    return None if event.state is None else exact_json.digest(event.state)
