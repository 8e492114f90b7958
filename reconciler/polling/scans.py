"""The slots of scans: who holds one, how far its pass is, when it is due; table and SQL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    bindparam,
    case,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import INTERVAL, JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler.database import metadata
from reconciler.errors import BusyError
from reconciler.polling.faults import LeaseLostError
from reconciler.polling.watermark import Stamp

scans = Table(
    "scans",
    metadata,
    Column("sender", Text(collation="C"), nullable=False),
    Column("kind", Text(collation="C"), nullable=False),
    Column("mode", Text, nullable=False),
    Column("watermark", Text),
    Column("watermark_ns", BigInteger),
    Column("checkpoint", JSONB(none_as_null=True)),
    Column("run_id", Uuid),
    Column("pass_started_at", DateTime(timezone=True)),
    Column("last_completed_at", DateTime(timezone=True)),
    Column("due_at", DateTime(timezone=True), nullable=False),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("last_error", Text),
    Column("owner", Uuid),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    Column("lease_until", DateTime(timezone=True)),
    PrimaryKeyConstraint("sender", "kind", "mode", name="scans_pkey"),
    CheckConstraint("mode in ('full', 'incremental')", name="scans_mode_known"),
)

ERROR_LENGTH = 500  #: characters of an error that the row keeps


class Mode(StrEnum):
    FULL = "full"  #: all of the listing
    INCREMENTAL = "incremental"  #: what changed since the watermark, less the look-back


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One of the scans that take turns: a kind of a sender, full or incremental."""

    sender: str
    kind: str
    mode: Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to run a slot until a time of the database's clock; its fence only grows."""

    slot: Slot
    owner: UUID  #: the run
    fence: int
    duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a slot was found with when it was taken."""

    lease: Lease
    checkpoint: Mapping[str, Any] | None
    pass_started_at: datetime | None
    now: datetime


async def register(connection: AsyncConnection, slots: Sequence[Slot]) -> None:
    """Make sure that each slot has its row, due at once. Never changes one that is there."""
    for slot in sorted(slots, key=_primary_key):
        await connection.execute(
            insert(scans)
            .values(sender=slot.sender, kind=slot.kind, mode=slot.mode, due_at=func.now())
            .on_conflict_do_nothing()
        )


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
        lease_until=func.clock_timestamp() + _interval(lease),
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
        func.clock_timestamp().label("now"),
    )
    row = (await connection.execute(statement)).one_or_none()
    if row is None:
        return None
    return Held(
        lease=Lease(slot=slot, owner=owner, fence=row.fence, duration=lease),
        checkpoint=row.checkpoint,
        pass_started_at=row.pass_started_at,
        now=row.now,
    )


async def holder(connection: AsyncConnection, slot: Slot) -> BusyError:
    """Describe who holds the slot, for whoever was refused it."""
    found = select(scans.c.run_id, scans.c.lease_until).where(_is(slot))
    row = (await connection.execute(found)).one_or_none()
    run = f"run {row.run_id}" if row else "another run"
    return BusyError(
        f"{run} is scanning {slot.sender} {slot.kind} ({slot.mode})",
        hint="wait for it to end; if it was killed, its lease runs out by itself",
    )


async def renew(connection: AsyncConnection, lease: Lease) -> None:
    """Hold on to the slot. Raises LeaseLostError where another run has taken it over."""
    await _write(connection, lease, {})


async def begin_pass(connection: AsyncConnection, lease: Lease) -> datetime:
    """Start a pass from its first page, forgetting any other; return when it starts."""
    return await _write(
        connection, lease, {"checkpoint": None, "pass_started_at": func.clock_timestamp()}
    )


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
    values: dict[str, Any] = {"checkpoint": dict(checkpoint)}
    if watermark is not None:
        values |= {"watermark_ns": watermark[0].ns, "watermark": watermark[1]}
    return await _write(connection, lease, values)


async def complete(connection: AsyncConnection, lease: Lease, *, next_in: timedelta) -> None:
    """The pass is done: the slot is free, and due again *next_in* from now."""
    await _write(
        connection,
        lease,
        {
            "checkpoint": None,
            "pass_started_at": None,
            "last_completed_at": func.clock_timestamp(),
            "due_at": func.clock_timestamp() + _interval(next_in),
            "failures": 0,
            "last_error": None,
            "lease_until": None,
        },
        renewing=False,
    )


async def release(connection: AsyncConnection, lease: Lease) -> None:
    """Stop before the pass is done; what it has done is kept, and the slot stays due."""
    await _write(
        connection,
        lease,
        {"due_at": func.clock_timestamp(), "lease_until": None, "failures": 0, "last_error": None},
        renewing=False,
    )


async def fail(
    connection: AsyncConnection,
    lease: Lease,
    *,
    error: str,
    again_in: timedelta,
    checkpoint: Mapping[str, Any] | None,
) -> None:
    """The run failed: say why and when to try again; *checkpoint* is where it goes on."""
    await _write(
        connection,
        lease,
        {
            "failures": scans.c.failures + 1,
            "last_error": error[:ERROR_LENGTH],
            "due_at": func.clock_timestamp() + _interval(again_in),
            "checkpoint": None if checkpoint is None else dict(checkpoint),
            "lease_until": None,
        },
        renewing=False,
    )


async def set_watermark(
    connection: AsyncConnection, slot: Slot, *, stamp: Stamp, text: str
) -> None:
    """Set the watermark of a slot, whoever holds it."""
    await connection.execute(
        update(scans).where(_is(slot)).values(watermark_ns=stamp.ns, watermark=text)
    )


async def _write(
    connection: AsyncConnection, lease: Lease, values: dict[str, Any], *, renewing: bool = True
) -> datetime:
    if renewing:
        values = {"lease_until": func.clock_timestamp() + _interval(lease.duration), **values}
    statement = (
        update(scans)
        .where(_is(lease.slot), scans.c.owner == lease.owner, scans.c.fence == lease.fence)
        .values(values)
        .returning(func.clock_timestamp())
    )
    now = await connection.scalar(statement)
    if now is None:
        raise LeaseLostError(
            f"another run has taken {lease.slot.sender} {lease.slot.kind} ({lease.slot.mode}) over"
        )
    assert isinstance(now, datetime)
    return now


def _is(slot: Slot) -> Any:
    return (
        (scans.c.sender == slot.sender)
        & (scans.c.kind == slot.kind)
        & (scans.c.mode == slot.mode.value)
    )


def _interval(duration: timedelta) -> Any:
    return bindparam(None, duration, type_=INTERVAL)


def _primary_key(slot: Slot) -> tuple[str, str, str]:
    return slot.sender, slot.kind, slot.mode.value
