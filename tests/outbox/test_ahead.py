"""Calls that are leased before there is a slot for them: many at a time, and never too many."""

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from outbox.ahead import MOMENT, MOST, OVERDUE, Ahead
from outbox.breaker import Breaker, Seen
from outbox.destinations import Channel, Request
from outbox.leasing import Leased
from outbox.marking import WAITING_MAX
from outbox.pausing import pause
from outbox.verdict import Answer, Failure, Reply
from outbox.windows import ends
from tests.outbox.pretend import Answers, Misbehaves
from tests.outbox.test_crashes import lease_one
from tests.outbox.test_outages import marking_of
from tests.outbox.world import an_entry

pytestmark = pytest.mark.anyio

SLOTS = 8


def no_time() -> float:
    """A clock by which every call is quick, and nothing waits for long."""
    return 0.0


class Counted:
    """A channel that counts how many calls are under way in it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.under_way = 0
        self.most = 0

    async def send(self, request: Request, *, timeout: timedelta) -> Answer | Reply | Failure:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await self.channel.send(request, timeout=timeout)
        finally:
            self.under_way -= 1

    async def close(self) -> None:
        await self.channel.close()


class Leases:
    """How often a relay leased something."""

    def __init__(self) -> None:
        self.count = 0

    def point(self, name: str) -> None:
        self.count += name == "relay-after-lease"


async def test_calls_that_take_milliseconds_are_leased_many_at_a_time(world, pretend):
    """600 calls with 8 slots: once for all slots, until it is known how quick they are."""
    leases = Leases()
    counted = Counted(world.destination.channel)
    world.set(channel=counted)
    await world.enqueue(*(an_entry(n) for n in range(600)))
    async with world.running(clock=no_time, point=leases.point):
        await world.until(lambda: none_pending(world))
    assert 600 == len(pretend.calls) == len(set(pretend.keys))
    assert SLOTS == counted.most
    assert leases.count < 600 / SLOTS / 3


async def test_two_relays_that_lease_ahead_never_call_more_at_once_than_one(world, pretend):
    """What waits in one of them counts in the other as if it were under way."""
    counted = Counted(world.destination.channel)
    world.set(channel=counted)
    await world.enqueue(*(an_entry(n) for n in range(600)))
    async with world.running(clock=no_time), world.running(clock=no_time):
        await world.until(lambda: none_pending(world))
    assert 600 == len(pretend.calls) == len(set(pretend.keys))
    assert SLOTS == counted.most


async def test_slots_that_another_process_uses_are_left_to_it(world, pretend):
    """It has leased four calls and makes them; however many wait here, four go out at once."""
    counted = Counted(world.destination.channel)
    world.set(channel=counted)
    await world.enqueue(*(an_entry(n) for n in range(600)))
    await lease_one(world, free=SLOTS // 2)
    async with world.running(clock=no_time):
        await world.until(lambda: len(pretend.calls) == 600 - SLOTS // 2)
    assert SLOTS // 2 == counted.most


async def test_calls_that_may_not_be_repeated_are_not_leased_ahead(world, pretend):
    """A crash would leave each that is leased unknown for ever, called or not."""
    leases = Leases()
    await world.enqueue(*(an_entry(n, idempotent=False) for n in range(100)))
    async with world.running(clock=no_time, point=leases.point):
        await world.until(lambda: none_pending(world))
    assert 100 == len(pretend.calls)
    assert leases.count >= 100 / SLOTS


async def test_what_waits_is_given_back_when_calls_become_slow(world, pretend):
    """Nobody else could call it meanwhile; its attempt was none."""
    pretend.behave = quick_until(200)
    await world.enqueue(*(an_entry(n) for n in range(600)))
    with capture_logs() as logs:
        async with world.running():
            await world.until(lambda: pretend.in_flight == SLOTS)
            await world.until(lambda: only_slots_are_open(world))
            pretend.release.set()
            await world.until(lambda: none_pending(world))
    assert [one for one in logs if one["event"] == "relay.given_back"]
    assert 600 == len(pretend.calls) == len(set(pretend.keys))
    assert {1} == {row.attempts for row in await world.entries()}


async def test_large_bodies_are_leased_ahead_only_as_far_as_memory_is_meant_for_them(world):
    """What has a slot is called, however large it is; beyond that its bytes count."""
    await world.enqueue(*(an_entry(n, body=b"x" * 3_000_000) for n in range(12)))
    await lease_one(world, free=10, ahead=8, concurrency=2)
    assert 2 == await open_calls(world)
    await lease_one(world, free=10)
    assert 12 == await open_calls(world)


async def test_when_calls_become_slow_a_backlog_is_not_left_until_the_poll(
    world, pretend, monkeypatch
):
    """A piece of it gave less than was wanted while all slots were busy; the poll is in an hour."""
    monkeypatch.setattr("outbox.windows._ENDS", ends(10))
    pretend.behave = quick_until(100)
    world.policy = replace(world.policy, poll=timedelta(hours=1))
    await world.enqueue(*(an_entry(n) for n in range(300)))
    async with world.running():
        await world.until(lambda: pretend.in_flight == SLOTS)
        await world.until(lambda: only_slots_are_open(world))
        pretend.release.set()
        await world.until(lambda: len(pretend.calls) == 300)


async def test_a_destination_that_begins_to_fail_is_spared_what_was_leased_ahead(world, pretend):
    """The breaker opens with the fifth failure; what waited for slots is not called after it."""
    pretend.behave = lambda number, _: Answers(status=200 if number <= 300 else 503)
    breaker = Breaker(after=5, pause=timedelta(hours=1), pause_max=timedelta(hours=1))
    world.set(breaker=breaker)
    await world.enqueue(*(an_entry(n) for n in range(1000)))
    async with world.running(clock=no_time):
        await world.until(lambda: len(pretend.calls) > 300)
        await world.until(lambda: nothing_is_open(world))
    assert len(pretend.calls) < 300 + 10 * SLOTS


async def test_a_relay_that_stops_gives_back_what_waits_before_its_calls_have_ended(world, pretend):
    pretend.behave = quick_until(100)
    await world.enqueue(*(an_entry(n) for n in range(600)))
    async with world.running(clock=no_time) as running:
        await world.until(lambda: pretend.in_flight == SLOTS)
        running.stop.set()
        await world.until(lambda: only_slots_are_open(world))
        pretend.release.set()
    unsent = [row for row in await world.entries() if row.state == "pending"]
    assert 600 - len(pretend.calls) == len(unsent) > 0
    assert {(0, None)} == {(row.attempts, row.first_attempt_at) for row in unsent}


@pytest.mark.parametrize(
    ("seconds", "more"), [(0.0, MOST), (MOMENT / 10, SLOTS * 10), (MOMENT, 0), (30.0, 0)]
)
async def test_as_much_is_leased_ahead_as_the_slots_call_in_a_moment(seconds, more):
    ahead = Ahead(list)
    assert 0 == ahead.more("payments", SLOTS)  # nobody knows yet
    for _ in range(200):
        ahead.went(how_it_went(), seconds=seconds)
    assert more == pytest.approx(ahead.more("payments", SLOTS), abs=1)
    ahead.went(how_it_went(trouble=True), seconds=seconds)
    assert 0 == ahead.more("payments", SLOTS)


@pytest.mark.parametrize(
    ("calls", "kept"),
    [
        ([{"trouble": True}], True),
        ([{"trouble": True}, {}, {"trouble": True}], True),
        ([{"trouble": True}, {"trouble": True}], False),
        ([{"slowed": timedelta(seconds=1)}], False),
    ],
)
async def test_a_single_failure_does_not_send_back_what_waits(world, calls, kept):
    """Every destination fails now and then; one that is asked to be called less says so."""
    given_back: list[Leased] = []
    ahead = Ahead(given_back.extend)
    await world.enqueue(an_entry())
    leased = await lease_one(world)
    ahead.add([leased], at=0.0)
    for call in calls:
        ahead.went(how_it_went(**call), seconds=0.001)
    assert ([] if kept else [leased]) == given_back


async def test_what_waits_for_too_long_is_overdue(world):
    await world.enqueue(an_entry())
    given_back: list[Leased] = []
    ahead = Ahead(given_back.extend)
    assert ahead.overdue_in(100.0) is None
    leased = await lease_one(world)
    ahead.add([leased], at=100.0)
    assert OVERDUE == pytest.approx(ahead.overdue_in(100.0))
    ahead.drop_overdue(100.0 + OVERDUE - 0.01, ["payments"])
    assert [] == given_back
    ahead.drop_overdue(100.0 + OVERDUE + 0.01, ["payments"])
    assert [leased] == given_back
    assert ahead.next("payments") is None


async def test_calls_without_a_key_are_never_leased_ahead_of_those_that_have_one(world):
    """A crash would leave them unknown. Nor is a last attempt, for which there is no other."""
    await world.enqueue(*(an_entry(n) for n in range(3)))
    await world.enqueue(*(an_entry(n, idempotent=False) for n in range(3, 6)))
    await world.enqueue(*(an_entry(n) for n in range(6, 9)))
    first = await lease_one(world, free=2, ahead=50, concurrency=2)
    assert "evt_0" == first.event_id
    assert {"evt_0", "evt_1", "evt_2"} == await open_events(world)
    await lease_one(world, free=2, ahead=50, concurrency=5)  # two more have a slot
    assert {f"evt_{n}" for n in range(5)} == await open_events(world)
    await lease_one(world, free=0, ahead=50, concurrency=5, max_attempts=1, busy=True)
    assert 5 == await open_calls(world)


@pytest.mark.parametrize("entries", [600, 800])  # more would be leased; enough waits
@pytest.mark.parametrize("effect", ["", "capture"])
async def test_a_pause_reaches_what_was_leased_ahead(world, pretend, effect, entries):
    """From its next look at the outbox the relay sends nothing more, but for what has a slot."""
    pretend.behave = quick_until(100)
    world.policy = replace(world.policy, poll=timedelta(milliseconds=10))
    await world.enqueue(*(an_entry(n) for n in range(entries)))
    async with world.running(clock=no_time):
        await world.until(lambda: pretend.in_flight == SLOTS)
        assert SLOTS < await open_calls(world)
        async with world.engine.begin() as connection:
            await pause(connection, "payments", effect=effect, actor="ann", reason=None)
        await world.until(lambda: only_slots_are_open(world))
        pretend.release.set()
        await world.until(lambda: nothing_is_open(world))
    assert 100 + SLOTS == len(pretend.calls)


async def test_what_is_given_back_keeps_its_place(world, pretend):
    """It was due before all that has come since, and is again; another relay calls it first."""
    pretend.behave = quick_until(100)
    await world.enqueue(*(an_entry(n) for n in range(400)))
    due = {row.event_id: row.due_at for row in await world.entries()}
    async with world.running(clock=no_time) as running:
        await world.until(lambda: pretend.in_flight == SLOTS)
        running.stop.set()
        await world.until(lambda: only_slots_are_open(world))
        pretend.release.set()
    unsent = {row.event_id: row.due_at for row in await world.entries() if row.state == "pending"}
    assert unsent
    assert unsent == {name: due[name] for name in unsent}


async def test_what_is_given_back_does_not_count_as_marks_that_are_behind(world):
    """Nobody would be called twice for it, and the other destinations go on meanwhile."""
    await world.enqueue(an_entry())
    leased = await lease_one(world)
    marking = marking_of(world, written=list)
    for _ in range(WAITING_MAX):
        marking.add(leased)
    assert not marking.behind


async def test_what_is_asked_for_while_all_slots_are_busy_does_not_wait_for_the_poll(
    world, pretend
):
    """The hint comes when there is neither a slot nor anything else due; the poll is in an hour."""
    pretend.behave = quick_until(100)
    world.policy = replace(world.policy, poll=timedelta(hours=1))
    await world.enqueue(*(an_entry(n) for n in range(100 + SLOTS)))
    async with world.running(clock=no_time) as running:
        await world.until(lambda: pretend.in_flight == SLOTS)
        await world.enqueue(an_entry(1000))
        running.hint.set()
        await world.until(lambda: not running.hint.is_set())
        pretend.release.set()
        await world.until(lambda: "key_1000" in pretend.keys)


def quick_until(number):
    """So many are answered at once, and all further ones when they are released."""
    return lambda nth, _: Answers() if nth <= number else Misbehaves("answers_late")


async def none_pending(world):
    return "pending" not in await world.states()


def how_it_went(**changes):
    told = {"trouble": False, "opens": False, "probe": False, "slowed": None, "reason": None}
    return Seen(destination="payments", entry=uuid4(), **(told | changes))


async def open_events(world):
    return {row.event_id for row in await world.entries() if row.call_open}


async def open_calls(world):
    return sum(row.call_open for row in await world.entries())


async def only_slots_are_open(world):
    return await open_calls(world) == SLOTS


async def nothing_is_open(world):
    return await open_calls(world) == 0
