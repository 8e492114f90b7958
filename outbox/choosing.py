"""Which entries a person means who does not name them one by one."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import State
from outbox.store import narrowed, outbox


async def find(  # noqa: PLR0913 - filters
    connection: AsyncConnection,
    *,
    state: State,
    since: datetime | None = None,
    before: datetime | None = None,
    after: UUID | None = None,
    limit: int,
    **about: Any,
) -> Sequence[UUID]:
    """
    The ids of entries in *state*, in their order, beginning behind *after*.

    *since* and *before* are held against when the entry came to rest; *about* as in `narrowed`,
    None for what is not said.
    """
    said: Mapping[str, Any] = {name: value for name, value in about.items() if value is not None}
    statement = select(outbox.c.id).where(outbox.c.state == state.value, *narrowed(said))
    if since is not None:
        statement = statement.where(outbox.c.completed_at >= since)
    if before is not None:
        statement = statement.where(outbox.c.completed_at < before)
    if after is not None:
        statement = statement.where(outbox.c.id > after)
    return (await connection.scalars(statement.order_by(outbox.c.id).limit(limit))).all()
