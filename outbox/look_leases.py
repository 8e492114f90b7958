"""Taking uncertain entries to look them up, for as long as a lease. Callers own the transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.destinations import Destination
from outbox.look_statements import LATER, TAKE
from outbox.looking_up import Looked

AT_ONCE = 4  # looks under way at one destination, in this process


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """An uncertain entry that is ours to look up, once, until its lease ends."""

    id: UUID
    destination: str
    effect: str
    names: Mapping[str, Any]  #: what the look-up's path may name
    attempts: int
    looks: int  #: the number of this look; with `attempts` it fences what is made of it
    since: timedelta  #: since the last attempt ended, by the database's clock
    leased_at: datetime
    probe: bool = False  #: the one look that an open breaker lets through


async def take(connection: AsyncConnection, wanted: Sequence[Mapping[str, Any]]) -> list[Unknown]:
    """Take what is due to be looked up; nobody else looks at it until the lease ends."""
    return [_unknown(row) for row in await TAKE.rows(connection, rows=list(wanted))]


async def put_off(connection: AsyncConnection, one: Unknown, looked: Looked) -> None:
    """Write down when to look again, or that it is a person's turn; a later look's is kept."""
    await LATER.count(connection, rows=[_later(one, looked)])


def wanted_of(name: str, destination: Destination, *, lease: timedelta) -> dict[str, Any] | None:
    """Which uncertain entries of one destination are looked up; None: none of them."""
    by_effect = destination.look_ups
    every = [one for one in (destination.look_up, *by_effect.values()) if one is not None]
    if not every:
        return None
    only = None
    if destination.look_up is None:
        only = [effect for effect, one in by_effect.items() if one is not None]
    return {
        "destination": name,
        "only": only,
        "never": [effect for effect, one in by_effect.items() if one is None],
        "lease": lease.total_seconds(),
        "free": AT_ONCE,
    }


def _unknown(row: Any) -> Unknown:
    names = ("sender", "event_id", "effect", "part", "kind", "key", "destination")
    return Unknown(
        id=row.id,
        destination=row.destination,
        effect=row.effect,
        names={
            **{name: getattr(row, name) for name in (*names, "idempotency_key")},
            "entry_id": str(row.id),
            "request": bytes(row.body or b""),
        },
        attempts=row.attempts,
        looks=row.looks,
        since=timedelta(seconds=row.since),
        leased_at=row.leased_at,
    )


def _later(one: Unknown, looked: Looked) -> dict[str, Any]:
    given_up = f"; looked up {one.looks} times, the last time: {looked.reason}"
    return {
        "id": str(one.id),
        "looks": one.looks,
        "attempts": one.attempts,
        "wait": None if looked.wait is None else looked.wait.total_seconds(),
        "told": given_up if looked.wait is None else "",
    }
