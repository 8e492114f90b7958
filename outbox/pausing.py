"""Pauses: while one stands nothing is sent to a destination, or nothing of one effect."""

from typing import Any

from sqlalchemy import RowMapping, and_, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.flow_tables import pauses
from outbox.store import PENDING, outbox

ALL = ""  #: instead of an effect: all that goes to the destination


async def pause(
    connection: AsyncConnection,
    destination: str,
    *,
    effect: str = ALL,
    actor: str,
    reason: str | None,
) -> bool:
    """
    Send nothing to *destination* (of *effect*) any more; False if it was paused already.

    It counts from the next lease of every process; calls that are under way end as they will.
    The caller owns the transaction.
    """
    proposed = insert(pauses).values(
        destination=destination, effect=effect, actor=actor, reason=reason
    )
    done = await connection.execute(
        proposed.on_conflict_do_nothing().returning(pauses.c.destination)
    )
    return done.one_or_none() is not None


async def resume(connection: AsyncConnection, destination: str, *, effect: str = ALL) -> bool:
    """Send again; False if it was not paused. The caller owns the transaction."""
    standing = and_(pauses.c.destination == destination, pauses.c.effect == effect)
    done = await connection.execute(delete(pauses).where(standing).returning(pauses.c.destination))
    return done.one_or_none() is not None


async def paused(connection: AsyncConnection) -> list[RowMapping]:
    """Every pause that stands: destination, effect (empty: all), paused_at, actor, reason."""
    standing = select(pauses).order_by(pauses.c.destination, pauses.c.effect)
    return list((await connection.execute(standing)).mappings())


async def standing(
    connection: AsyncConnection, destination: str, *, effect: str = ALL
) -> RowMapping | None:
    """The pause of *destination* (of *effect*), if one stands."""
    meant = and_(pauses.c.destination == destination, pauses.c.effect == effect)
    return (await connection.execute(select(pauses).where(meant))).mappings().one_or_none()


async def waiting(connection: AsyncConnection, destination: str, *, effect: str = ALL) -> int:
    """How many entries a pause of *destination* (and *effect*) makes wait."""
    meant: list[Any] = [outbox.c.destination == destination, outbox.c.state == PENDING]
    if effect != ALL:
        meant.append(outbox.c.effect == effect)
    found = await connection.scalar(
        select(func.count()).where(and_(*meant, outbox.c.due_at.is_not(None)))
    )
    return found or 0
