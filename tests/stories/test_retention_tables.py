"""Retention, table by table: what goes, what stays, and how little is looked at for it."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.forgetting import forget
from outbox.retention import has_entry, old_entries, old_keys
from reconciler.errors import UsageError
from reconciler.ledger import bodies, claims, corrections, quarantine, retention
from reconciler.operations import purging
from reconciler.settings.models import Settings

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)

KINDS_OF_OLD = {
    "processed_events_processed_at_idx": claims.old("shop", 90 * DAY, spared=has_entry),
    "event_bodies_received_at_idx": bodies.old("shop", 7 * DAY),
    "outbox_completed_idx": old_entries("shop", 90 * DAY),
    "effect_keys_created_idx": old_keys("shop", 90 * DAY),
    "corrections_found_at_idx": corrections.old("shop", 90 * DAY),
    "quarantine_closed_idx": quarantine.old("shop", 30 * DAY),
}

#: A destination that has been dead for long, and a little of everything else.
MUCH = """
insert into reconciler.outbox (id, sender, event_id, effect, destination, state, due_at, created_at)
  select md5('p' || n)::uuid, 'shop', 'evt_' || n, 'receipt', 'dead', 'pending', now(),
         now() - interval '100 days' from generate_series(1, 30000) n;
insert into reconciler.processed_events
    (sender, event_id, event_type, outcome, body_digest, processed_at)
  select 'shop', 'evt_' || n, 'refund.succeeded', 'applied', '', now() - n * interval '1 minute'
    from generate_series(1, 30000) n;
insert into reconciler.event_bodies (sender, event_id, body, headers, received_at)
  select 'shop', 'evt_' || n, '', '{}', now() - n * interval '10 seconds'
    from generate_series(1, 20000) n;
insert into reconciler.effect_keys
    (destination, idempotency_key, effect, entry_id, sender, created_at)
  select 'dead', 'key_' || n, 'receipt', md5('p' || n)::uuid, 'shop',
         now() - n * interval '1 minute' from generate_series(1, 20000) n;
insert into reconciler.corrections (id, sender, kind, key, drift, differences, found_at)
  select md5('c' || n)::uuid, 'shop', 'order', 'ord_' || n, 'missing', '[]',
         now() - n * interval '1 minute' from generate_series(1, 20000) n;
insert into reconciler.quarantine
    (id, sender, body_digest, body, headers, fault, last_seen_at, state)
  select md5('q' || n)::uuid, 'shop', n, '', '{}', 'fault', now() - interval '100 days',
         case when n < 10 then 'discarded' else 'open' end from generate_series(1, 20000) n;
analyze
"""


async def run(engine: AsyncEngine, script: str) -> None:
    async with engine.begin() as connection:
        for statement in script.split(";\n"):
            await connection.execute(text(statement))


async def test_no_purge_reads_a_table_from_end_to_end(engine: AsyncEngine):
    """
    Thirty thousand calls wait for a destination that is dead, and as many claims for them;
    twenty thousand copies wait for a person. A purge finds what is old by an index that has
    none of what is not: pending entries and open copies are not even looked at.
    """
    await run(engine, MUCH)
    for index, old in KINDS_OF_OLD.items():
        plan = await plan_of(engine, old)
        victims = plan.partition("CTE held")[0]
        assert index in victims, plan
        assert "Seq Scan" not in plan, plan
    async with engine.connect() as connection:
        gone = await forget(connection, KINDS_OF_OLD["quarantine_closed_idx"], after=None)
    assert 9 == gone.rows


async def plan_of(engine: AsyncEngine, old) -> str:
    """How PostgreSQL goes about one batch."""
    said = []

    def note(_connection, _cursor, statement, parameters, _context, _many):
        said.append((statement, parameters))

    async with engine.connect() as connection:
        event.listen(connection.sync_connection, "before_cursor_execute", note)
        await forget(connection, old, after=None)
        await connection.rollback()
        statement, parameters = said[-1]
        rows = await connection.exec_driver_sql("explain " + statement, parameters)
        return "\n".join(row[0] for row in rows)


async def test_two_that_purge_share_the_work(engine: AsyncEngine):
    """Three purgers at once, small batches: each claim is removed by one of them, all by all."""
    await run(
        engine,
        """insert into reconciler.processed_events
             (sender, event_id, event_type, outcome, body_digest, processed_at)
           select 'shop', 'evt_' || n, 'refund.succeeded', 'applied', '',
                  now() - interval '100 days' - n * interval '1 second'
             from generate_series(1, 1000) n""",
    )
    keep = purging.keep_of("shop", Settings())
    async with asyncio.TaskGroup() as all_three:
        runs = [
            all_three.create_task(retention.purge(engine, "shop", keep, batch=40)) for _ in range(3)
        ]
    assert 1000 == sum(run.result().claims for run in runs)


async def test_what_stays_is_looked_at_once(engine: AsyncEngine):
    """
    A hundred old claims whose calls wait for a person, and one of another time behind them that
    may go: batches of ten get past them, and say when they are through.
    """
    await run(
        engine,
        """insert into reconciler.processed_events
             (sender, event_id, event_type, outcome, body_digest, processed_at)
           select 'shop', 'evt_' || n, 'refund.succeeded', 'applied', '',
                  now() - interval '100 days' from generate_series(1, 101) n;
           insert into reconciler.outbox
             (id, sender, event_id, effect, destination, state, completed_at)
           select md5('d' || n)::uuid, 'shop', 'evt_' || n, 'receipt', 'payments', 'dead',
                  now() - interval '100 days' from generate_series(1, 100) n""",
    )
    batches = []

    async def between(_seconds: float) -> bool:
        batches.append(None)
        return True

    keep = purging.keep_of("shop", Settings())
    purged = await retention.purge(engine, "shop", keep, batch=10, between=between)
    assert (1, 0) == (purged.claims, purged.entries)
    assert 20 == len(batches)  # of claims and of entries, ten each that were full


async def test_what_nobody_configures_any_more_goes_too(engine: AsyncEngine):
    """
    A sender that was taken out of the configuration leaves nothing for ever, nor does what people
    did, or asked for in bulk; a run that is not over is not forgotten, however long it takes.
    """
    await run(
        engine,
        """insert into reconciler.processed_events
             (sender, event_id, event_type, outcome, body_digest, processed_at)
           select sender, 'evt_1', 'refund.succeeded', 'applied', '', now() - age
             from (values ('former', interval '100 days'), ('older', interval '1 day'))
                  as left_by(sender, age);
           insert into reconciler.actions (id, at, actor, action, subject)
           values (gen_random_uuid(), now() - interval '2 years', 'ann', 'discard', '{}'),
                  (gen_random_uuid(), now(), 'ann', 'discard', '{}');
           insert into reconciler.redrive_runs (id, started_at, actor, chosen, rate, upto, state,
                                                ended_at)
           select gen_random_uuid(), now() - interval '2 years', 'ann', '{}', 1, now(), state, ended
             from (values ('done', now() - interval '1 year 1 day'), ('stopped', now()),
                          ('running', null)) as run(state, ended);
           insert into reconciler.sightings (sender, kind, key, seen_at)
           values ('former', 'order', 'ord_1', now() - interval '100 days')""",
    )
    told = await purging.would_purge(engine, Settings())
    done = await purging.purge(engine, Settings())

    assert {**done, "dry_run": True} == told
    assert [("former", 1), ("older", 0)] == [(i["sender"], i["claims"]) for i in done["items"]]
    assert (1, 1, 1) == (done["actions"], done["sightings"], done["redrive_runs"])
    async with engine.connect() as connection:
        left = await connection.scalars(text("select state from reconciler.redrive_runs"))
    assert {"running", "stopped"} == set(left)
    with pytest.raises(UsageError, match="nobody"):
        await purging.purge(engine, Settings(), only="nobody")


async def test_copies_that_nobody_decides_about_go_only_where_that_was_said(engine: AsyncEngine):
    """Open copies wait for a person; closed ones go in time."""
    await run(
        engine,
        """insert into reconciler.quarantine
             (id, sender, body_digest, body, headers, fault, last_seen_at, state)
           select gen_random_uuid(), 'shop', state, '', '{}', 'fault', now() - interval '40 days',
                  state from unnest('{open,replayed,superseded,discarded}'::text[]) state""",
    )
    purged = await retention.purge(engine, "shop", purging.keep_of("shop", Settings()))
    assert (3, 0) == (purged.quarantine, purged.undecided)

    bounded = Settings.model_validate({"retention": {"undecided": "30d"}})
    purged = await retention.purge(engine, "shop", purging.keep_of("shop", bounded))
    assert (0, 1) == (purged.quarantine, purged.undecided)


async def test_nothing_is_forgotten_by_a_clock_that_is_alone(engine: AsyncEngine):
    """
    The database's host came up a year ahead: every claim looks old, and forgotten ones cannot
    be brought back. Our own clock does not agree.
    """
    await run(
        engine,
        """insert into reconciler.processed_events
             (sender, event_id, event_type, outcome, body_digest, processed_at)
           values ('shop', 'evt_1', 'refund.succeeded', 'applied', '', now() - interval '365 days')
        """,
    )

    def a_year_ago() -> datetime:
        return datetime.now(UTC) - 365.5 * DAY

    with pytest.raises(purging.ClocksApartError, match="365 days"):
        await purging.purge(engine, Settings(), clock=a_year_ago)
    async with engine.connect() as connection:
        assert 1 == await connection.scalar(
            text("select count(*) from reconciler.processed_events")
        )


def test_how_often_follows_what_is_kept_shortest():
    """Ten minutes are enough for weeks; who keeps bodies for two minutes wants them gone then."""
    shop = {"secrets": ["env:S"], "signature": {}, "event": {"id": "id", "type": "type"}}
    usual = Settings.model_validate({"senders": {"shop": shop}})
    short = Settings.model_validate({"senders": {"shop": {**shop, "keep_bodies": "2m"}}})
    assert timedelta(minutes=10) == purging.every(usual)
    assert timedelta(seconds=12) == purging.every(short)


def test_a_key_is_remembered_for_as_long_as_its_provider_does():
    """Used twice while the provider knows it, the second call would be taken for a repetition."""
    pay = {"base_url": "https://api.payments.example", "key_ttl": "120d"}
    settings = Settings.model_validate({"destinations": {"payments": pay}})
    assert 120 * DAY == purging.keep_of("shop", settings).keys
