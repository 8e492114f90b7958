"""The database is away, in the worst moments (P9, C91)."""

from collections import Counter
from datetime import timedelta
from urllib.parse import urlsplit

import psycopg
import pytest
from structlog.testing import capture_logs

from outbox.entry import State, Verdict
from outbox.marking import LONGEST_PAUSE, Marking
from outbox.noting import Noting
from outbox.settling import Mark
from tests.outbox.pretend import Answers, Misbehaves, in_turn
from tests.outbox.test_crashes import lease_one, report
from tests.outbox.world import an_entry, run_sql

pytestmark = pytest.mark.anyio


class Outage:
    """Takes the test's own database away, and gives it back."""

    def __init__(self, cluster, database_url):
        self.cluster = cluster
        self.name = urlsplit(database_url).path.lstrip("/")

    def begin(self):
        self._run(f"alter database {self.name} allow_connections false")
        with psycopg.connect(self.cluster, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s",
                [self.name],
            )

    def end(self):
        self._run(f"alter database {self.name} allow_connections true")

    def _run(self, statement):
        with psycopg.connect(self.cluster, autocommit=True) as connection:
            connection.execute(statement)


@pytest.fixture
def outage(cluster, database_url):
    outage = Outage(cluster, database_url)
    yield outage
    outage.end()


def rename(database_url, old, new):
    """While the table of attempts is elsewhere, leases go through and marks do not."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"alter table reconciler.{old} rename to {new}")


async def delivered(world, count):
    return ["delivered"] * count == await world.states()


async def test_the_relay_waits_for_a_database_that_is_away(world, pretend, outage):
    """It says so once, dies of nothing, keeps turning, and goes on when it is back."""
    await world.enqueue(an_entry(1))
    outage.begin()
    with capture_logs() as logs:
        async with world.running() as running:
            await world.until(lambda: running.turns >= 4)
            outage.end()
            await world.until(lambda: delivered(world, 1))
    told = Counter(line["event"] for line in logs)
    assert (1, 1) == (told["relay.database_away"], told["relay.database_back"])
    assert ["key_1"] == pretend.keys


async def test_a_mark_that_fails_is_made_later_and_nothing_is_leased_meanwhile(
    world, pretend, outage
):
    """
    The call is answered, and the database is gone. There are others due. The call is not
    repeated, the others are not begun before the mark is made, and then everything goes on.
    """
    world.set(concurrency=1)
    going = []

    def behave(number, _call):
        if number == 1:
            outage.begin()
            going.append("away")
        return Answers()

    pretend.behave = behave
    await world.enqueue(*(an_entry(n) for n in range(5)))
    with capture_logs() as logs:
        async with world.running() as running:
            await world.until(lambda: going)
            turns = running.turns
            await world.until(lambda: running.turns > turns + 4)
            assert 1 == len(pretend.calls)
            outage.end()
            await world.until(lambda: delivered(world, 5))
    assert {1} == set(Counter(pretend.keys).values())
    told = Counter(line["event"] for line in logs)
    assert (1, 1) == (told["relay.marks_failed"], told["relay.marks_resumed"])


async def test_nothing_is_leased_while_only_the_marks_fail(world, pretend, database_url):
    """C91: leases go through, marks do not. Few calls, not one after the other."""
    world.set(concurrency=1)

    def behave(number, _call):
        if number == 1:
            rename(database_url, "outbox_attempts", "elsewhere")
        return Answers()

    pretend.behave = behave
    await world.enqueue(*(an_entry(n) for n in range(20)))
    with capture_logs() as logs:
        async with world.running() as running:
            await world.until(lambda: any(x["event"] == "relay.marks_failed" for x in logs))
            turns, calls = running.turns, len(pretend.calls)
            await world.until(lambda: running.turns > turns + 4)
            assert len(pretend.calls) <= calls + 1
            rename(database_url, "elsewhere", "outbox_attempts")
            await world.until(lambda: delivered(world, 20))
    assert {1} == set(Counter(pretend.keys).values())


async def test_the_first_to_resume_leaves_to_the_others_what_they_have_called(
    world, pretend, database_url
):
    """
    No marks for longer than a lease, and two relays have called. One writes its marks while the
    other still pauses between two tries: what that has called is free, and not called again.
    """
    world.set(concurrency=2)
    now = 0.0

    def behave(number, _call):
        if number == 1:
            rename(database_url, "outbox_attempts", "elsewhere")
        return Answers()

    pretend.behave = behave
    await world.enqueue(an_entry(1))
    called_by_another = await lease_one(world)
    await run_sql(world.engine, "update reconciler.outbox set due_at = due_at + interval '1 day'")
    await world.enqueue(an_entry(2))
    with capture_logs() as logs:
        async with world.running(clock=lambda: now) as running:
            await world.until(lambda: any(x["event"] == "relay.marks_failed" for x in logs))
            turns = running.turns
            await world.until(lambda: running.turns > turns + 1)
            await run_sql(world.engine, "update reconciler.outbox set due_at = created_at")
            rename(database_url, "elsewhere", "outbox_attempts")
            await world.until(lambda: any(x["event"] == "relay.marks_resumed" for x in logs))
            turns = running.turns
            await world.until(lambda: running.turns > turns + 4)
            await report(world, called_by_another, State.DELIVERED)
            await world.enqueue(an_entry(3))
            now = LONGEST_PAUSE
            await world.until(lambda: delivered(world, 3))
    assert ["key_2", "key_3"] == pretend.keys


async def test_a_stop_during_an_outage_ends_with_the_marks(world, pretend, outage):
    pretend.behave = in_turn(Misbehaves("answers_late"))
    await world.enqueue(an_entry())
    async with world.running() as running:
        await world.until(lambda: pretend.in_flight == 1)
        outage.begin()
        running.stop.set()
        pretend.release.set()
        await world.until(lambda: pretend.in_flight == 0)
        outage.end()
    assert ["delivered"] == await world.states()


def marking_of(world, *, written):
    noting = Noting(world.destinations, random=lambda: 0.0)
    return Marking(world.engine, noting=noting, point=lambda _: None, written=written)


async def test_a_mark_that_the_database_will_never_take_holds_up_no_other(world):
    """It comes back by its lease; those written with it are written."""
    first, second = await world.enqueue(an_entry(1), an_entry(2))
    await run_sql(world.engine, "update reconciler.outbox set call_open = true")
    marking = marking_of(world, written=lambda _: None)

    def mark(id_, error):
        return Mark(
            id=id_,
            attempt=0,
            started_at=world_time,
            state=State.DEAD,
            wait=timedelta(0),
            maybe_sent=False,
            refusals=0,
            verdict=Verdict.DEAD,
            status=400,
            error=error,
            ordered=False,
        )

    world_time = (await world.entries())[0].created_at
    marking.add(mark(first.id, "\x00"))
    marking.add(mark(second.id, "answered 400"))
    marking.close()
    with capture_logs() as logs:
        await marking.run()
    assert ["pending", "dead"] == await world.states()
    assert "relay.mark_refused" in [line["event"] for line in logs]


async def test_two_attempts_of_one_entry_that_end_together_are_both_written(world):
    """The failure of the old one is fenced, the success of the new one counts."""
    (enqueued,) = await world.enqueue(an_entry())
    created = (await world.entry()).created_at

    def mark(attempt, state, verdict):
        return Mark(
            id=enqueued.id,
            attempt=attempt,
            started_at=created,
            state=state,
            wait=timedelta(0),
            maybe_sent=True,
            refusals=0,
            verdict=verdict,
            status=None,
            error=None,
            ordered=False,
        )

    batches = []
    marking = marking_of(world, written=batches.append)
    marking.add(mark(1, State.DEAD, Verdict.DEAD))
    marking.add(mark(2, State.DELIVERED, Verdict.DELIVERED))
    marking.close()
    await marking.run()
    assert [1, 1] == [len(batch) for batch in batches]
    assert ["delivered"] == await world.states()
    assert ["dead", "delivered"] == [one.verdict for one in await world.attempts()]
