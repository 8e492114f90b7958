"""Effects that tell of what we ourselves meet, asked for in the transaction that makes it true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.enqueue import enqueue
from outbox.entry import NewEntry
from outbox.store import outbox
from reconciler import database
from reconciler.exact_json import Json
from reconciler.ledger import quarantine
from reconciler.ledger.causes import Cause, names_for
from reconciler.ledger.effects import Effect, entries_for
from reconciler.ledger.event import Event, Origin
from reconciler.ledger.rowsets import storable
from reconciler.ledger.triggers import OURSELVES


async def tell(connection: AsyncConnection, alerts: Sequence[Effect], event: Event) -> None:
    """
    Ask for the effects that tell of *event*, one of our own; each once for one event id.

    The caller owns the transaction, the one that makes it true. Whoever comes second, of two
    replicas, finds that it was told. An effect whose `when` refuses it is asked the next time.
    """
    wanted = [one for one in alerts if one.gate.takes_fact(OURSELVES, event.type)]
    if not wanted:
        return
    cause = Cause(event=event, what="fact")
    for effect in wanted:
        made = entries_for(effect, cause, names_for(cause), now=event.occurred_at)
        for entry in [] if isinstance(made, str) else made:
            if await _was_told(connection, entry):
                continue
            try:
                async with connection.begin_nested():
                    await enqueue(connection, [entry])
            except IntegrityError:
                continue  # another replica has just told of it


async def _was_told(connection: AsyncConnection, entry: NewEntry) -> bool:
    told = select(outbox.c.id).where(
        outbox.c.sender == entry.sender,
        outbox.c.event_id == entry.event_id,
        outbox.c.effect == entry.effect,
        outbox.c.part == entry.part,
        outbox.c.repetition == 0,
    )
    return await connection.scalar(told) is not None


def met(what: str, about: Sequence[str], body: Mapping[str, Json], *, now: datetime) -> Event:
    """That *what* was met, as an event of our own; *about* says when it is the same once more."""
    return Event(
        sender=OURSELVES,
        event_id=":".join((what, *about)),
        type=what,
        origin=Origin.OWN,
        occurred_at=now,
        body=dict(body),
    )


def hour_of(now: datetime) -> str:
    """The hour in which the first of its kind is told of, and the others are not."""
    return now.strftime("%Y-%m-%dT%H")


async def set_aside(  # noqa: PLR0913, PLR0917 - the parts of one delivery
    connection: AsyncConnection,
    alerts: Sequence[Effect],
    sender: str,
    raw: bytes,
    headers: Mapping[str, str],
    fault: str,
    event_id: str | None = None,
) -> int:
    """
    Keep a delivery that could not be applied; how often it has failed by now.

    The first of an hour of *sender* is told of, whatever it is.
    """
    failures = await quarantine.keep(connection, sender, raw, headers, fault, event_id)
    if alerts:
        now = await database.now(connection)
        told: dict[str, Json] = {
            "sender": sender,
            "event_id": None if event_id is None else storable(event_id),
            "reason": storable(fault),
            "failures": failures,
        }
        await tell(connection, alerts, met("quarantined", (sender, hour_of(now)), told, now=now))
    return failures
