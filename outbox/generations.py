"""Generations of the database: the marks by which it is noticed that it went back in time."""

from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, Table, Text, Uuid, text

from outbox.store import Time, metadata

generations = Table(
    "generations",
    metadata,
    Column("number", Integer, nullable=False, autoincrement=False),
    Column("opened_at", Time, nullable=False),
    Column("reason", Text, nullable=False),
    Column("lost_since", Time),
    Column("system_identifier", BigInteger),
    Column("timeline", BigInteger),
    Column("database_oid", BigInteger),
    Column("table_oid", BigInteger),
    Column("held", BigInteger, nullable=False, server_default=text("0")),
    Column("settled_at", Time),
    Column("healed_at", Time),
    PrimaryKeyConstraint("number", name="generations_pkey"),
)

generation_marks = Table(
    "generation_marks",
    metadata,
    Column("id", Uuid, nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("moved_at", Time, nullable=False),
    PrimaryKeyConstraint("id", name="generation_marks_pkey"),
    postgresql_with={"fillfactor": 50},
)
