"""The table of the slots of scans; only this package writes SQL on it."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    and_,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from reconciler.database import metadata
from reconciler.ledger.rowsets import C, Time
from reconciler.polling.slots import Slot

scans = Table(
    "scans",
    metadata,
    Column("sender", C, nullable=False),
    Column("kind", C, nullable=False),
    Column("mode", Text, nullable=False),
    Column("watermark", Text),
    Column("watermark_ns", BigInteger),
    Column("checkpoint", JSONB(none_as_null=True)),
    Column("run_id", Uuid),
    Column("pass_started_at", Time),
    Column("last_completed_at", Time),
    Column("due_at", Time, nullable=False),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("last_error", Text),
    Column("owner", Uuid),
    Column("fence", BigInteger, nullable=False, server_default=text("0")),
    Column("lease_until", Time),
    PrimaryKeyConstraint("sender", "kind", "mode", name="scans_pkey"),
    CheckConstraint("mode in ('full', 'incremental')", name="scans_mode_known"),
)

REFUSALS = 2  #: so many refused incremental requests make the next scan a full one


def is_slot(slot: Slot) -> ColumnElement[bool]:
    return and_(
        scans.c.sender == slot.sender, scans.c.kind == slot.kind, scans.c.mode == slot.mode.value
    )
