"""The relay dies, stalls, or is told to stop, anywhere (P9, C65, C67, C69, C70)."""

import asyncio
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from outbox.entry import State, Verdict
from outbox.leasing import Wanted, lease
from outbox.releasing import release
from outbox.settling import Mark, settle
from tests.outbox.pretend import Answers, Misbehaves, in_turn
from tests.outbox.world import Crash, an_entry, crash_at

pytestmark = pytest.mark.anyio

LEASE = timedelta(seconds=60)
VERDICTS = {
    State.PENDING: Verdict.RETRY,
    State.DELIVERED: Verdict.DELIVERED,
    State.DEAD: Verdict.DEAD,
    State.UNCERTAIN: Verdict.UNCERTAIN,
}
BEFORE_THE_CALL = ["relay-after-lease", "relay-before-send"]
AFTER_THE_CALL = ["relay-after-send", "relay-before-mark"]


async def dies(world, at):
    try:
        await world.relay_once(point=crash_at(at))
    except (Crash, BaseExceptionGroup):
        return
    raise AssertionError(f"never came to {at}")


@pytest.mark.parametrize("at", BEFORE_THE_CALL + AFTER_THE_CALL)
async def test_a_dead_relays_work_comes_back_under_the_same_key(world, pretend, at):
    """Nobody takes it while the lease runs; afterwards anybody does, and attempts are counted."""
    await world.enqueue(an_entry())
    await dies(world, at)
    assert 0 == await world.relay_once()
    assert ["pending"] == await world.states()

    await world.time_passes(LEASE)
    assert 1 == await world.relay_once()
    assert (["delivered"], 2) == (await world.states(), (await world.entry()).attempts)
    assert {"key_1"} == set(pretend.keys)
    assert (2 if at in AFTER_THE_CALL else 1) == len(pretend.calls)
    first, second = await world.attempts()
    assert ("the last call was never answered", None, None) == (
        first.error,
        first.verdict,
        first.finished_at,
    )
    assert "delivered" == second.verdict
    assert timedelta(0) <= second.started_at - first.started_at < 2 * LEASE


@pytest.mark.parametrize("at", BEFORE_THE_CALL + AFTER_THE_CALL)
async def test_without_idempotency_a_call_that_was_never_closed_is_not_repeated(world, pretend, at):
    """B4: backed off, and leased and never heard of again, are told apart."""
    await world.enqueue(an_entry(idempotent=False))
    await dies(world, at)
    await world.time_passes(LEASE)
    assert 0 == await world.relay_once()
    row = await world.entry()
    assert ("uncertain", "the last call was never answered") == (row.state, row.last_error)
    assert (1 if at in AFTER_THE_CALL else 0) == len(pretend.calls)


async def test_a_relay_that_dies_after_the_mark_repeats_nothing(world, pretend):
    await world.enqueue(an_entry())
    await dies(world, "relay-after-mark")
    await world.time_passes(LEASE)
    assert 0 == await world.relay_once()
    assert 1 == len(pretend.calls)


async def test_an_entry_that_kills_its_relay_uses_itself_up(world, pretend):
    """C72: attempts are counted when they are begun, not when somebody lives to tell."""
    world.set(max_attempts=3)
    await world.enqueue(an_entry())
    for _ in range(3):
        await dies(world, "relay-after-send")
        await world.time_passes(LEASE)
    assert 0 == await world.relay_once()
    row = await world.entry()
    assert ("uncertain", 3, "attempts used up") == (row.state, row.attempts, row.last_error)
    assert 3 == len(pretend.calls)
    assert [1, 2, 3] == [one.attempt for one in await world.attempts()]


async def test_several_relays_make_each_attempt_once(world, pretend):
    """C70: twenty entries that failed, three relays started at once."""
    pretend.behave = lambda number, _call: Answers(status=500 if number <= 20 else 200)
    world.set(concurrency=20)
    await world.enqueue(*(an_entry(n) for n in range(20)))
    await world.relay_once()
    await world.time_passes(timedelta(hours=1))
    async with world.running(), world.running(), world.running():
        await world.until(lambda: len(pretend.calls) >= 40)
        await world.until(lambda: none_pending(world))
    assert 40 == len(pretend.calls)
    assert {2} == {pretend.keys.count(key) for key in pretend.keys}
    assert {1} == set(pretend.most_per_key.values())
    assert 40 == len(await world.attempts())


async def test_several_relays_share_a_backlog(world, pretend):
    await world.enqueue(*(an_entry(n) for n in range(300)))
    async with world.running(), world.running():
        await world.until(lambda: none_pending(world))
    assert 300 == len(pretend.calls) == len(set(pretend.keys))


async def none_pending(world):
    return "pending" not in await world.states()


async def lease_one(world, **changes):
    wanted = {
        "destination": "payments",
        "free": 1,
        "lease": LEASE,
        "hold_after_dead": False,
        "max_attempts": 12,
        "key_life": timedelta(hours=23),
        **changes,
    }
    async with world.engine.begin() as connection:
        leased, *_ = await lease(connection, [Wanted(**wanted)])
    return leased[0] if leased else None


async def report(world, leased, state, **changes):
    fields = {
        "id": leased.id,
        "attempt": leased.attempt,
        "started_at": leased.leased_at,
        "state": state,
        "wait": timedelta(0),
        "maybe_sent": True,
        "refusals": 0,
        "verdict": VERDICTS[state],
        "status": 200,
        "error": None,
        "ordered": False,
        **changes,
    }
    async with world.engine.begin() as connection:
        return await settle(connection, [Mark(**fields)])


@pytest.mark.parametrize("failure", [State.PENDING, State.DEAD, State.UNCERTAIN])
async def test_a_failure_of_an_old_attempt_changes_nothing(world, failure):
    await world.enqueue(an_entry())
    old = await lease_one(world)
    await world.time_passes(LEASE)
    new = await lease_one(world)
    assert (1, 2) == (old.attempt, new.attempt)

    before = await world.entry()
    assert set() == await report(world, old, failure)
    assert before == await world.entry()
    assert {new.id} == await report(world, new, State.DELIVERED)
    assert set() == await report(world, new, failure)
    assert ["delivered"] == await world.states()


@pytest.mark.parametrize("given_up", [State.DEAD, State.UNCERTAIN, State.PENDING])
async def test_a_success_of_any_attempt_settles_the_entry(world, given_up):
    """A4: relay 1 pauses and is performed; relay 2's attempt is refused. The 200 counts."""
    await world.enqueue(an_entry())
    old = await lease_one(world)
    await world.time_passes(LEASE)
    new = await lease_one(world)
    await report(world, new, given_up, error="answered 400")
    assert {old.id} == await report(world, old, State.DELIVERED)
    row = await world.entry()
    assert ("delivered", None, None) == (row.state, row.due_at, row.last_error)


async def test_a_success_does_not_undo_history(world):
    await world.enqueue(an_entry())
    leased = await lease_one(world)
    async with world.engine.begin() as connection:
        await connection.execute(text("update reconciler.outbox set state = 'skipped'"))
    assert set() == await report(world, leased, State.DELIVERED)
    assert "skipped" == (await world.entry()).state


async def test_what_is_given_back_is_as_if_it_had_not_been_leased(world):
    """Given back twice, or after another relay has it, it changes nothing."""
    await world.enqueue(an_entry())
    before = await world.entry()
    leased = await lease_one(world)
    async with world.engine.begin() as connection:
        await release(connection, [leased])
    after = await world.entry()
    assert (0, False, None) == (after.attempts, after.call_open, after.first_attempt_at)
    assert before.due_at == after.due_at

    again = await lease_one(world)
    assert 1 == again.attempt
    taken = await world.entry()
    async with world.engine.begin() as connection:
        await release(connection, [leased])
    assert taken == await world.entry()


async def test_giving_back_does_not_forget_an_earlier_attempt_that_may_have_been_sent(
    world, pretend
):
    pretend.behave = in_turn(Misbehaves("closes"))
    await world.enqueue(an_entry())
    await world.relay_once()
    began = (await world.entry()).first_attempt_at
    async with world.engine.begin() as connection:
        await connection.execute(text("update reconciler.outbox set due_at = now()"))
    leased = await lease_one(world)
    assert leased.maybe_sent
    async with world.engine.begin() as connection:
        await release(connection, [leased])
    row = await world.entry()
    assert (began, 1) == (row.first_attempt_at, row.attempts)


async def test_a_relay_that_wakes_up_too_late_does_not_call(world, pretend):
    """B4: it stalls between lease and call; by then the lease may be another's."""
    world.policy = replace(world.policy, poll=timedelta(hours=1))
    await world.enqueue(an_entry())
    clock = StallsAfterLease(seconds=60 - 5 - 1.0)
    async with world.running(clock=clock.now, point=clock.point):
        await world.until(lambda: clock.time)
        await world.until(lambda: given_back(world))
        assert [] == pretend.calls
    assert (await world.entry()).first_attempt_at is None

    clock = StallsAfterLease(seconds=60 - 5 - 1.01)
    async with world.running(clock=clock.now, point=clock.point):
        await world.until(lambda: len(pretend.calls) == 1)
    assert ["delivered"] == await world.states()


class StallsAfterLease:
    """A relay's clock: the process stands still between each lease and its call."""

    def __init__(self, *, seconds: float) -> None:
        self.seconds = seconds
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def point(self, name: str) -> None:
        if name == "relay-after-lease":
            self.time += self.seconds


async def given_back(world):
    row = await world.entry()
    return row.attempts == 0 and not row.call_open


async def test_a_call_that_takes_its_whole_time_is_not_taken_over(world, pretend):
    """C67: while one relay waits for an answer, another finds nothing to do."""
    pretend.behave = in_turn(Misbehaves("answers_late"))
    await world.enqueue(an_entry())
    async with world.running(), world.running() as other:
        await world.until(lambda: pretend.in_flight == 1)
        turns = other.turns
        await world.until(lambda: other.turns > turns + 3)
        pretend.release.set()
    assert 1 == len(pretend.calls)
    assert ["delivered"] == await world.states()


async def test_the_hosts_clock_decides_nothing(world, pretend, monkeypatch):
    """C69: a relay two minutes ahead of the database steals nothing and hurries nothing."""
    monkeypatch.setattr("time.time", lambda: 4102444800.0)
    monkeypatch.setattr("time.time_ns", lambda: 4102444800 * 10**9)
    pretend.behave = in_turn(Answers(status=503, headers=(("Retry-After", "30"),)), Answers())
    await world.enqueue(an_entry())
    await world.relay_once()
    assert 0 == await world.relay_once()
    (wait,) = await world.waits()
    assert 0 < wait <= 600
    await world.time_passes(timedelta(minutes=10))
    assert 1 == await world.relay_once()


async def test_a_stop_lets_the_call_in_flight_end_and_takes_no_more(world, pretend):
    world.set(concurrency=1)
    pretend.behave = in_turn(Misbehaves("answers_late"))
    await world.enqueue(an_entry(1), an_entry(2))
    async with world.running() as running:
        await world.until(lambda: pretend.in_flight == 1)
        running.stop.set()
        pretend.release.set()
    assert ["delivered", "pending"] == await world.states()
    assert [1, 0] == [row.attempts for row in await world.entries()]


async def test_what_is_leased_as_the_stop_comes_is_given_back(world, pretend):
    world.set(max_attempts=1)
    await world.enqueue(an_entry(idempotent=False))
    async with world.running(point=lambda _: running.stop.set()) as running:
        await world.until(running.stop.is_set)
    assert [] == pretend.calls
    row = await world.entry()
    assert ("pending", 0, False, None) == (
        row.state,
        row.attempts,
        row.call_open,
        row.first_attempt_at,
    )
    assert 1 == await world.relay_once()
    assert ["delivered"] == await world.states()


async def test_a_drain_that_takes_too_long_is_cut_off_and_comes_back_by_its_lease(world, pretend):
    pretend.behave = in_turn(Misbehaves("hangs"), Answers())
    await world.enqueue(an_entry())
    async with world.running() as running:
        await world.until(lambda: pretend.in_flight == 1)
        running.stop.set()
        running.task.cancel()
    row = await world.entry()
    assert ("pending", True) == (row.state, row.call_open)
    await world.time_passes(LEASE)
    await world.relay_once()
    assert ["key_1", "key_1"] == pretend.keys


async def test_a_relay_killed_for_real_loses_and_doubles_nothing(world, pretend, database_url):
    """kill -9 between the destination's answer and the mark, then a relay that lives."""
    performed = set()

    def behave(_number, call):
        performed.add(call.key)
        return Answers()

    pretend.behave = behave
    await world.enqueue(an_entry(1), an_entry(2), an_entry(3))
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("relay_that_dies.py")),
        database_url,
        pretend.url,
        "relay-before-mark",
        stdout=subprocess.DEVNULL,
    )
    assert -signal.SIGKILL == await child.wait()
    called = len(pretend.calls)
    assert called >= 1
    assert ["pending"] * 3 == await world.states()

    await world.time_passes(LEASE)
    await world.relay_once()
    assert ["delivered"] * 3 == await world.states()
    assert {"key_1", "key_2", "key_3"} == performed
    assert called + 3 == len(pretend.calls)
