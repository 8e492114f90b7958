"""Purge horizons: up to when a sender's claims may be gone, so that old events prove nothing."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Column, PrimaryKeyConstraint, Table, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from reconciler.database import metadata
from reconciler.ledger.rowsets import C, Time, record_set

purge_horizons = Table(
    "purge_horizons",
    metadata,
    Column("sender", C, nullable=False),
    Column("horizon", Time, nullable=False),
    PrimaryKeyConstraint("sender", name="purge_horizons_pkey"),
)


async def of_senders(connection: AsyncConnection, senders: Collection[str]) -> dict[str, datetime]:
    """The horizons of those of *senders* of which claims were ever purged."""
    found = await _OF_SENDERS.rows(connection, rows=[{"sender": sender} for sender in senders])
    return {row.sender: row.horizon for row in found}


async def move(connection: AsyncConnection, sender: str, horizon: datetime) -> None:
    """Say that claims made up to *horizon* may be gone; never backwards."""
    proposed = insert(purge_horizons).values(sender=sender, horizon=horizon)
    await connection.execute(
        proposed.on_conflict_do_update(
            index_elements=["sender"],
            set_={"horizon": func.greatest(purge_horizons.c.horizon, proposed.excluded.horizon)},
        )
    )


_asked = record_set("asked", {"sender": C}).c
_OF_SENDERS = Compiled(select(purge_horizons).where(purge_horizons.c.sender == _asked.sender))
