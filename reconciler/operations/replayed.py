"""What is told of events that a person replayed: one item each, in print, in JSON, in `actions`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler.ledger.batch import Result
from reconciler.ledger.event import Outcome
from reconciler.ledger.rendering import Rendered
from reconciler.ledger.rowsets import AnyRow
from reconciler.operations import actions
from reconciler.operations.acting import Order

Item = dict[str, Any]


class Fate(StrEnum):
    """What became of one event that a person replayed."""

    REPLAYED = "replayed"  #: it is claimed at last; `outcome` says what it came to
    RENDERED = "rendered"  #: it was claimed; what could not be called before is due now
    SUPERSEDED = "superseded"  #: it had been claimed meanwhile; the copy is closed
    CLOSED = "closed"  #: somebody else closed the copy meanwhile
    DUPLICATE = "duplicate"  #: it is claimed, and there is nothing to do
    QUARANTINED = "quarantined"  #: it fails still; the copy stays open
    UNRENDERED = "unrendered"  #: what it asks for cannot be rendered still
    GONE = "gone"  #: its bytes are not kept any more
    BUSY = "busy"  #: another transaction holds it


FAILED = frozenset({Fate.QUARANTINED, Fate.UNRENDERED, Fate.GONE, Fate.BUSY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which copies, or which unrendered effects, are meant."""

    sender: str | None = None
    fault: str | None = None  #: part of what is said of them
    since: datetime | None = None
    before: datetime | None = None


def fate_of(result: Result) -> Fate:
    match result.outcome:
        case Outcome.DUPLICATE:
            return Fate.SUPERSEDED
        case Outcome.QUARANTINED:
            return Fate.QUARANTINED
        case (
            Outcome.APPLIED
            | Outcome.STALE
            | Outcome.TIED
            | Outcome.LATE
            | Outcome.DEFERRED
            | Outcome.IGNORED
        ):
            return Fate.REPLAYED


async def note(connection: AsyncConnection, order: Order, item: Item) -> None:
    """Write the act down, in its own transaction."""
    await actions.record(
        connection,
        actor=order.actor,
        action="events.replay",
        subject=subject_of(item),
        reason=order.reason,
    )


def subject_of(item: Item) -> dict[str, Any]:
    names = ("sender", "event_id", "kind", "key", "copy", "result", "outcome", "fault")
    said = {name: item[name] for name in names if item.get(name) is not None}
    return {name: str(value) for name, value in said.items()}


def item_of(
    copy: AnyRow,
    fate: Fate,
    *,
    result: Result | None = None,
    fault: str | None = None,
    failures: int | None = None,
) -> Item:
    """What is told of one event of a copy."""
    event = result.event if result is not None else None
    if fate is Fate.QUARANTINED and failures is None:
        failures = copy.failures + 1
    version = None if event is None else event.version
    return {
        "sender": copy.sender,
        "event_id": copy.event_id if event is None else event.event_id,
        "copy": copy.id,
        "result": fate,
        "outcome": None if result is None else result.outcome.value,
        "fault": result.fault if result is not None and result.fault else fault,
        "failures": copy.failures if failures is None else failures,
        "state": copy.state if fate is Fate.CLOSED else None,
        "kind": None if event is None else event.kind,
        "key": None if event is None else event.key,
        "version": None if version is None else str(version),
        "effects": [
            {
                "effect": one.effect,
                "destination": one.destination,
                "idempotency_key": one.idempotency_key,
                "state": one.state.value,
                "reason": one.reason,
            }
            for one in (result.effects if result is not None else ())
        ],
    }


def rendered_item(
    sender: str,
    event_id: str,
    fate: Fate,
    *,
    rendered: Sequence[Rendered] = (),
    fault: str | None = None,
) -> Item:
    """What is told of an event that was claimed before."""
    about = rendered[0] if rendered else None
    return {
        "sender": sender,
        "event_id": event_id,
        "copy": None,
        "result": fate,
        "outcome": Outcome.DUPLICATE.value,
        "fault": fault,
        "failures": 0,
        "state": None,
        "kind": about.kind if about else None,
        "key": about.key if about else None,
        "version": None,
        "effects": [
            {
                "id": one.id,
                "effect": one.effect,
                "destination": one.destination,
                "idempotency_key": one.idempotency_key,
                "state": one.state.value,
                "reason": one.reason,
            }
            for one in rendered
        ],
    }
