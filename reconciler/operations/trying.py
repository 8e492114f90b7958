"""`try`: a sample delivery through the real transaction, which is then rolled back."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.ledger.apply import apply
from reconciler.ledger.batch import Result
from reconciler.ledger.commit import set_limits
from reconciler.ledger.event import Event
from reconciler.ledger.reactions import Asked, Explained, UserStepError
from reconciler.operations.assembly import Assembly
from reconciler.operations.naming import require_sender
from reconciler.receiver.envelope import Malformed, read_delivery

Document = dict[str, Any]


async def attempt(
    engine: AsyncEngine, assembly: Assembly, *, sender: str, raw: bytes, headers: Mapping[str, str]
) -> Document:
    """
    Say what a delivery of *sender* would come to; the signature is not asked for.

    Everything really runs, your statements and handlers too, and everything is rolled back.
    Raises UsageError for an unknown sender.
    """
    require_sender(assembly.contracts, sender)
    contract = assembly.contracts[sender]
    lowered = {name.lower(): value for name, value in headers.items()}
    delivery = read_delivery(contract, raw, lowered)
    async with engine.connect() as connection:
        transaction = await connection.begin()
        try:
            await set_limits(connection, assembly.rules)
            items = [await tried(connection, assembly, event) for event in delivery.events]
        finally:
            await transaction.rollback()
    return {"items": items, "rolled_back": True}


async def tried(
    connection: AsyncConnection, assembly: Assembly, event: Event | Malformed
) -> Document:
    """Apply one event after those before it; one that fails is undone alone, as in a batch."""
    if isinstance(event, Malformed):
        return {"event_id": event.event_id, "outcome": "quarantined", "fault": event.fault}
    explained: list[Explained] = []
    try:
        async with connection.begin_nested():
            (result,) = await apply(connection, assembly.rules, [event], explain=explained)
    except UserStepError as error:
        return {**failed(event, str(error)), "steps": steps(explained)}
    except DBAPIError as error:
        return failed(event, str(error.orig))
    return told(result, explained)


def failed(event: Event, fault: str) -> Document:
    return {
        "event_id": event.event_id,
        "type": event.type,
        "outcome": "quarantined",
        "fault": fault,
    }


def told(result: Result, explained: Sequence[Explained]) -> Document:
    event, now = result.event, result.now
    return {
        "event_id": event.event_id,
        "type": event.type,
        "outcome": result.outcome.value,
        "fault": result.fault,
        "kind": event.kind,
        "key": event.key,
        "version": None if event.version is None else str(event.version),
        "change": result.change.value if result.change else None,
        "previous": result.previous,
        "state": now.state if now else None,
        "steps": steps(explained),
        "effects": [
            *[asked_for(effect) for effect in result.effects],
            *[
                {"effect": one.effect, "asked": False, "reason": one.reason}
                for explanation in explained
                for one in explanation.not_asked
            ],
        ],
    }


def steps(explained: Sequence[Explained]) -> list[Document]:
    """Your statements and handlers: which ran, on what, and which did not and why."""
    return [
        {
            "where": ran.where,
            "on": explanation.cause.what,
            "ran": True,
            "values": ran.values,
            "rows": ran.rows,
            "expected": ran.expected,
        }
        for explanation in explained
        for ran in explanation.ran
    ] + [
        {
            "where": passed.where,
            "on": explanation.cause.what,
            "ran": False,
            "reason": passed.reason,
        }
        for explanation in explained
        for passed in explanation.passed
    ]


def asked_for(effect: Asked) -> Document:
    body = effect.entry.body
    return {
        "effect": effect.effect,
        "asked": True,
        "destination": effect.destination,
        "idempotency_key": effect.idempotency_key,
        "state": effect.state.value,
        "reason": effect.reason,
        "method": effect.entry.method,
        "path": effect.entry.path,
        "headers": effect.entry.headers,
        "body": None if body is None else body.decode("utf-8", "replace"),
        "body_base64": None if body is None else base64.b64encode(body).decode(),
    }
