"""Giving back what was leased and not called. Callers own the transaction."""

from collections.abc import Sequence

from sqlalchemy import Boolean, Integer, Update, Uuid, case, update
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.leasing import Leased
from outbox.store import PENDING, Time, outbox, record_set


async def release(connection: AsyncConnection, leased: Sequence[Leased]) -> None:
    """
    Give back what was leased and certainly not sent, as if it had not been leased.

    Taking the attempt's number back is safe only because nobody else can be using it: the call
    was never made, and the lease is known again by the very time at which it ends.
    """
    rows = [
        {
            "id": str(one.id),
            "attempt": one.attempt,
            "lease_ends": one.lease_ends.isoformat(),
            "maybe_sent": one.maybe_sent,
            "due_at": one.was_due_at.isoformat(),
        }
        for one in sorted(leased, key=lambda one: one.id.int)
    ]
    await connection.execute(_RELEASE, {"rows": rows})


def _release_statement() -> Update:
    given = record_set(
        "given",
        {
            "id": Uuid(),
            "attempt": Integer(),
            "lease_ends": Time,
            "maybe_sent": Boolean(),
            "due_at": Time,
        },
    ).c
    return (
        update(outbox)
        .where(
            outbox.c.id == given.id,
            outbox.c.state == PENDING,
            outbox.c.attempts == given.attempt,
            outbox.c.due_at == given.lease_ends,
        )
        .values(
            attempts=outbox.c.attempts - 1,
            call_open=False,
            due_at=given.due_at,
            first_attempt_at=case((given.maybe_sent, outbox.c.first_attempt_at)),
        )
    )


_RELEASE = _release_statement()
