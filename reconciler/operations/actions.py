"""What people did: each act is written down in the transaction in which it happens."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Column, PrimaryKeyConstraint, Table, Text, Uuid, func, insert, or_, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import uuid7
from outbox.forgetting import Old
from reconciler.database import metadata
from reconciler.ledger.rowsets import AnyRow, Time

actions = Table(
    "actions",
    metadata,
    Column("id", Uuid, nullable=False),
    Column("at", Time, nullable=False, server_default=func.now()),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", JSONB, nullable=False),
    Column("reason", Text),
    PrimaryKeyConstraint("id", name="actions_pkey"),
)


async def record(
    connection: AsyncConnection,
    *,
    actor: str,
    action: str,
    subject: Mapping[str, Any],
    reason: str | None,
) -> UUID:
    """
    Write down that *actor* did *action* to *subject*; the id of that note.

    The caller owns the transaction: what is done and that it was done commit together.
    """
    id_ = uuid7()
    await connection.execute(
        insert(actions).values(
            id=id_, actor=actor, action=action, subject=dict(subject), reason=reason
        )
    )
    return id_


async def record_all(
    connection: AsyncConnection,
    *,
    actor: str,
    action: str,
    subjects: Sequence[Mapping[str, Any]],
    reason: str | None,
) -> None:
    """Write down that *actor* did *action* to each of *subjects*; the caller's transaction."""
    rows = [
        {"id": uuid7(), "actor": actor, "action": action, "subject": dict(one), "reason": reason}
        for one in subjects
    ]
    if rows:
        await connection.execute(insert(actions).values(rows))


def old(keep: timedelta) -> Old:
    """What was done longer ago than *keep*; there are few of these rows, people made them."""
    return Old(table=actions, by="at", keep=keep)


async def listed(
    connection: AsyncConnection,
    *,
    action: str | None = None,
    limit: int = 50,
    after: UUID | None = None,
) -> Sequence[AnyRow]:
    """What people did, the latest first; *after* is the id of the last one seen."""
    statement = select(actions).order_by(actions.c.id.desc()).limit(limit)
    if action is not None:
        statement = statement.where(actions.c.action == action)
    if after is not None:
        statement = statement.where(actions.c.id < after)
    return (await connection.execute(statement)).all()


async def about(
    connection: AsyncConnection, subjects: Sequence[Mapping[str, str]], *, limit: int
) -> Sequence[AnyRow]:
    """What people did to any of *subjects*, each some names of a subject; the latest first."""
    meant = [actions.c.subject.contains(dict(subject)) for subject in subjects]
    statement = select(actions).where(or_(*meant)).order_by(actions.c.id.desc()).limit(limit)
    return (await connection.execute(statement)).all()
