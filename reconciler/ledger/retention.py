"""Retention: claims and bodies that are old enough go, in batches that hold nothing up."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import retention as outbox
from reconciler import faults
from reconciler.database import prepare_transaction, transact
from reconciler.ledger import bodies, claims, horizons

BATCH = 10_000  #: rows a transaction

log = structlog.get_logger()


async def purge(
    engine: AsyncEngine,
    sender: str,
    *,
    keep_claims: timedelta,
    keep_bodies: timedelta,
    batch: int = BATCH,
) -> "Purged":
    """Remove what of one sender is older than it has to be kept; entries before their claims."""
    return Purged(
        bodies=await purge_bodies(engine, sender, keep_bodies, batch=batch),
        entries=await purge_entries(engine, sender, keep_claims, batch=batch),
        claims=await purge_claims(engine, sender, keep_claims, batch=batch),
    )


async def purge_claims(
    engine: AsyncEngine, sender: str, keep: timedelta, *, batch: int = BATCH
) -> int:
    """
    Remove claims older than *keep*, and say up to when events may be forgotten now (P11).

    Deferred claims stay, and those of events that still have an outbox entry: a claim outlives
    its entries.
    """

    async def one_batch(connection: AsyncConnection) -> int:
        await prepare_transaction(connection)
        count, latest = await claims.purge(
            connection, sender, keep=keep, batch=batch, spared=outbox.has_entry
        )
        faults.point("between-purge-and-horizon")
        if latest is not None:
            await horizons.move(connection, sender, latest)
        return count

    return await until_done(engine, one_batch, batch=batch, what="claims", sender=sender)


async def purge_bodies(
    engine: AsyncEngine, sender: str, keep: timedelta, *, batch: int = BATCH
) -> int:
    """Remove bodies older than *keep*; those of deferred events stay, their facts need them."""

    async def one_batch(connection: AsyncConnection) -> int:
        await prepare_transaction(connection)
        return await bodies.purge(connection, sender, keep=keep, batch=batch)

    return await until_done(engine, one_batch, batch=batch, what="bodies", sender=sender)


async def purge_entries(
    engine: AsyncEngine, sender: str, keep: timedelta, *, batch: int = BATCH
) -> int:
    """Remove outbox entries that were over longer ago than *keep*, and the keys that they used."""

    async def entries(connection: AsyncConnection) -> int:
        await prepare_transaction(connection)
        return await outbox.purge(connection, sender, keep=keep, batch=batch)

    async def keys(connection: AsyncConnection) -> int:
        await prepare_transaction(connection)
        return await outbox.purge_keys(connection, sender, keep=keep, batch=batch)

    gone = await until_done(engine, entries, batch=batch, what="entries", sender=sender)
    await until_done(engine, keys, batch=batch, what="keys", sender=sender)
    return gone


async def until_done(
    engine: AsyncEngine,
    one_batch: Callable[[AsyncConnection], Awaitable[int]],
    *,
    batch: int,
    what: str,
    sender: str,
) -> int:
    """Purge batch after batch, a transaction each, until one is not full."""
    total = 0
    while True:
        count = await transact(engine, one_batch)
        total += count
        if count < batch:
            break
        faults.point("between-purges")
    if total:
        log.info("retention.purged", what=what, sender=sender, rows=total)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """How many rows of one sender were removed."""

    claims: int
    bodies: int
    entries: int
