"""Retention: what is old goes, while deliveries come in, and whatever happens to the purger."""

import asyncio
import signal
import sys

import pytest

from tests.stories.conftest import UNHEALED
from tests.world import World, eventually, refund_event

pytestmark = pytest.mark.anyio

DAY = 24 * 60 * 60

#: Claims, bodies, delivered entries with an attempt each, and their keys, of a hundred days ago.
OLD = (
    """insert into reconciler.processed_events
       (sender, event_id, event_type, outcome, body_digest, processed_at)
       select 'shop', 'old_' || n, 'refund.succeeded', 'applied', '', now() - interval '100 days'
         from generate_series(1, %(many)s) n""",
    """insert into reconciler.event_bodies (sender, event_id, body, headers, received_at)
       select 'shop', 'old_' || n, repeat('x', 300)::bytea, '{}', now() - interval '100 days'
         from generate_series(1, %(many)s) n""",
    """insert into reconciler.outbox
       (id, sender, event_id, effect, destination, idempotency_key, method, path, headers, body,
        state, attempts, created_at, completed_at)
       select md5('old' || n)::uuid, 'shop', 'old_' || n, 'receipt', 'payments', 'old_' || n,
              'POST', '/v1/receipts', '{}', repeat('x', 300)::bytea, 'delivered', 1,
              now() - interval '100 days', now() - interval '100 days'
         from generate_series(1, %(many)s) n""",
    """insert into reconciler.outbox_attempts (entry_id, attempt, started_at, verdict)
       select md5('old' || n)::uuid, 1, now() - interval '100 days', 'delivered'
         from generate_series(1, %(many)s) n""",
    """insert into reconciler.effect_keys
       (destination, idempotency_key, effect, entry_id, sender, created_at)
       select 'payments', 'old_' || n, 'receipt', md5('old' || n)::uuid, 'shop',
              now() - interval '100 days'
         from generate_series(1, %(many)s) n""",
)
TABLES = ("processed_events", "event_bodies", "outbox", "outbox_attempts", "effect_keys")


async def a_hundred_days_ago(world: World, *, many: int) -> None:
    for statement in OLD:
        await world.rows(statement.replace("%(many)s", str(many)))


async def left(world: World) -> list[int]:
    """How many rows of that time each table still has."""
    return [
        await world.value(
            f"select count(*) from reconciler.{table} where {column} like 'old%%'"  # noqa: S608
        )
        for table, column in (
            ("processed_events", "event_id"),
            ("event_bodies", "event_id"),
            ("outbox", "event_id"),
            ("effect_keys", "idempotency_key"),
        )
    ]


async def test_deliveries_are_answered_while_two_purge_what_is_old(world: World):
    """
    Three thousand events of a hundred days ago, with all that they left: several batches of
    those that carry bytes. The daemon forgets them, a person's `purge` does the same at that
    time, and whoever delivers meanwhile is answered in time; what is delivered meanwhile stays.
    """
    await a_hundred_days_ago(world, many=3_000)
    number = 0
    async with world.serving():
        purging = asyncio.create_task(world.command("purge"))
        while not purging.done() or any(await left(world)):
            number += 1
            assert "applied" == await world.outcome(refund_event(f"evt_{number}"))
        code, _, told = await purging
        assert 0 == code, told
        await world.settled()
    counts = await world.counts()
    assert [number] * 5 == [counts[table] for table in TABLES]


async def test_a_purger_that_stands_still_holds_no_delivery_up_for_long(world: World):
    """
    SIGSTOP in the middle of a batch: ten claims are deleted and not committed. Deliveries of
    other events do not notice; one of those very ids waits until the server has had enough of
    the purger, and is then the duplicate that it is. Woken up, the purger does it all again.
    """
    await a_hundred_days_ago(world, many=10)
    async with world.serving(*UNHEALED):
        purger = await purge(world, RECONCILER_TEST_FREEZE_AT="between-purge-and-horizon")
        await eventually(lambda: holds_claims(world))
        assert "applied" == await world.outcome(refund_event("evt_1"))
        again = refund_event("old_3", age=101 * DAY)
        assert "duplicate" == await world.outcome(again), "in time: later it is a 503"
        purger.send_signal(signal.SIGCONT)
        assert 0 == await stopped_again_and_again(purger)
        assert "quarantined" == await world.outcome(again)


async def stopped_again_and_again(purger: asyncio.subprocess.Process) -> int:
    """Each time that it comes by the place it stops there: wake it up until it is done."""
    ended = asyncio.create_task(purger.wait())
    while not ended.done():
        purger.send_signal(signal.SIGCONT)
        await asyncio.wait([ended], timeout=0.1)
    return ended.result()


async def holds_claims(world: World) -> bool:
    """Whether somebody has deleted claims and has not committed."""
    return bool(
        await world.rows(
            "select 1 from pg_stat_activity where state = 'idle in transaction'"
            " and query like '%%DELETE FROM reconciler.processed_events%%'"
            " and datname = current_database()"
        )
    )


async def purge(world: World, **environment: str) -> asyncio.subprocess.Process:
    """`reconciler purge`, in a process that we can do things to."""
    words = (sys.executable, "-m", "reconciler", "purge", "--config", str(world.config))
    return await asyncio.create_subprocess_exec(
        *words,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**world.environment, **environment},
        cwd=world.directory,
    )


async def test_a_purger_that_is_killed_has_removed_whole_batches(world: World):
    """
    kill -9 after a batch: that one is gone. kill -9 between the claims and their horizon: both
    stay as they were, and what happens again is still known. The next purge removes the rest
    and says up to when.
    """
    await a_hundred_days_ago(world, many=1_200)
    killed = await purge(world, RECONCILER_TEST_CRASH_AT="between-purges")
    assert -signal.SIGKILL == await asyncio.wait_for(killed.wait(), 30)
    assert [1200, 200, 1200, 1200] == await left(world)

    killed = await purge(world, RECONCILER_TEST_CRASH_AT="between-purge-and-horizon")
    assert -signal.SIGKILL == await asyncio.wait_for(killed.wait(), 30)
    assert [1200, 0, 0, 0] == await left(world), "a claim outlives its entries"
    assert 0 == (await world.counts())["purge_horizons"]

    (item,) = (await world.document("purge", "--sender", "shop"))["items"]
    assert (1200, 0) == (item["claims"], item["entries"])
    counts = await world.counts()
    assert (0, 1) == (counts["processed_events"], counts["purge_horizons"])


async def test_a_dry_run_says_what_would_go_and_it_does(world: World):
    """What `--dry-run` counts, claims that wait for their entries included, is what then goes."""
    await a_hundred_days_ago(world, many=50)
    await world.rows("update reconciler.outbox set state = 'dead' where event_id = 'old_7'")
    told = await world.document("purge", "--dry-run")
    assert [50] * 4 == await left(world)

    done = await world.document("purge")

    expected = {
        "sender": "shop",
        "claims": 49,
        "bodies": 50,
        "entries": 49,
        "keys": 49,
        "corrections": 0,
        "quarantine": 0,
        "undecided": 0,
    }
    assert [expected] == done["items"]
    assert {**done, "dry_run": True} == told
