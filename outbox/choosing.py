"""Which entries a person means who does not name them one by one."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import State
from outbox.store import narrowed, outbox


async def find(
    connection: AsyncConnection,
    *,
    after: UUID | None = None,
    limit: int,
    **said: Any,
) -> Sequence[UUID]:
    """
    The ids of entries that *said* means, in their order, beginning behind *after*.

    `state` is said always; `since` and `before` are held against when an entry came to rest, and
    so is `upto`, by which what was never written down came to rest long ago; the others are those
    of `narrowed`. None is what is not said.
    """
    statement = select(outbox.c.id).where(*_meant(**said))
    if after is not None:
        statement = statement.where(outbox.c.id > after)
    return (await connection.scalars(statement.order_by(outbox.c.id).limit(limit))).all()


async def count(connection: AsyncConnection, **said: Any) -> int:
    """How many entries *said* means, as in `find`."""
    return await connection.scalar(select(func.count()).where(*_meant(**said))) or 0


async def destinations(connection: AsyncConnection, **said: Any) -> list[str]:
    """Where the entries that *said* means go, as in `find`."""
    found = await connection.scalars(select(outbox.c.destination).where(*_meant(**said)).distinct())
    return sorted(found)


async def count_about(
    connection: AsyncConnection, sender: str, kind: str, key: str
) -> dict[str, int]:
    """How many entries there are about one resource, by state."""
    statement = (
        select(outbox.c.state, func.count())
        .where(outbox.c.sender == sender, outbox.c.kind == kind, outbox.c.key == key)
        .group_by(outbox.c.state)
    )
    return {row[0]: row[1] for row in await connection.execute(statement)}


def _meant(
    *,
    state: State,
    since: datetime | None = None,
    before: datetime | None = None,
    upto: datetime | None = None,
    **about: Any,
) -> list[ColumnElement[bool]]:
    said: Mapping[str, Any] = {name: value for name, value in about.items() if value is not None}
    found = [outbox.c.state == state.value, *narrowed(said)]
    if since is not None:
        found.append(outbox.c.completed_at >= since)
    if before is not None:
        found.append(outbox.c.completed_at < before)
    if upto is not None:
        found.append(func.coalesce(outbox.c.completed_at, outbox.c.created_at) <= upto)
    return found
