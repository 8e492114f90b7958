"""The first tables: claims, resources, corrections, quarantine, reads, scans, outbox."""

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        if statement.strip():
            op.execute(statement)


# Text keys are COLLATE "C": an index over them outlives every change of the system's locales.
# No sequences, no foreign keys, no triggers: see docs/promises.md.
STATEMENTS = """
create table processed_events (
  sender text collate "C" not null,
  event_id text collate "C" not null,
  event_type text not null,
  kind text collate "C",
  key text collate "C",
  version bigint,
  outcome text not null,
  body_digest text not null,
  state_digest text,
  processed_at timestamptz not null default now(),
  constraint processed_events_pkey primary key (sender, event_id)
);
create index processed_events_processed_at_idx on processed_events (processed_at);
create index processed_events_resource_idx on processed_events (sender, kind, key);

create table event_bodies (
  sender text collate "C" not null,
  event_id text collate "C" not null,
  body bytea not null,
  headers jsonb not null,
  received_at timestamptz not null default now(),
  constraint event_bodies_pkey primary key (sender, event_id)
);
create index event_bodies_received_at_idx on event_bodies (received_at);

create table resources (
  sender text collate "C" not null,
  kind text collate "C" not null,
  key text collate "C" not null,
  version bigint,
  revision bigint not null default 0,
  read_at timestamptz,
  state jsonb,
  state_digest text,
  deleted boolean not null default false,
  origin text not null,
  updated_at timestamptz not null,
  constraint resources_pkey primary key (sender, kind, key)
);

create table corrections (
  id uuid not null constraint corrections_pkey primary key,
  sender text collate "C" not null,
  kind text collate "C" not null,
  key text collate "C" not null,
  drift text not null,
  old_version bigint,
  new_version bigint,
  differences jsonb not null,
  run_id uuid,
  found_at timestamptz not null default now(),
  event_id text collate "C",
  late_event_at timestamptz
);
create index corrections_found_at_idx on corrections (found_at);
create index corrections_resource_idx on corrections (sender, kind, key);

create table quarantine (
  id uuid not null constraint quarantine_pkey primary key,
  sender text collate "C" not null,
  event_id text collate "C",
  body_digest text not null,
  body bytea not null,
  headers jsonb not null,
  fault text not null constraint quarantine_fault_said check (fault <> ''),
  failures integer not null default 1,
  first_seen_at timestamptz not null default now(),
  last_seen_at timestamptz not null default now(),
  state text not null default 'open' constraint quarantine_state_known
    check (state in ('open', 'replayed', 'superseded', 'discarded'))
);
create unique index quarantine_open_idx on quarantine (sender, body_digest) where state = 'open';
create index quarantine_event_idx on quarantine (sender, event_id) where state = 'open';

create table fetch_requests (
  sender text collate "C" not null,
  kind text collate "C" not null,
  key text collate "C" not null,
  requested_at timestamptz not null,
  reason text not null,
  at_least bigint,
  attempts integer not null default 0,
  due_at timestamptz not null,
  last_error text,
  constraint fetch_requests_pkey primary key (sender, kind, key)
);
create index fetch_requests_due_at_idx on fetch_requests (due_at);

create table baselines (
  sender text collate "C" not null,
  kind text collate "C" not null,
  born_at timestamptz not null,
  completed_at timestamptz,
  completed_by text,
  constraint baselines_pkey primary key (sender, kind)
);

create table purge_horizons (
  sender text collate "C" not null constraint purge_horizons_pkey primary key,
  horizon timestamptz not null
);

create table scans (
  sender text collate "C" not null,
  kind text collate "C" not null,
  mode text not null constraint scans_mode_known check (mode in ('full', 'incremental')),
  watermark text,
  watermark_ns bigint,
  checkpoint jsonb,
  run_id uuid,
  pass_started_at timestamptz,
  last_completed_at timestamptz,
  due_at timestamptz not null,
  failures integer not null default 0,
  last_error text,
  owner uuid,
  fence bigint not null default 0,
  lease_until timestamptz,
  constraint scans_pkey primary key (sender, kind, mode)
);

create table sightings (
  sender text collate "C" not null,
  kind text collate "C" not null,
  key text collate "C" not null,
  held_version bigint,
  seen_at timestamptz not null,
  constraint sightings_pkey primary key (sender, kind, key)
);

create table outbox (
  id uuid not null constraint outbox_pkey primary key,
  sender text collate "C" not null,
  event_id text collate "C" not null,
  effect text collate "C" not null,
  part text collate "C" not null default '0',
  repetition integer not null default 0,
  kind text collate "C",
  key text collate "C",
  revision bigint,
  position integer not null default 0,
  ordered boolean not null default false,
  destination text collate "C" not null,
  idempotency_key text collate "C",
  method text,
  path text,
  headers jsonb,
  body bytea,
  idempotent boolean not null default true,
  state text not null constraint outbox_state_known
    check (state in ('pending', 'delivered', 'dead', 'uncertain', 'skipped', 'discarded')),
  attempts integer not null default 0,
  call_open boolean not null default false,
  redriven boolean not null default false,
  refusals integer not null default 0,
  due_at timestamptz,
  first_attempt_at timestamptz,
  last_error text,
  created_at timestamptz not null default now(),
  completed_at timestamptz,
  constraint outbox_once unique (sender, event_id, effect, part, repetition)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
create index outbox_due_idx on outbox (destination, redriven, due_at)
  where state = 'pending' and due_at is not null;
create index outbox_lane_idx on outbox (destination, sender, kind, key, revision, position)
  where ordered and state in ('pending', 'uncertain', 'dead');

create table outbox_attempts (
  entry_id uuid not null,
  attempt integer not null,
  started_at timestamptz not null,
  finished_at timestamptz,
  verdict text,
  status integer,
  error text,
  constraint outbox_attempts_pkey primary key (entry_id, attempt)
);

create table effect_keys (
  destination text collate "C" not null,
  idempotency_key text collate "C" not null,
  effect text collate "C" not null,
  entry_id uuid not null,
  sender text collate "C" not null,
  kind text collate "C",
  key text collate "C",
  lasting boolean not null default false,
  created_at timestamptz not null default now(),
  constraint effect_keys_pkey primary key (destination, idempotency_key)
)
"""
