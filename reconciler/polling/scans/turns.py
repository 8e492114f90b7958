"""Whose turn it is: when slots are due, and where the next scan begins."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler.ledger.rowsets import interval
from reconciler.polling.scans.table import REFUSALS, is_slot, scans
from reconciler.polling.slots import Mode, Slot
from reconciler.polling.watermark import Stamp


async def register(connection: AsyncConnection, slots: Iterable[Slot]) -> None:
    """
    Make sure that each slot has its row, due at once. Never changes one that is there.

    The key is named, so that this fails where a restore has not made it yet: a row of ours would
    keep it from being made.
    """
    for slot in sorted(slots):
        await connection.execute(
            insert(scans)
            .values(sender=slot.sender, kind=slot.kind, mode=slot.mode, due_at=func.now())
            .on_conflict_do_nothing(index_elements=["sender", "kind", "mode"])
        )


async def set_watermark(
    connection: AsyncConnection, slot: Slot, stamp: Stamp, text: str, *, next_in: timedelta
) -> None:
    """
    Let the incremental scans of *slot* go on from where a full scan was complete.

    Never backwards; but where the sender has refused their requests, the full scan's watermark
    stands in for theirs even if it is earlier, and they are tried again after *next_in*.
    """
    refused = func.coalesce(scans.c.checkpoint["refused"].as_integer(), 0) >= REFUSALS
    behind = or_(scans.c.watermark_ns.is_(None), scans.c.watermark_ns < stamp.ns)
    await connection.execute(
        update(scans)
        .where(is_slot(slot), or_(refused, behind))
        .values(watermark=text, watermark_ns=stamp.ns)
    )
    await connection.execute(
        update(scans)
        .where(is_slot(slot), refused)
        .values(
            checkpoint=None,
            failures=0,
            last_error=None,
            due_at=func.clock_timestamp() + interval(next_in),
        )
    )


async def bring_forward(connection: AsyncConnection, intervals: Mapping[Slot, timedelta]) -> None:
    """
    Let no slot wait longer than its interval as it is now configured.

    It may have been completed under a longer one, or by a clock that was set back since.
    """
    for slot, every in sorted(intervals.items()):
        latest = func.clock_timestamp() + interval(every)
        turn = func.least(latest, scans.c.last_completed_at + interval(every))
        await connection.execute(
            update(scans)
            .where(is_slot(slot), scans.c.failures == 0, scans.c.due_at > turn)
            .values(due_at=turn)
        )


async def make_due(connection: AsyncConnection, slot: Slot) -> None:
    """Let the slot run at once."""
    await connection.execute(
        update(scans)
        .where(is_slot(slot), scans.c.due_at > func.clock_timestamp())
        .values(due_at=func.clock_timestamp())
    )


async def start_over(connection: AsyncConnection) -> None:
    """
    Let every slot run at once and from the first page, also those whose pass is under way.

    A pass that went back in time has not seen again what changed behind it; the fence ends it.
    """
    await connection.execute(
        update(scans).values(
            checkpoint=None,
            pass_started_at=None,
            owner=None,
            fence=scans.c.fence + 1,
            lease_until=None,
            failures=0,
            due_at=func.clock_timestamp(),
        )
    )


async def due(connection: AsyncConnection) -> list[Slot]:
    """The slots that are due and that nobody holds, the longest due first."""
    statement = (
        select(scans.c.sender, scans.c.kind, scans.c.mode)
        .where(scans.c.due_at <= func.clock_timestamp())
        .where(or_(scans.c.lease_until.is_(None), scans.c.lease_until < func.clock_timestamp()))
        .order_by(scans.c.due_at)
    )
    return [
        Slot(sender=row.sender, kind=row.kind, mode=Mode(row.mode))
        for row in await connection.execute(statement)
    ]


async def states(connection: AsyncConnection) -> dict[tuple[str, str, str], Row[Any]]:
    """Every slot as it stands, by sender, kind and mode; for operators."""
    statement = select(scans).order_by(scans.c.sender, scans.c.kind, scans.c.mode)
    rows = (await connection.execute(statement)).all()
    return {(row.sender, row.kind, row.mode): row for row in rows}


async def state_of(connection: AsyncConnection, slot: Slot) -> Row[Any] | None:
    return (await connection.execute(select(scans).where(is_slot(slot)))).one_or_none()
