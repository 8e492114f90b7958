"""The tables by which all processes that call a destination keep to its limits together."""

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Double,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    Uuid,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from outbox.store import C, Time, metadata

# As `store.LETS_GO`, for whoever holds a destination's row: nobody else can lease for it.
LETS_GO_SOON: ColumnElement[str] = select(
    func.set_config("idle_in_transaction_session_timeout", "10s", True)
).scalar_subquery()

# For the rest of the transaction: the plan of a lease is kept, and one that was made while the
# outbox was empty would read all of it when it is not.
BY_INDEX: ColumnElement[str] = func.set_config("enable_seqscan", "off", True)

destination_flow = Table(
    "destination_flow",
    metadata,
    Column("destination", C, nullable=False),
    Column("tokens", Double),  # at filled_at; null: never taken from, full
    Column("filled_at", Time),
    Column("slowed_until", Time),  # it said 429
    Column("breaker", Text, nullable=False, server_default=text("'closed'")),
    Column("failures", Integer, nullable=False, server_default=text("0")),  # in a row
    Column("failing", Uuid),  # the entry that failed last: one alone opens no breaker
    Column("opened_at", Time),
    Column("probe_at", Time),  # when an open breaker lets the next call through
    Column("reason", Text),
    PrimaryKeyConstraint("destination", name="destination_flow_pkey"),
    # One row that every lease may update: room on its page keeps that off the index.
    postgresql_with={"fillfactor": 50},
)

pauses = Table(
    "pauses",
    metadata,
    Column("destination", C, nullable=False),
    Column("effect", C, nullable=False, server_default=""),  # empty: all of them
    Column("paused_at", Time, nullable=False, server_default=func.now()),
    Column("actor", Text, nullable=False),
    Column("reason", Text),
    PrimaryKeyConstraint("destination", "effect", name="pauses_pkey"),
)

redrive_runs = Table(
    "redrive_runs",
    metadata,
    Column("id", Uuid, nullable=False),
    Column("started_at", Time, nullable=False, server_default=func.now()),
    Column("actor", Text, nullable=False),
    Column("reason", Text),
    Column("chosen", JSONB, nullable=False),  # which entries
    Column("rate", Double, nullable=False),  # entries a second
    Column("upto", Time, nullable=False),  # what stopped later is not meant
    Column("after", Uuid),  # as far as it has come
    Column("redriven", BigInteger, nullable=False, server_default=text("0")),
    Column("refused", BigInteger, nullable=False, server_default=text("0")),
    Column("total", BigInteger),
    Column("state", Text, nullable=False, server_default=text("'running'")),
    Column("due_at", Time, nullable=False, server_default=func.now()),  # its next batch
    Column("ended_at", Time),
    PrimaryKeyConstraint("id", name="redrive_runs_pkey"),
)
