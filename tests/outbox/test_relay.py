"""From an entry to its verdict, over real sockets and a real database (P7, P9, P10, P15)."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from sqlalchemy import event
from structlog.testing import capture_logs

from outbox.backoff import Backoff
from outbox.entry import Verdict
from tests.outbox.pretend import Answers, Misbehaves, in_turn
from tests.outbox.world import an_entry, run_sql

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


async def test_a_call_is_made_once_recorded_and_told(world, pretend):
    told = []
    (enqueued,) = await world.enqueue(an_entry())
    with capture_logs() as logs:
        assert 1 == await world.relay_once(metrics=told.append)
        assert 0 == await world.relay_once()

    row = await world.entry()
    assert ("delivered", 1, False) == (row.state, row.attempts, row.call_open)
    assert (None, None) == (row.due_at, row.last_error)
    assert row.completed_at is not None
    (attempt,) = await world.attempts()
    assert (enqueued.id, 1, "delivered", 200, None) == (
        attempt.entry_id,
        attempt.attempt,
        attempt.verdict,
        attempt.status,
        attempt.error,
    )
    assert attempt.started_at <= attempt.finished_at
    assert [("key_1", b'{"amount": 1}')] == [(call.key, call.body) for call in pretend.calls]
    (line,) = [line for line in logs if line["event"] == "relay.attempted"]
    assert (str(enqueued.id), "payments", "capture", 1, "delivered", 200) == tuple(
        line[name] for name in ("entry", "destination", "effect", "attempt", "verdict", "status")
    )
    assert [(enqueued.id, "payments", Verdict.DELIVERED, 200)] == [
        (one.id, one.destination, one.verdict, one.status) for one in told
    ]


async def test_every_attempt_sends_the_same_key_and_bytes(world, pretend):
    """
    C77, C78: the answer is lost, then the destination is busy, then somebody changes the
    headers that are added at send time and restarts. Key, method, path and body stay.
    """
    pretend.behave = in_turn(Misbehaves("closes"), Answers(status=503), Answers())
    await world.enqueue(an_entry(body=b'{ "b":1, "a" : 2.50 }\n', path="/v1/x?y=%20"))
    for _ in range(3):
        await world.relay_once()
        await world.time_passes(HOUR)
        world.set(channel=world.channel(bearer="another"))

    calls = {(call.method, call.target, call.key, call.body) for call in pretend.calls}
    assert {("POST", "/v1/x?y=%20", "key_1", b'{ "b":1, "a" : 2.50 }\n')} == calls
    assert 3 == len(pretend.calls)
    assert ["delivered"] == await world.states()
    assert ["retry", "retry", "delivered"] == [one.verdict for one in await world.attempts()]


async def test_only_a_success_marks_an_entry_delivered(world, pretend):
    """C73: no exception is no success."""
    pretend.behave = in_turn(
        Answers(status=500), Answers(status=429), Answers(status=302), Answers(status=200)
    )
    await world.enqueue(an_entry())
    seen = []
    for _ in range(4):
        await world.relay_once()
        seen += await world.states()
        await world.time_passes(HOUR)
    assert ["pending", "pending", "pending", "delivered"] == seen


async def test_what_is_refused_for_good_is_dead_and_called_no_more(world, pretend):
    pretend.behave = in_turn(Answers(status=422, body=b'{"secret": "of theirs"}'))
    await world.enqueue(an_entry())
    await world.relay_once()
    await world.time_passes(DAY)

    assert 0 == await world.relay_once()
    row = await world.entry()
    assert ("dead", "answered 422", None) == (row.state, row.last_error, row.due_at)
    assert row.completed_at is not None


async def test_attempts_are_used_up_with_growing_gaps(world, pretend):
    """C72: what is refused with 403 ends, dead, after the configured attempts."""
    world.set(max_attempts=7)
    world.policy = replace(
        world.policy, backoff=Backoff(base=timedelta(minutes=1), cap=timedelta(minutes=30))
    )
    pretend.behave = in_turn(Answers(status=403))
    await world.enqueue(an_entry())
    waits = []
    with capture_logs() as logs:
        for _ in range(8):
            await world.relay_once()
            waits += await world.waits()
            await world.time_passes(HOUR)

    row = await world.entry()
    assert ("dead", "attempts used up: answered 403") == (row.state, row.last_error)
    assert 7 == len(pretend.calls)
    ceilings = [60, 120, 240, 480]
    assert all(wait <= most for wait, most in zip(waits, ceilings, strict=False))
    assert all(15 * 60 - 5 < wait <= 30 * 60 for wait in waits[4:6]), waits
    assert [None, None] == waits[6:]
    alerts = [line for line in logs if line["event"] == "relay.refused_repeatedly"]
    assert [5, 6, 7] == [line["refusals"] for line in alerts]


async def test_refusals_count_only_in_a_row(world, pretend):
    pretend.behave = in_turn(*[Answers(status=403)] * 4, Answers(status=429), Answers(status=403))
    await world.enqueue(an_entry())
    for expected in (1, 2, 3, 4, 0, 1):
        await world.relay_once()
        assert expected == (await world.entry()).refusals
        await world.time_passes(HOUR)


async def test_a_name_that_is_not_found_for_a_while_costs_nothing_but_time(world):
    """C72: a DNS failure kills nothing; the key's clock has not even begun."""
    there = world.destination.channel
    world.set(channel=world.channel("http://nowhere.invalid"))
    await world.enqueue(an_entry(idempotent=False))
    await world.relay_once()
    row = await world.entry()
    assert ("pending", 1, None) == (row.state, row.attempts, row.first_attempt_at)
    assert row.last_error.startswith("not sent: ConnectError")

    world.set(channel=there)
    await world.time_passes(HOUR)
    await world.relay_once()
    assert ["delivered"] == await world.states()


@pytest.mark.parametrize("spelling", ["20", "20.5", "date", "date of a clock that is ahead"])
@pytest.mark.parametrize("status", [429, 503])
async def test_a_retry_after_is_kept_to(world, pretend, status, spelling):
    """C86. Nothing else is delayed by it (C63)."""
    world.policy = replace(world.policy, backoff=Backoff(base=timedelta(0), cap=HOUR))
    now = datetime.now(UTC)
    theirs = now + HOUR if "ahead" in spelling else now
    value = (
        format_datetime(theirs + timedelta(seconds=21), usegmt=True)
        if "date" in spelling
        else spelling
    )
    headers = (("Date", format_datetime(theirs, usegmt=True)), ("Retry-After", value))
    pretend.behave = lambda _number, call: (
        Answers(status=status, headers=headers) if call.key == "key_1" else Answers()
    )
    await world.enqueue(an_entry(1), an_entry(2))
    await world.relay_once()

    assert ["pending", "delivered"] == await world.states()
    wait, _ = await world.waits()
    assert 19 <= wait <= 27
    assert 0 == await world.relay_once()


async def test_an_absurd_retry_after_is_clamped(world, pretend):
    pretend.behave = in_turn(Answers(status=503, headers=(("Retry-After", "9" * 300),)))
    await world.enqueue(an_entry())
    await world.relay_once()
    (wait,) = await world.waits()
    assert 3590 < wait <= 3600


async def test_a_conflict_in_progress_is_asked_again_under_the_same_key(world, pretend):
    """C83: our own first call is still at work over there."""
    pretend.behave = in_turn(Misbehaves("hangs"), Answers(status=409), Answers())
    world.set(timeout=timedelta(milliseconds=200))
    await world.enqueue(an_entry())
    for _ in range(3):
        await world.relay_once()
        await world.time_passes(HOUR)
    assert ["key_1"] * 3 == pretend.keys
    assert ["delivered"] == await world.states()


@pytest.mark.parametrize(
    "behaviour",
    [Answers(status=504), Answers(status=409), Misbehaves("closes"), Misbehaves("hangs")],
    ids=str,
)
async def test_without_idempotency_a_doubt_is_for_a_person(world, pretend, behaviour):
    """A3: the gateway answers 504 to a call that was performed behind it."""
    pretend.behave = in_turn(behaviour)
    world.set(timeout=timedelta(milliseconds=200))
    await world.enqueue(an_entry(idempotent=False))
    await world.relay_once()
    await world.time_passes(HOUR)
    assert 0 == await world.relay_once()
    assert 1 == len(pretend.calls)
    assert ["uncertain"] == await world.states()


async def test_a_refusal_after_an_unanswered_attempt_is_no_proof(world, pretend):
    """A4: attempt 1 was performed, its answer lost. Attempt 2 gets a 4xx: not dead, uncertain."""
    pretend.behave = in_turn(Misbehaves("closes"), Answers(status=400))
    await world.enqueue(an_entry())
    await world.relay_once()
    await world.time_passes(HOUR)
    await world.relay_once()
    row = await world.entry()
    assert "uncertain" == row.state
    assert "answered 400, after an attempt that may have taken effect" == row.last_error


async def test_the_last_of_several_attempts_decides_with_the_others(world, pretend):
    world.set(max_attempts=2)
    pretend.behave = lambda _number, call: Answers(
        status=500 if call.key == "key_1" and _number <= 2 else 429
    )
    await world.enqueue(an_entry(1), an_entry(2))
    await world.relay_once()
    await world.time_passes(HOUR)
    await world.relay_once()
    assert ["uncertain", "dead"] == await world.states()


async def test_attempts_that_a_new_limit_forbids_are_not_made(world, pretend):
    pretend.behave = in_turn(Answers(status=429))
    await world.enqueue(an_entry())
    await world.relay_once()
    world.set(max_attempts=1)
    await world.time_passes(HOUR)
    assert 0 == await world.relay_once()
    row = await world.entry()
    assert ("dead", "attempts used up", 1) == (row.state, row.last_error, row.attempts)
    assert 1 == len(await world.attempts())


async def test_no_call_is_repeated_once_its_key_may_be_forgotten(world, pretend):
    """C79: performed, answer lost, the relay down for a day: a second call would charge again."""
    pretend.behave = in_turn(Misbehaves("closes"), Answers())
    await world.enqueue(an_entry())
    await world.relay_once()
    await world.time_passes(DAY - timedelta(seconds=60 + 5 + 1))  # but for the margin
    await run_sql(
        world.engine,
        "update reconciler.outbox set first_attempt_at = first_attempt_at - interval '2 s'",
    )
    assert 0 == await world.relay_once()
    row = await world.entry()
    assert "uncertain" == row.state
    assert "lifetime" in row.last_error
    assert 1 == len(pretend.calls)


async def test_up_to_the_margin_the_key_counts(world, pretend):
    pretend.behave = in_turn(Misbehaves("closes"), Answers())
    await world.enqueue(an_entry())
    await world.relay_once()
    await world.time_passes(DAY - timedelta(seconds=60 + 5 + 30))
    assert 1 == await world.relay_once()
    assert ["delivered"] == await world.states()


async def test_the_keys_clock_starts_with_the_first_attempt_that_may_have_been_sent(world, pretend):
    """Two days of 429 use up no key; one lost answer starts the clock, a 429 does not stop it."""
    pretend.behave = in_turn(
        Answers(status=429),
        Answers(status=429),
        Misbehaves("closes"),
        Answers(status=429),
        Answers(),
    )
    await world.enqueue(an_entry())
    for _ in range(2):
        await world.relay_once()
        assert (await world.entry()).first_attempt_at is None
        await world.time_passes(DAY)
    for _ in range(2):
        await world.relay_once()
        assert (await world.entry()).first_attempt_at is not None
        await world.time_passes(timedelta(hours=13))
    assert 0 == await world.relay_once()
    assert ["uncertain"] == await world.states()
    assert 4 == len(pretend.calls)


async def test_poison_delays_nothing_but_itself(world, pretend):
    """C63: entries that fail, and one that cannot even be sent, among a hundred others."""
    pretend.behave = lambda _number, call: Answers(status=500 if call.target == "/bad" else 200)
    world.set(max_attempts=3)
    bad = [an_entry(n, path="/bad") for n in range(20)]
    broken = [an_entry(n, path="/not\na path") for n in range(20, 25)]
    await world.enqueue(*bad, *broken, *(an_entry(n) for n in range(100, 200)))
    while await world.relay_once():
        pass
    states = await world.states()
    assert 100 == states.count("delivered")
    assert 25 == states.count("pending")
    for _ in range(8):
        await world.time_passes(HOUR)
        while await world.relay_once():
            pass
    states = await world.states()
    assert (100, 20, 5) == tuple(map(states.count, ("delivered", "uncertain", "dead")))


async def test_a_channel_that_breaks_takes_nobody_along(world, pretend):
    class Broken:
        async def send(self, request, *, timeout):
            if request.path == "/bad":
                raise RuntimeError("hush")
            return await real.send(request, timeout=timeout)

    real = world.destination.channel
    world.set(channel=Broken())
    await world.enqueue(an_entry(1, path="/bad"), an_entry(2))
    with capture_logs() as logs:
        await world.relay_once()
    assert ["pending", "delivered"] == await world.states()
    assert "hush" not in str(logs)


async def test_unrendered_and_skipped_entries_are_never_called(world, pretend):
    await world.enqueue(an_entry(1, fault="no such member"), an_entry(2, skip="max_age"))
    await world.time_passes(DAY)
    assert 0 == await world.relay_once()
    assert [] == pretend.calls


async def test_a_destination_that_is_not_configured_waits(world):
    await world.enqueue(an_entry(destination="bank"))
    assert 0 == await world.relay_once()
    assert ["pending"] == await world.states()


async def test_no_more_calls_are_under_way_than_the_destination_allows(world, pretend):
    world.set(concurrency=3)
    await world.enqueue(*(an_entry(n) for n in range(40)))
    pretend.behave = in_turn(Answers(), Misbehaves("answers_late"))
    async with world.running() as running:
        await world.until(lambda: len(pretend.calls) >= 4 and pretend.in_flight >= 3)
        turns = running.turns
        await world.until(lambda: running.turns > turns + 2)
        pretend.release.set()
        await world.until(lambda: len(pretend.calls) == 40)
    assert ["delivered"] * 40 == await world.states()
    assert 3 == pretend.most_in_flight


async def test_a_slot_that_is_free_again_is_filled_at_once(world, pretend):
    """A backlog is not worked off at one handful a poll."""
    world.policy = replace(world.policy, poll=HOUR)
    world.set(concurrency=2)
    await world.enqueue(*(an_entry(n) for n in range(20)))
    async with world.running():
        await world.until(lambda: len(pretend.calls) == 20)


async def test_a_slow_destination_does_not_hold_up_another(world, pretend):
    """Calls are not made in batches: one that hangs keeps one slot, and nobody waits for it."""
    world.set(concurrency=2)
    pretend.behave = lambda _number, call: Misbehaves("hangs") if call.key == "key_0" else Answers()
    await world.enqueue(*(an_entry(n) for n in range(30)))
    async with world.running():
        await world.until(lambda: len(pretend.calls) == 30)
        await world.until(lambda: all_but_one_delivered(world))
        pretend.release.set()


async def all_but_one_delivered(world):
    return 29 == (await world.states()).count("delivered")


async def test_a_hint_wakes_the_relay_and_polling_needs_none(world, pretend):
    """C97: whoever hints may die; the poll finds everything. A hint carries nothing (C96)."""
    world.policy = replace(world.policy, poll=HOUR)
    async with world.running() as running:
        await world.until(lambda: running.turns == 1)
        await world.enqueue(an_entry(1))
        running.hint.set()
        await world.until(lambda: len(pretend.calls) == 1)
        await world.until(lambda: not running.hint.is_set())

    world.policy = replace(world.policy, poll=timedelta(milliseconds=20))
    async with world.running() as running:
        await world.enqueue(an_entry(2))
        await world.until(lambda: len(pretend.calls) == 2)
        await world.until(lambda: running.turns > 3)


async def test_no_transaction_is_open_during_a_call(world, pretend):
    """P8, C100: the destination looks at the database while it is being called."""
    seen = []
    asked = asyncio.Event()

    async def look():
        await asked.wait()
        async with world.engine.connect() as connection:
            rows = await connection.exec_driver_sql(
                "select state from pg_stat_activity where datname = current_database()"
                " and pid <> pg_backend_pid()"
            )
            seen.extend(rows.scalars())
        pretend.release.set()

    def behave(_number, _call):
        asked.set()
        return Misbehaves("hangs")

    pretend.behave = behave
    await world.enqueue(an_entry())
    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        await world.relay_once()
    assert set(seen) <= {"idle"}


async def test_statements_do_not_grow_with_the_entries(world):
    world.set(concurrency=50)
    await world.enqueue(an_entry(100))
    await world.relay_once()  # the destination is known from here on
    await world.enqueue(*(an_entry(n) for n in range(50)))
    statements = []
    event.listen(
        world.engine.sync_engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: statements.append(statement),
    )
    assert 50 == await world.relay_once()
    # ask what may go, find the window, lease; settle, record the attempts
    assert 5 == len(statements)
