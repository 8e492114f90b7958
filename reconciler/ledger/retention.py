"""Retention: what one sender left and is old enough goes, in batches that hold nothing up."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import retention as outbox
from outbox.forgetting import BATCH, Gone, Old, Place, count, forget
from reconciler import faults
from reconciler.database import prepare_transaction
from reconciler.ledger import bodies, claims, corrections, horizons, quarantine
from reconciler.transactions import taking_up_to, transact

#: How long a purger that is stopped in the middle of a batch may hold what it deletes: a delivery
#: of one of those ids waits for it.
HOLD = timedelta(seconds=2)
BATCH_WITHIN = timedelta(seconds=40)  #: for each statement; shorter than a loop may stand still

WITH_BYTES = 1_000  #: rows of one batch that may be a mebibyte each, kept in two thousand pieces

log = structlog.get_logger()

OneBatch = Callable[[AsyncConnection, Place | None], Awaitable[Gone]]
Between = Callable[[float], Awaitable[bool]]


async def rest(seconds: float) -> bool:
    """Between two batches: as long as the last one took, so that others get their turn."""
    await asyncio.sleep(seconds)
    return True


async def purge(
    engine: AsyncEngine,
    sender: str,
    keep: "Keep",
    *,
    batch: int = BATCH,
    between: Between = rest,
) -> "Purged":
    """
    Remove what of one sender is older than it has to be kept; entries before their claims.

    *between* is awaited after each batch with the seconds that it took; False ends the run early.
    Raises DatabaseAwayError.
    """
    work = partial(until_done, engine, sender=sender, between=between)

    few = min(batch, WITH_BYTES)
    just, heavy = partial(plain, batch=batch), partial(plain, batch=few)

    def entries(connection: AsyncConnection, after: Place | None) -> Awaitable[Gone]:
        return outbox.purge(connection, sender, keep=keep.entries, after=after, batch=few)

    async def old_claims(connection: AsyncConnection, after: Place | None) -> Gone:
        """Claims go, and in the same commit it is said up to when events are forgotten (P11)."""
        old = claims.old(sender, keep.claims, spared=outbox.has_entry)
        gone = await forget(connection, old, after=after, batch=batch)
        faults.point("between-purge-and-horizon")
        if gone.latest is not None:
            await horizons.move(connection, sender, gone.latest)
        return gone

    return Purged(
        bodies=await work(heavy(bodies.old(sender, keep.bodies)), what="bodies"),
        entries=await work(entries, what="entries"),
        keys=await work(just(outbox.old_keys(sender, keep.keys)), what="keys"),
        claims=await work(old_claims, what="claims"),
        corrections=await work(just(corrections.old(sender, keep.claims)), what="corrections"),
        quarantine=await work(heavy(quarantine.old(sender, keep.quarantine)), what="quarantine"),
        undecided=0
        if keep.undecided is None
        else await work(heavy(quarantine.old_open(sender, keep.undecided)), what="undecided"),
    )


async def would_purge(connection: AsyncConnection, sender: str, keep: "Keep") -> "Purged":
    """What `purge` would remove now; deletes nothing."""
    spared = outbox.has_entry_after(keep.entries)
    with taking_up_to(connection, BATCH_WITHIN):
        return Purged(
            bodies=await count(connection, bodies.old(sender, keep.bodies)),
            entries=await count(connection, outbox.old_entries(sender, keep.entries)),
            keys=await count(connection, outbox.old_keys(sender, keep.keys, gone=keep.entries)),
            claims=await count(connection, claims.old(sender, keep.claims, spared=spared)),
            corrections=await count(connection, corrections.old(sender, keep.claims)),
            quarantine=await count(connection, quarantine.old(sender, keep.quarantine)),
            undecided=0
            if keep.undecided is None
            else await count(connection, quarantine.old_open(sender, keep.undecided)),
        )


def plain(old: Old, *, batch: int = BATCH) -> OneBatch:
    """Batches that remove what is old and nothing else."""
    return lambda connection, after: forget(connection, old, after=after, batch=batch)


async def until_done(
    engine: AsyncEngine,
    one_batch: OneBatch,
    *,
    what: str,
    sender: str | None,
    between: Between = rest,
) -> int:
    """Purge batch after batch, a transaction each, until all that is old was looked at."""
    total, after, going = 0, None, True
    while going:
        began = time.monotonic()
        gone = await transact(engine, partial(limited, one_batch, after))
        total, after = total + gone.rows, gone.last
        if after is None:
            break
        faults.point("between-purges")
        going = await between(time.monotonic() - began)
    if total:
        log.info("retention.purged", what=what, sender=sender, rows=total)
    return total


async def limited(one_batch: OneBatch, after: Place | None, connection: AsyncConnection) -> Gone:
    """One batch in a transaction that neither waits long nor lets others wait long."""
    await prepare_transaction(connection, lock_timeout=HOLD, idle=HOLD)
    with taking_up_to(connection, BATCH_WITHIN):
        return await one_batch(connection, after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How long what one sender left is kept."""

    claims: timedelta  #: and corrections, whose event may still come
    bodies: timedelta
    entries: timedelta  #: from when they were over
    keys: timedelta  #: that effects have used
    quarantine: timedelta  #: closed copies, from when they were seen last
    undecided: timedelta | None = None  #: open ones; None: until a person decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """How many rows of one sender were removed."""

    claims: int = 0
    bodies: int = 0
    entries: int = 0
    keys: int = 0
    corrections: int = 0
    quarantine: int = 0
    undecided: int = 0
