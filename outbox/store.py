"""The outbox's tables, and what people read from them."""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    DateTime,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    RowMapping,
    Table,
    TableValuedAlias,
    Text,
    UniqueConstraint,
    Uuid,
    bindparam,
    column,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from outbox.entry import State

metadata = MetaData(schema="outbox")  # a token: the engine's schema_translate_map says which

C = Text(collation="C")
Time = DateTime(timezone=True)

# Written out, not as parameters: only then can the planner see that the partial indexes apply.
PENDING: ColumnElement[str] = literal_column("'pending'", Text)
DEAD: ColumnElement[str] = literal_column("'dead'", Text)
UNCERTAIN: ColumnElement[str] = literal_column("'uncertain'", Text)
DELIVERED: ColumnElement[str] = literal_column("'delivered'", Text)
SKIPPED: ColumnElement[str] = literal_column("'skipped'", Text)
DISCARDED: ColumnElement[str] = literal_column("'discarded'", Text)
SECOND: ColumnElement[timedelta] = literal_column("interval '1 second'", Interval)

# Returned with the rows that a statement locks, so that it costs none of its own: a process that
# stops in the middle of its transaction lets go of them, and of what vacuum wants, in a minute.
# A query of its own within it is run once, and not for each row.
LETS_GO: ColumnElement[str] = select(
    func.set_config("idle_in_transaction_session_timeout", "60s", True)
).scalar_subquery()

outbox = Table(
    "outbox",
    metadata,
    Column("id", Uuid, nullable=False),
    Column("sender", C, nullable=False),
    Column("event_id", C, nullable=False),
    Column("effect", C, nullable=False),
    Column("part", C, nullable=False, server_default="0"),
    Column("repetition", Integer, nullable=False, server_default=text("0")),
    Column("kind", C),
    Column("key", C),
    Column("revision", BigInteger),
    Column("position", Integer, nullable=False, server_default=text("0")),
    Column("ordered", Boolean, nullable=False, server_default=text("false")),
    Column("destination", C, nullable=False),
    Column("idempotency_key", C),
    Column("method", Text),
    Column("path", Text),
    Column("headers", JSONB),
    Column("body", LargeBinary),
    Column("idempotent", Boolean, nullable=False, server_default=text("true")),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("call_open", Boolean, nullable=False, server_default=text("false")),
    Column("redriven", Boolean, nullable=False, server_default=text("false")),
    Column("refusals", Integer, nullable=False, server_default=text("0")),
    Column("due_at", Time),
    Column("first_attempt_at", Time),
    Column("last_error", Text),
    Column("created_at", Time, nullable=False, server_default=func.now()),
    Column("completed_at", Time),
    # How many attempts were used when it was last redriven: the budget counts from there.
    Column("attempts_before", Integer, nullable=False, server_default=text("0")),
    Column("lane", C),
    Column("lane_position", BigInteger),
    Column("hold_after_dead", Boolean),
    # Not called for the first time after this; its cause is too old by then.
    Column("expires_at", Time),
    Column("look_at", Time),
    Column("looks", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("id", name="outbox_pkey"),
    UniqueConstraint("sender", "event_id", "effect", "part", "repetition", name="outbox_once"),
    CheckConstraint(
        "state in ('pending','delivered','dead','uncertain','skipped','discarded')",
        name="outbox_state_known",
    ),
    # Every entry is updated at least twice; room on the page keeps those updates off the indexes.
    postgresql_with={"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.02},
)
Index(
    "outbox_due_idx",
    outbox.c.destination,
    outbox.c.redriven,
    outbox.c.due_at,
    postgresql_where=text("state = 'pending' and due_at is not null"),
)
Index(
    "outbox_lane_idx",
    outbox.c.destination,
    outbox.c.sender,
    outbox.c.kind,
    outbox.c.key,
    outbox.c.revision,
    outbox.c.position,
    postgresql_where=text("ordered and state in ('pending','uncertain','dead')"),
)
Index(
    "outbox_completed_idx",
    outbox.c.sender,
    outbox.c.completed_at,
    postgresql_where=text("completed_at is not null"),
)
# What stopped, to be found by whoever redrives it.
Index(
    "outbox_stopped_idx",
    outbox.c.state,
    outbox.c.id,
    postgresql_where=text("state in ('dead','uncertain','skipped')"),
)
Index("outbox_resource_idx", outbox.c.sender, outbox.c.kind, outbox.c.key)
Index(
    "outbox_named_lane_idx",
    outbox.c.lane,
    outbox.c.lane_position,
    postgresql_where=text("lane is not null and state in ('pending','uncertain','dead')"),
)
# All of a lane, also what is through: whether a call was overtaken, and whether a lane is empty.
Index(
    "outbox_lane_entries_idx",
    outbox.c.lane,
    outbox.c.lane_position,
    postgresql_where=text("lane is not null"),
)
# When an uncertain entry may be looked up; at once, where nobody has yet.
LOOK_DUE: ColumnElement[datetime] = func.coalesce(
    outbox.c.look_at, literal_column("'-infinity'::timestamptz", Time)
)
Index(
    "outbox_look_idx",
    outbox.c.destination,
    LOOK_DUE,
    postgresql_where=text("state = 'uncertain'"),
)
# Calls under way: as many as a destination takes at once, over all processes.
Index("outbox_open_idx", outbox.c.destination, outbox.c.due_at, postgresql_where=text("call_open"))

outbox_attempts = Table(
    "outbox_attempts",
    metadata,
    Column("entry_id", Uuid, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("started_at", Time, nullable=False),
    Column("finished_at", Time),
    Column("verdict", Text),
    Column("status", Integer),
    Column("error", Text),
    PrimaryKeyConstraint("entry_id", "attempt", name="outbox_attempts_pkey"),
)

effect_keys = Table(
    "effect_keys",
    metadata,
    Column("destination", C, nullable=False),
    Column("idempotency_key", C, nullable=False),
    Column("effect", C, nullable=False),
    Column("entry_id", Uuid, nullable=False),
    Column("sender", C, nullable=False),
    Column("kind", C),
    Column("key", C),
    Column("lasting", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", Time, nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("destination", "idempotency_key", name="effect_keys_pkey"),
)
Index(
    "effect_keys_created_idx",
    effect_keys.c.sender,
    effect_keys.c.created_at,
    postgresql_where=text("not lasting"),
)


def record_set(
    name: str, types: Mapping[str, TypeEngine[Any]], *, parameter: str = "rows"
) -> TableValuedAlias:
    """The JSON list in *parameter*, as rows: one parameter however many there are."""
    columns = [column(column_name, type_) for column_name, type_ in types.items()]
    records = func.jsonb_to_recordset(bindparam(parameter, type_=JSONB))
    return records.table_valued(*columns).render_derived(name=name, with_types=True)


async def list_entries(
    connection: AsyncConnection,
    *,
    state: State | None = None,
    about: Mapping[str, Any] | None = None,
    limit: int,
    after: UUID | None = None,
) -> list[RowMapping]:
    """
    Entries without their bodies, newest first, at most *limit*.

    *about* as in `narrowed`. *after* is the id of the last entry of the page before.
    """
    columns = [column for column in outbox.c if column.name != "body"]
    entries = select(*columns).order_by(outbox.c.id.desc()).limit(limit)
    entries = entries.where(*narrowed(about or {}))
    if state is not None:
        entries = entries.where(outbox.c.state == state.value)
    if after is not None:
        entries = entries.where(outbox.c.id < after)
    return list((await connection.execute(entries)).mappings())


def narrowed(about: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    """
    What *about* says of entries, by the names in NARROWING.

    `error` is part of what is said of the last attempt, or of why it was skipped; `asked_since`
    and `asked_before` are times, held against when it was asked for.
    """
    return [NARROWING[name](value) for name, value in about.items()]


async def show_entry(
    connection: AsyncConnection, id_: UUID
) -> tuple[RowMapping, list[RowMapping]] | None:
    """The whole of one entry, and its attempts in order; None if there is none of that id."""
    found = await connection.execute(select(outbox).where(outbox.c.id == id_))
    entry = found.mappings().one_or_none()
    if entry is None:
        return None
    attempts = await connection.execute(
        select(outbox_attempts)
        .where(outbox_attempts.c.entry_id == id_)
        .order_by(outbox_attempts.c.attempt)
    )
    return entry, list(attempts.mappings())


async def list_attempts(
    connection: AsyncConnection, ids: Collection[UUID], *, limit: int
) -> list[RowMapping]:
    """The attempts of entries, the latest first, at most *limit*."""
    given = record_set("given", {"id": Uuid()}).c
    attempts = (
        select(outbox_attempts)
        .where(outbox_attempts.c.entry_id == given.id)
        .order_by(outbox_attempts.c.started_at.desc(), outbox_attempts.c.attempt.desc())
        .limit(limit)
    )
    rows = [{"id": str(id_)} for id_ in sorted(ids)]
    return list((await connection.execute(attempts, {"rows": rows})).mappings())


async def counts(connection: AsyncConnection) -> dict[str, Any]:
    """Entries by state, and `oldest_due_at`: since when the oldest that is due has waited."""
    by_state = await connection.execute(
        select(outbox.c.state, func.count().label("entries")).group_by(outbox.c.state)
    )
    found = {row.state: row.entries for row in by_state}
    oldest = await connection.scalar(
        select(func.min(outbox.c.due_at)).where(
            outbox.c.state == PENDING, outbox.c.due_at <= func.now()
        )
    )
    return {**{state.value: found.get(state.value, 0) for state in State}, "oldest_due_at": oldest}


NARROWING: Mapping[str, Callable[[Any], ColumnElement[bool]]] = {
    "sender": lambda name: outbox.c.sender == name,
    "event_id": lambda id_: outbox.c.event_id == id_,
    "effect": lambda name: outbox.c.effect == name,
    "kind": lambda name: outbox.c.kind == name,
    "key": lambda key: outbox.c.key == key,
    "destination": lambda name: outbox.c.destination == name,
    "error": lambda text: outbox.c.last_error.icontains(text, autoescape=True),
    "asked_since": lambda moment: outbox.c.created_at >= moment,
    "asked_before": lambda moment: outbox.c.created_at < moment,
}
