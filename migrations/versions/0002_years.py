"""What a service for years needs: acts of people, generations, redriven budgets, retention."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """
    Add what is new. Only additions: the version before this one goes on working with it.

    The indexes are made after this transaction, concurrently, by `reconciler.indexes`; a
    database that is being made has no rows yet, and gets them here.
    """
    fresh = op.get_context().config.attributes["fresh"]
    statements = STATEMENTS + (INDEXES.replace(" concurrently", "") if fresh else "")
    for statement in statements.split(";"):
        if statement.strip():
            op.execute(statement)


# The only statement here that has to wait for others' transactions: first, so that nothing
# else is held meanwhile. A constant default rewrites nothing.
STATEMENTS = """
alter table outbox add column attempts_before integer not null default 0;

create table actions (
  id uuid not null constraint actions_pkey primary key,
  at timestamptz not null default now(),
  actor text not null,
  action text not null,
  subject jsonb not null,
  reason text
);

create table generations (
  number integer not null constraint generations_pkey primary key,
  opened_at timestamptz not null,
  reason text not null,
  lost_since timestamptz,
  system_identifier bigint,
  timeline bigint,
  database_oid bigint,
  table_oid bigint,
  held bigint not null default 0,
  settled_at timestamptz,
  healed_at timestamptz
);

create table generation_marks (
  id uuid not null constraint generation_marks_pkey primary key,
  beat bigint not null,
  moved_at timestamptz not null
) with (fillfactor = 50);
"""

INDEXES = """
create index concurrently outbox_completed_idx on outbox (sender, completed_at)
  where completed_at is not null;
create index concurrently outbox_resource_idx on outbox (sender, kind, key);
create index concurrently effect_keys_created_idx on effect_keys (sender, created_at)
  where not lasting;
create index concurrently quarantine_closed_idx on quarantine (last_seen_at)
  where state <> 'open'
"""
