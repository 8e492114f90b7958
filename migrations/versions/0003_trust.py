"""What an outbox for money needs: flow shared by replicas, lanes, looking up unknown outcomes."""

from alembic import op

revision = "0003"
down_revision = "0002"


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
# else is held meanwhile. Constant defaults rewrite nothing.
STATEMENTS = """
alter table outbox
  add column lane text collate "C",
  add column lane_position bigint,
  add column hold_after_dead boolean,
  add column expires_at timestamptz,
  add column look_at timestamptz,
  add column looks integer not null default 0;

create table lanes (
  lane text collate "C" not null constraint lanes_pkey primary key,
  position bigint not null
) with (fillfactor = 70);

create table destination_flow (
  destination text collate "C" not null constraint destination_flow_pkey primary key,
  tokens double precision,
  filled_at timestamptz,
  slowed_until timestamptz,
  breaker text not null default 'closed',
  failures integer not null default 0,
  failing uuid,
  opened_at timestamptz,
  probe_at timestamptz,
  reason text
) with (fillfactor = 50);

create table pauses (
  destination text collate "C" not null,
  effect text collate "C" not null default '',
  paused_at timestamptz not null default now(),
  actor text not null,
  reason text,
  constraint pauses_pkey primary key (destination, effect)
);

create table redrive_runs (
  id uuid not null constraint redrive_runs_pkey primary key,
  started_at timestamptz not null default now(),
  actor text not null,
  reason text,
  chosen jsonb not null,
  rate double precision not null,
  upto timestamptz not null,
  after uuid,
  redriven bigint not null default 0,
  refused bigint not null default 0,
  total bigint,
  state text not null default 'running',
  due_at timestamptz not null default now(),
  ended_at timestamptz
);
"""

INDEXES = """
create index concurrently outbox_named_lane_idx on outbox (lane, lane_position)
  where lane is not null and state in ('pending','uncertain','dead');
create index concurrently outbox_lane_entries_idx on outbox (lane, lane_position)
  where lane is not null;
create index concurrently outbox_stopped_idx on outbox (state, id)
  where state in ('dead','uncertain','skipped');
create index concurrently outbox_look_idx
  on outbox (destination, coalesce(look_at, '-infinity'::timestamptz))
  where state = 'uncertain';
create index concurrently outbox_open_idx on outbox (destination, due_at) where call_open
"""
