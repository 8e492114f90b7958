"""Taking due entries, for as long as a lease. Callers own the transaction."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import State
from outbox.lease_statement import AHEAD_BYTES, LEASE, NEVER_ANSWERED
from outbox.resting import Follow, rested
from outbox.settling import record_attempts
from outbox.windows import EVERYTHING, Window, bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How much may be taken for one destination, and by which of its limits."""

    destination: str
    free: int  #: calls that may begin at once, as far as others leave slots
    lease: timedelta
    hold_after_dead: bool
    max_attempts: int
    key_life: timedelta
    concurrency: int | None = None  #: calls under way at once over all processes; None: any number
    ahead: int = 0  #: further ones, that begin when a call ends that is under way
    ahead_bytes: int = AHEAD_BYTES  #: of the bodies of all, where some of them are ahead
    waiting: int = 0  #: leased by us for the same before, and not under way yet
    busy: bool = False  #: calls of ours are under way, whose slots others can have
    redriven: bool = False  #: which ones: those that a person gave new attempts, or the others
    probe: bool = False
    window: Window = EVERYTHING


class Leased(NamedTuple):
    """An entry that is ours to call, once, until its lease ends."""

    id: UUID
    sender: str
    event_id: str
    effect: str
    destination: str
    ordered: bool  #: it is in a lane: others may wait for it
    idempotent: bool
    idempotency_key: str | None
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    attempt: int  #: the number of this call, and the token that fences its failure
    tries: int  #: calls since it was enqueued or last redriven, this one included
    refusals: int
    maybe_sent: bool  #: an earlier attempt may have taken effect
    probe: bool  #: the one call that an open breaker lets through
    was_due_at: datetime  #: when it was due before it was leased
    leased_at: datetime
    lease_ends: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """An entry that was due and must not be called any more."""

    id: UUID
    sender: str
    event_id: str
    effect: str
    destination: str
    state: State
    reason: str


class Space(NamedTuple):
    """How much of one destination a lease could take."""

    room: int  #: entries; no more than it took, where it was not to take more
    slots: int  #: of its concurrency, that neither others nor calls of ours were using
    cut: bool  #: it was not to take all that it found


class Lease(NamedTuple):
    """What one statement took, the first that were due first."""

    leased: list[Leased]
    given_up: list[GivenUp]
    spaces: Mapping[str, Space]  #: of each destination that was asked for


async def lease(
    connection: AsyncConnection,
    wanted: Sequence[Wanted],
    *,
    ended: Collection[tuple[UUID, int]] = (),
    follow: Follow | None = None,
) -> Lease:
    """
    Take due entries; nobody else calls them until their leases end.

    What is due but has used itself up (its attempts, its key's lifetime, its own time, or a call
    that was never closed to a destination that is not idempotent) is given up in the same
    statement. *ended* are calls, by entry and attempt, of which only we know yet that they are
    not under way any more. What *follow* wants of those given up is written with it.
    """
    rows = [
        {
            "destination": one.destination,
            "free": one.free,
            "lease": one.lease.total_seconds(),
            "hold": one.hold_after_dead,
            "max_attempts": one.max_attempts,
            "key_life": one.key_life.total_seconds(),
            "concurrency": one.concurrency,
            "ahead": one.ahead,
            "ahead_bytes": one.ahead_bytes,
            "waiting": one.waiting,
            "busy": one.busy,
            "redriven": one.redriven,
            "probe": one.probe,
            **bounds(one.window),
        }
        for one in wanted
    ]
    over = [{"id": str(id_), "attempt": attempt} for id_, attempt in ended]
    found = await LEASE.rows(connection, rows=rows, ended=over)
    spaces = {row.of: Space(row.room, row.slots, row.cut) for row in found}
    taken = [row for row in found if row.id is not None]
    taken.sort(key=lambda row: (row.was_due_at, row.id.int))
    unanswered = [row for row in taken if row.was_open]
    if unanswered:
        await record_attempts(connection, [_unanswered(row) for row in unanswered])
    leased = [_leased(row) for row in taken if row.state == State.PENDING]
    resting_now = [row for row in taken if row.state != State.PENDING]
    given_up = [_given_up(row) for row in resting_now]
    if follow is not None and resting_now:
        resting = [rested(row) for row in resting_now if follow.wants(row.effect, State(row.state))]
        if resting:
            await follow.follow(connection, resting)
    return Lease(leased, given_up, spaces)


def _leased(row: Row[Any]) -> Leased:
    return Leased(
        id=row.id,
        sender=row.sender,
        event_id=row.event_id,
        effect=row.effect,
        destination=row.destination,
        ordered=row.ordered or row.lane is not None,
        idempotent=row.idempotent,
        idempotency_key=row.idempotency_key,
        method=row.method or "",
        path=row.path or "",
        headers=_headers(row.headers),
        body=row.body or b"",
        attempt=row.attempts,
        tries=row.attempts - row.attempts_before,
        refusals=row.refusals,
        maybe_sent=row.was_maybe_sent,
        probe=row.probe,
        was_due_at=row.was_due_at,
        leased_at=row.leased_at,
        lease_ends=row.due_at,
    )


_UNSENDABLE: Mapping[str, str] = MappingProxyType({"": ""})  # nothing is named so (RFC 9110, 5.1)


@lru_cache(maxsize=256)
def _headers(text: str | None) -> Mapping[str, str]:
    """
    Headers as they were frozen; those of one effect are mostly the same.

    What somebody else put there, and is none, cannot be sent: that is that one entry's end.
    """
    try:
        read = json.loads(text or "{}") or {}
    except (ValueError, RecursionError):  # a number too long for Python, arrays too deep for it
        return _UNSENDABLE
    return MappingProxyType(read) if isinstance(read, dict) else _UNSENDABLE


def _given_up(row: Row[Any]) -> GivenUp:
    return GivenUp(
        id=row.id,
        sender=row.sender,
        event_id=row.event_id,
        effect=row.effect,
        destination=row.destination,
        state=State(row.state),
        reason=row.last_error,
    )


def _unanswered(row: Row[Any]) -> dict[str, Any]:
    """The attempt before this one, which nobody closed; it began a lease before its lease ended."""
    started_at = row.was_due_at - timedelta(seconds=row.lease_seconds)
    return {
        "id": str(row.id),
        "attempt": row.was_attempts,
        "started_at": started_at.isoformat(),
        "verdict": None,
        "error": NEVER_ANSWERED,
    }
