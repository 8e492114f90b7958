"""Leases on slots: taken, renewed with every write, fenced, and given back."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Update, case, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler.errors import BusyError
from reconciler.ledger.rowsets import interval, storable
from reconciler.polling.errors import LeaseLostError
from reconciler.polling.scans.table import is_slot, scans
from reconciler.polling.slots import Held, Lease, Slot
from reconciler.polling.watermark import Stamp

ERROR_LENGTH = 500  #: characters of an error that the row keeps


async def take(
    connection: AsyncConnection,
    slot: Slot,
    *,
    owner: UUID,
    lease: timedelta,
    only_when_due: bool,
) -> Held | None:
    """
    Take the slot for run *owner*; None while another run holds it, or before it is due.

    Once taken it stays ours for *lease*, by the database's clock, and longer by `renew`.
    """
    proposed = insert(scans).values(
        sender=slot.sender,
        kind=slot.kind,
        mode=slot.mode,
        due_at=func.clock_timestamp(),
        owner=owner,
        fence=1,
        lease_until=func.clock_timestamp() + interval(lease),
        run_id=owner,
    )
    # no function calls here (they would run on whichever node): `excluded.due_at` is the time
    asked_at = proposed.excluded.due_at
    free = or_(
        scans.c.lease_until.is_(None),
        scans.c.lease_until < asked_at,
        scans.c.owner == proposed.excluded.owner,
    )
    due = scans.c.due_at <= asked_at
    statement = proposed.on_conflict_do_update(
        index_elements=[scans.c.sender, scans.c.kind, scans.c.mode],
        set_={
            "owner": proposed.excluded.owner,
            "run_id": proposed.excluded.run_id,
            "lease_until": proposed.excluded.lease_until,
            "fence": case(
                (scans.c.owner == proposed.excluded.owner, scans.c.fence), else_=scans.c.fence + 1
            ),
        },
        where=free & due if only_when_due else free,
    ).returning(
        scans.c.fence,
        scans.c.checkpoint,
        scans.c.pass_started_at,
        scans.c.failures,
    )
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        return None
    return Held(
        lease=Lease(slot=slot, owner=owner, fence=row.fence, duration=lease),
        checkpoint=row.checkpoint,
        pass_started_at=row.pass_started_at,
        failures=row.failures,
    )


async def holder(connection: AsyncConnection, slot: Slot) -> BusyError:
    """Describe who holds the slot, for whoever was refused it."""
    found = select(scans.c.run_id, scans.c.lease_until).where(is_slot(slot))
    row = (await connection.execute(found)).one_or_none()
    run = f"run {row.run_id}" if row else "another run"
    return BusyError(
        f"{run} is scanning {slot.sender} {slot.kind} ({slot.mode})",
        hint="wait for it to end; if it was killed, its lease runs out by itself",
    )


async def renew(connection: AsyncConnection, lease: Lease) -> None:
    """Hold on to the slot. Raises LeaseLostError where another run has taken it over."""
    await _write(connection, lease, {})


async def begin_pass(
    connection: AsyncConnection, lease: Lease, *, checkpoint: Mapping[str, Any]
) -> datetime:
    """Start a pass from its first page, forgetting any other; return when it starts."""
    started = await connection.scalar(
        _held_by(lease)
        .values(checkpoint=dict(checkpoint), pass_started_at=func.clock_timestamp())
        .returning(scans.c.pass_started_at)
    )
    return _confirmed(lease, started)


async def save(
    connection: AsyncConnection,
    lease: Lease,
    *,
    checkpoint: Mapping[str, Any],
    watermark: tuple[Stamp, str] | None = None,
) -> datetime:
    """
    Write a pass's progress, in the transaction of the page that made it.

    Returns the database's time: a lower bound of when the next page is asked for.
    Raises LeaseLostError, so that a runner that was taken over commits nothing.
    """
    return await _write(connection, lease, {"checkpoint": dict(checkpoint), **_marked(watermark)})


async def complete(
    connection: AsyncConnection,
    lease: Lease,
    *,
    next_in: timedelta,
    watermark: tuple[Stamp, str] | None,
) -> None:
    """The pass is done: the slot is free, and due again *next_in* from now."""
    await _write(
        connection,
        lease,
        {
            **_marked(watermark),
            "checkpoint": None,
            "pass_started_at": None,
            "last_completed_at": func.clock_timestamp(),
            "due_at": func.clock_timestamp() + interval(next_in),
            "failures": 0,
            "last_error": None,
            "lease_until": None,
        },
        renewing=False,
    )


async def release(connection: AsyncConnection, lease: Lease, *, progressed: bool) -> None:
    """Stop before the pass is done; what it has done is kept, and the slot stays due."""
    values: dict[str, Any] = {"due_at": func.clock_timestamp(), "lease_until": None}
    if progressed:
        values |= {"failures": 0, "last_error": None}
    await _write(connection, lease, values, renewing=False)


async def fail(
    connection: AsyncConnection,
    lease: Lease,
    *,
    error: str,
    again_in: timedelta,
    checkpoint: Mapping[str, Any],
) -> None:
    """The run failed: say why and when to try again; *checkpoint* is where it goes on."""
    await _write(
        connection,
        lease,
        {
            "failures": scans.c.failures + 1,
            "last_error": storable(error)[:ERROR_LENGTH],
            "due_at": func.clock_timestamp() + interval(again_in),
            "checkpoint": dict(checkpoint),
            "lease_until": None,
        },
        renewing=False,
    )


async def _write(
    connection: AsyncConnection, lease: Lease, values: dict[str, Any], *, renewing: bool = True
) -> datetime:
    if renewing:
        values = {"lease_until": func.clock_timestamp() + interval(lease.duration), **values}
    statement = _held_by(lease).values(values).returning(func.clock_timestamp())
    return _confirmed(lease, await connection.scalar(statement))


def _marked(watermark: tuple[Stamp, str] | None) -> dict[str, Any]:
    """The watermark, unless a full scan has moved it further meanwhile."""
    if watermark is None:
        return {}
    stamp, text = watermark
    return {
        "watermark_ns": func.greatest(scans.c.watermark_ns, stamp.ns),
        "watermark": case((scans.c.watermark_ns > stamp.ns, scans.c.watermark), else_=text),
    }


def _held_by(lease: Lease) -> Update:
    """An update of the slot's row that finds none once another run has taken it over."""
    return update(scans).where(
        is_slot(lease.slot), scans.c.owner == lease.owner, scans.c.fence == lease.fence
    )


def _confirmed(lease: Lease, moment: datetime | None) -> datetime:
    if moment is None:
        raise LeaseLostError(
            f"another run has taken {lease.slot.sender} {lease.slot.kind} ({lease.slot.mode}) over"
        )
    return moment
