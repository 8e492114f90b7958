"""Entries that come to rest, as told to whoever follows them up in the same transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import State
from outbox.verdict import Answer, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Rested:
    """An entry that was delivered, or that is called no more by itself."""

    id: UUID
    sender: str
    event_id: str
    effect: str
    part: str
    kind: str | None
    key: str | None
    destination: str
    idempotency_key: str | None
    attempts: int
    state: State  #: delivered, dead or uncertain
    reason: str | None
    answer: Answer | Reply | None = None  #: of the call, or of the look-up, that decided it
    late: bool = False  #: it has waited too long to be kept waiting by what follows


class OverrunError(Exception):
    """What follows took too long for many at once; nothing of the transaction happened."""


class Follow(Protocol):
    """What follows when entries come to rest; written in the transaction in which they do."""

    def wants(self, effect: str, state: State) -> bool:
        """Whether anything follows at all; what nothing follows is not read back."""

    async def follow(self, connection: AsyncConnection, rested: Sequence[Rested]) -> None:
        """
        Write what follows. Whatever fails in it by itself must undo only itself.

        May raise OverrunError where it is for more than one and takes too long for all: then they
        are written one at a time.
        """


def rested(row: Any, *, answer: Answer | Reply | None = None, late: bool = False) -> Rested:
    """An entry as a statement returned it."""
    return Rested(
        id=row.id,
        sender=row.sender,
        event_id=row.event_id,
        effect=row.effect,
        part=row.part,
        kind=row.kind,
        key=row.key,
        destination=row.destination,
        idempotency_key=row.idempotency_key,
        attempts=row.attempts,
        state=State(row.state),
        reason=row.last_error,
        answer=answer,
        late=late,
    )


COLUMNS = (
    *("id", "sender", "event_id", "effect", "part", "kind", "key", "destination"),
    *("idempotency_key", "attempts", "state", "last_error"),
)
