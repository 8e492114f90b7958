"""Stories of what a destination takes: over all relays that call it, by the database's clock."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import event, select, text
from structlog.testing import capture_logs

from outbox import relay
from outbox.breaker import Breaker, Seen
from outbox.entry import uuid7
from outbox.flow import Rate, tokens_at
from outbox.flow_tables import destination_flow
from outbox.noting import Noting
from outbox.pausing import pause, paused, resume
from outbox.store import outbox
from outbox.waiting import Waits, standings, waiting_for
from tests.outbox.pretend import Answers, Misbehaves, in_turn
from tests.outbox.test_redriving import blocked
from tests.outbox.world import an_entry, run_sql

pytestmark = pytest.mark.anyio

BREAKER = Breaker(after=3, pause=timedelta(minutes=1), pause_max=timedelta(minutes=5))
SICK = Answers(status=503)


async def flow_of(world, destination="payments"):
    async with world.engine.connect() as connection:
        rows = await connection.execute(
            select(destination_flow).where(destination_flow.c.destination == destination)
        )
        return rows.one_or_none()


async def the_pause_is_over(world):
    await run_sql(world.engine, "update reconciler.destination_flow set probe_at = now()")


async def waits(world):
    """What each entry waits for, in the order of their events."""
    entries = await world.entries()
    async with world.engine.connect() as connection:
        found = await waiting_for(connection, {one.id: one.destination for one in entries})
    return [found[one.id].what if one.id in found else None for one in entries]


async def all_through(world):
    return "pending" not in await world.states()


async def test_concurrency_counts_over_all_relays(world, pretend):
    """Three relays of a destination that takes four calls at once: it never sees a fifth."""
    world.set(concurrency=4)
    pretend.behave = in_turn(Misbehaves("answers_late"))
    await world.enqueue(*(an_entry(n) for n in range(1, 31)))
    async with world.running(), world.running(), world.running():
        await world.until(lambda: pretend.in_flight == 4)
        await asyncio.sleep(0.1)  # for whoever would make a fifth
        assert [Waits.ANSWER] * 4 == [one for one in await waits(world) if one is Waits.ANSWER]
        pretend.release.set()
        await world.until(lambda: all_through(world))
    assert 4 == pretend.most_in_flight
    assert 30 == len(pretend.calls)


async def test_each_destination_keeps_to_its_own_concurrency(world):
    """They are leased for in one statement: what the one takes at once is nothing to the other."""
    world.set(concurrency=2)
    world.others["ledger"] = replace(world.destination, concurrency=5)
    names = ("payments", "ledger")
    await world.enqueue(*(an_entry(n, destination=names[n % 2]) for n in range(40)))
    assert 7 == await world.relay_once()
    called = Counter(one.destination for one in await world.entries() if one.attempts)
    assert {"payments": 2, "ledger": 5} == called


async def test_a_call_whose_lease_has_ended_takes_no_slot(world, pretend):
    """Its relay is dead: others need not wait for what it was doing."""
    world.set(concurrency=1)
    await world.enqueue(an_entry(1), an_entry(2))
    await run_sql(
        world.engine,
        "update reconciler.outbox set attempts = 1, call_open = true,"
        " due_at = clock_timestamp() + interval '1 hour' where event_id = 'evt_1'",
    )
    assert 0 == await world.relay_once()
    await run_sql(
        world.engine,
        "update reconciler.outbox set due_at = now() - interval '1 second'"
        " where event_id = 'evt_1'",
    )
    assert 1 == await world.relay_once()


async def test_a_call_that_ended_makes_room_before_it_is_marked(world, pretend):
    """One relay keeps its slots full: it knows which of the open calls are over."""
    world.set(concurrency=1)
    pretend.behave = in_turn(Misbehaves("answers_late"), Answers())
    await world.enqueue(an_entry(1), an_entry(2))
    async with world.running(), world.engine.connect() as other:
        await world.until(lambda: pretend.in_flight == 1)
        await other.execute(select(outbox.c.id).where(outbox.c.call_open).with_for_update())
        pretend.release.set()
        await world.until(lambda: len(pretend.calls) == 2)
        assert ["pending", "pending"] == await world.states()
        await other.rollback()
        await world.until(lambda: all_through(world))


async def test_a_rate_is_shared_by_relays_and_effects(world, pretend):
    """Fifty calls a second, whoever makes them: thirty, of two effects, take half a second."""
    world.set(rate=Rate(per_second=50, burst=5))
    arrivals = []

    def behave(_number, _call):
        arrivals.append(time.monotonic())
        return Answers()

    pretend.behave = behave
    await world.enqueue(
        *(an_entry(n, effect="capture" if n % 2 else "receipt") for n in range(1, 31))
    )
    async with world.running(), world.running(), world.running():
        await world.until(lambda: all_through(world))
    assert 30 == len(pretend.calls)
    assert arrivals[-1] - arrivals[0] >= (30 - 5) / 50 - 0.02
    tenths = [sum(began <= at < began + 0.1 for at in arrivals) for began in arrivals]
    assert max(tenths) <= 5 + 5 + 1, tenths


async def test_what_was_leased_and_not_sent_is_given_back_to_the_rate(world, pretend):
    """A relay is stopped right after it has leased: what it did not call does not count."""
    world.set(rate=Rate(per_second=0.001, burst=3))
    async with world.running() as first:
        await world.until(lambda: first.turns)
        first.stop.set()
    await world.enqueue(an_entry(1), an_entry(2))
    stopping = asyncio.Event()
    await relay.run(
        world.engine,
        world.destinations,
        world.policy,
        hint=asyncio.Event(),
        stop=stopping,
        progress=lambda: None,
        point=lambda name: stopping.set() if name == "relay-after-lease" else None,
    )
    assert [] == pretend.calls
    assert 2.9 < (await flow_of(world)).tokens <= 3.1


async def test_relays_that_are_stopped_at_once_never_deadlock(world):
    """One gives back a call of the second destination and notes a failure of the first."""
    names = ("ledger", "payments")
    rated = {name: replace(world.destination, rate=Rate(per_second=1, burst=5)) for name in names}
    seen = Seen(
        destination="ledger",
        entry=uuid7(),
        trouble=True,
        opens=False,
        probe=False,
        slowed=None,
        reason="answered 503",
    )
    mark, unsent = SimpleNamespace(seen=seen), SimpleNamespace(destination="payments", probe=False)

    async def note():
        async with world.engine.begin() as connection:
            await Noting(rated, random=lambda: 0.5).note(connection, [mark], [unsent])

    await run_sql(
        world.engine,
        "insert into reconciler.destination_flow (destination, tokens, filled_at)"
        " values ('ledger', 1, now()), ('payments', 1, now())",
    )
    async with world.engine.connect() as other, other.begin():
        await other.execute(locked("ledger"))
        noting = asyncio.create_task(note())
        await blocked(world, unless=noting)
        await other.execute(locked("payments"))
        await other.commit()
        await noting
    assert 2.0 == (await flow_of(world)).tokens


def locked(name):
    return select(destination_flow).where(destination_flow.c.destination == name).with_for_update()


async def test_nobody_waits_for_a_destination_that_another_relay_leases_for(world, pretend):
    """The row is locked by somebody who has stopped: others go on with what is not his."""
    await world.relay_once()
    await world.enqueue(an_entry(1), an_entry(2, destination="mail"))
    await run_sql(
        world.engine, "insert into reconciler.destination_flow (destination) values ('payments')"
    )
    both = {"payments": world.destination, "mail": world.destination}
    async with world.engine.connect() as other, other.begin():
        await other.execute(select(destination_flow).with_for_update())
        assert 1 == await relay.run_once(world.engine, both, world.policy)
    assert ["key_2"] == pretend.keys
    assert 1 == await relay.run_once(world.engine, both, world.policy)


async def test_a_destination_that_is_not_well_is_left_alone(world, pretend):
    """After three failures in a row it is called no more: nobody uses attempts up meanwhile."""
    world.set(breaker=BREAKER, concurrency=1)
    pretend.behave = in_turn(SICK)
    await world.enqueue(*(an_entry(n) for n in range(1, 8)))
    with capture_logs() as logs:
        for _ in range(6):
            await world.relay_once()
    assert 3 == len(pretend.calls)
    assert [1, 1, 1, 0, 0, 0, 0] == [one.attempts for one in await world.entries()]
    assert [None] * 4 == [one.first_attempt_at for one in await world.entries()][3:]
    (alert,) = [line for line in logs if line["event"] == "relay.breaker_opened"]
    assert ("payments", "error", "answered 503") == tuple(
        alert[name] for name in ("destination", "log_level", "reason")
    )
    assert Waits.BREAKER is (await waits(world))[6]
    async with world.engine.connect() as connection:
        told = (await standings(connection))["payments"]
    assert ("open", "breaker", 3) == (told["breaker"], told["waiting_for"], told["failures"])
    assert told["waiting_until"] == told["probe_at"]


async def test_one_probe_over_all_relays_and_a_success_closes(world, pretend):
    """Half open: one call sees whether it is well, the others wait for what it finds."""
    world.set(breaker=BREAKER)
    pretend.behave = lambda number, _: SICK if number <= 4 else Misbehaves("answers_late")
    await world.enqueue(*(an_entry(n) for n in range(1, 5)))
    await world.relay_once()
    await world.enqueue(*(an_entry(n) for n in range(11, 31)))
    assert 0 == await world.relay_once()
    await the_pause_is_over(world)
    async with world.running(), world.running(), world.running():
        await world.until(lambda: pretend.in_flight == 1)
        await asyncio.sleep(0.1)  # for whoever would make a second
        assert (5, 1) == (len(pretend.calls), pretend.in_flight)
        pretend.release.set()
        await world.until(lambda: len(pretend.calls) == 24)
    assert "closed" == (await flow_of(world)).breaker
    assert 20 == (await world.states()).count("delivered")


async def test_a_success_between_two_failures_counts_though_nothing_was_due_meanwhile(
    world, pretend
):
    """In a row means in a row, though all that there is to call is under way or backs off."""
    world.set(breaker=Breaker(after=2, pause=timedelta(minutes=1), pause_max=timedelta(minutes=5)))
    behaves = {"key_1": Misbehaves("answers_late"), "key_2": SICK, "key_3": SICK}
    pretend.behave = lambda _number, call: behaves[call.key]
    async with world.running() as running:
        await world.enqueue(an_entry(1))
        await world.until(lambda: pretend.in_flight == 1)
        await world.enqueue(an_entry(2))
        await world.until(lambda: failed(world, 1))
        turns = running.turns
        await world.until(lambda: running.turns > turns + 3)
        pretend.release.set()
        await world.until(lambda: delivered(world, 1))
        await world.enqueue(an_entry(3))
        await world.until(lambda: failed(world, 2))
    flow = await flow_of(world)
    assert ("closed", 1) == (flow.breaker, flow.failures)


async def failed(world, number):
    """Whether so many entries wait for a second attempt."""
    return number == sum(
        one.refusals or one.last_error is not None for one in await world.entries()
    )


async def delivered(world, number):
    return number == (await world.states()).count("delivered")


async def test_a_probe_that_fails_waits_longer_for_the_next(world, pretend):
    world.set(breaker=BREAKER, concurrency=8)
    pretend.behave = in_turn(SICK)
    await world.enqueue(*(an_entry(n) for n in range(1, 21)))
    await world.relay_once()
    assert 8 == len(pretend.calls)
    for number in (9, 10):
        await the_pause_is_over(world)
        await world.relay_once()
        await world.relay_once()
        assert number == len(pretend.calls)
    flow = await flow_of(world)
    assert timedelta(minutes=3.9) < flow.probe_at - flow.opened_at < timedelta(minutes=5.1)


async def test_a_relay_that_dies_with_the_probe_leaves_it_to_others(world, pretend):
    """The probe is nobody's when its lease has ended."""
    world.set(breaker=BREAKER)
    pretend.behave = in_turn(SICK)
    await world.enqueue(*(an_entry(n) for n in range(1, 21)))
    await world.relay_once()
    await the_pause_is_over(world)

    def dies(name):
        if name == "relay-after-lease":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await world.relay_once(point=dies)
    assert 0 == await world.relay_once()
    flow = await flow_of(world)
    assert world.policy.lease - timedelta(seconds=5) < flow.probe_at - (await now(world))
    await the_pause_is_over(world)
    assert 1 == await world.relay_once()


async def now(world):
    async with world.engine.connect() as connection:
        return await connection.scalar(text("select clock_timestamp()"))


async def test_wrong_credentials_open_it_at_once(world, pretend):
    """401 is about us, not about an entry: an alert, and one call a minute until it is mended."""
    world.set(breaker=BREAKER, concurrency=1)
    pretend.behave = in_turn(Answers(status=401), Answers())
    await world.enqueue(an_entry(1), an_entry(2))
    await world.relay_once()
    assert 0 == await world.relay_once()
    await the_pause_is_over(world)
    assert 1 == await world.relay_once()
    assert ["pending", "delivered"] == await world.states()
    assert "closed" == (await flow_of(world)).breaker


async def test_a_call_that_is_refused_says_nothing_of_its_destination(world, pretend):
    world.set(breaker=BREAKER)
    pretend.behave = in_turn(Answers(status=400))
    await world.enqueue(*(an_entry(n) for n in range(1, 10)))
    await world.relay_once()
    assert 1 == await world.relay_once()
    assert ["dead"] * 9 == await world.states()


async def test_a_busy_destination_is_called_less_by_everybody(world, pretend):
    """
    C86, C88: with a rate, a 429 empties the bucket and fills it slower for as long as it says, in
    every relay; the entry itself waits out what was asked. A 503 slows only the one it answers.
    """
    world.set(concurrency=1, rate=Rate(per_second=8.0, burst=1))
    later = (("Retry-After", "20"),)
    pretend.behave = in_turn(
        Answers(status=503, headers=later), Answers(status=429, headers=later), Answers()
    )
    await world.enqueue(an_entry(1), an_entry(2), an_entry(3))
    await called(world)
    await called(world)
    flow = await flow_of(world)
    assert timedelta(seconds=18) < flow.slowed_until - (await now(world)) <= timedelta(seconds=20)
    assert 0 == await world.relay_once()
    assert Waits.SLOWED is (await waits(world))[2]
    await called(world)
    assert ["pending", "pending", "delivered"] == await world.states()


def test_a_bucket_fills_slower_while_fewer_calls_are_asked_for():
    """Eight seconds of which four were slow: four at full pace, and one."""
    then = datetime(2026, 1, 1, tzinfo=UTC)
    row = SimpleNamespace(
        tokens=0.0,
        filled_at=then,
        slowed_until=then + timedelta(seconds=4),
        now=then + timedelta(seconds=8),
    )
    assert 5 == tokens_at(row, Rate(per_second=1.0, burst=100))
    row.now = then + timedelta(seconds=4)
    assert 1 == tokens_at(row, Rate(per_second=1.0, burst=100))


async def called(world) -> None:
    """The next call, as soon as the destination's rate lets it go."""
    async with asyncio.timeout(10):
        while not await world.relay_once():  # noqa: ASYNC110 - by the database alone
            await asyncio.sleep(0.005)


async def test_without_a_rate_what_was_asked_is_asked_for_its_entry(world, pretend):
    """C86: one customer's 429 of an hour holds up no other's call."""
    pretend.behave = in_turn(Answers(status=429, headers=(("Retry-After", "3600"),)), Answers())
    await world.enqueue(an_entry(1))
    await world.relay_once()
    await world.enqueue(an_entry(2))
    assert 1 == await world.relay_once()
    assert ["pending", "delivered"] == await world.states()
    assert (await flow_of(world)).slowed_until is None


async def test_retry_after_is_clamped_for_the_destination_too(world, pretend):
    """A hostile value slows nobody for longer than an hour."""
    world.set(rate=Rate(per_second=100.0, burst=10))
    pretend.behave = in_turn(Answers(status=429, headers=(("Retry-After", "9" * 400),)))
    await world.enqueue(an_entry())
    await world.relay_once()
    slowed = (await flow_of(world)).slowed_until - await now(world)
    assert timedelta(minutes=59) < slowed <= timedelta(hours=1)


async def test_a_pause_counts_from_the_next_lease_of_every_relay(world, pretend):
    """Nothing is kept in mind: relays that are at work send no more from one turn to the next."""
    async with world.running(), world.running():
        await world.enqueue(an_entry(1))
        await world.until(lambda: len(pretend.calls) == 1)
        async with world.engine.begin() as connection:
            assert await pause(connection, "payments", actor="ops", reason="they asked us to")
            assert not await pause(connection, "payments", actor="another", reason=None)
        await world.enqueue(an_entry(2))
        await asyncio.sleep(0.1)  # for whoever would call it
        assert 1 == len(pretend.calls)
        assert [None, Waits.PAUSE] == await waits(world)
        async with world.engine.begin() as connection:
            assert ["ops"] == [one["actor"] for one in await paused(connection)]
            assert await resume(connection, "payments")
            assert not await resume(connection, "payments")
        await world.until(lambda: len(pretend.calls) == 2)


async def test_a_pause_of_one_effect_lets_the_others_go(world, pretend):
    async with world.engine.begin() as connection:
        await pause(connection, "payments", effect="capture", actor="ops", reason=None)
    await world.enqueue(an_entry(1), an_entry(2, effect="receipt"))
    assert 1 == await world.relay_once()
    assert ["key_2"] == pretend.keys
    assert [Waits.PAUSE, None] == await waits(world)


async def test_a_paused_effect_holds_its_lane(world, pretend):
    """Order is not given up because somebody paused what comes first."""
    async with world.engine.begin() as connection:
        await pause(connection, "payments", effect="capture", actor="ops", reason=None)
    about = {"kind": "order", "key": "42", "ordered": True}
    await world.enqueue(
        an_entry(1, **about, revision=1),
        an_entry(2, **about, revision=2, effect="receipt"),
        an_entry(3, kind="order", key="43", ordered=True, revision=1, effect="receipt"),
    )
    assert 1 == await world.relay_once()
    assert ["key_3"] == pretend.keys
    assert [Waits.PAUSE, Waits.LANE, None] == await waits(world)


@pytest.mark.parametrize("lane", [None, "order:42"])
async def test_all_of_a_lane_are_behind_the_first_that_is_not_through(world, lane):
    """The one to look at: not the nearest before each, and none that is through."""
    about = {"kind": "order", "key": "42", "ordered": lane is None, "lane": lane}
    entries = [an_entry(n, **about, revision=n) for n in (1, 2, 3, 4)]
    through, first, *behind = await world.enqueue(*entries)
    await run_sql(
        world.engine,
        "update reconciler.outbox set state = 'delivered', due_at = null where event_id = 'evt_1'",
    )
    async with world.engine.connect() as connection:
        asked = {one.id: "payments" for one in (through, first, *behind)}
        found = await waiting_for(connection, asked)
    told = [found[one.id].behind for one in (first, *behind)]
    assert [None, first.id, first.id] == told


async def test_what_is_too_old_when_it_would_be_sent_is_skipped(world, pretend):
    """A code that was good for an hour is not mailed a day later; the trace says why."""
    hour = timedelta(hours=1)
    await world.enqueue(an_entry(1, expires=hour), an_entry(2))
    await run_sql(
        world.engine, "update reconciler.outbox set expires_at = expires_at - interval '2 hours'"
    )
    assert 1 == await world.relay_once()
    assert ["key_2"] == pretend.keys
    one, _ = await world.entries()
    assert ("skipped", "expired", 0) == (one.state, one.last_error, one.attempts)
    assert one.completed_at is not None


async def test_what_may_have_been_sent_does_not_just_expire(world, pretend):
    """Nobody knows what became of it: it is not recorded as never sent."""
    pretend.behave = in_turn(Misbehaves("closes"))
    await world.enqueue(an_entry(1, expires=timedelta(hours=1)))
    await world.relay_once()
    await run_sql(
        world.engine,
        "update reconciler.outbox set due_at = now(), expires_at = now() - interval '1 second'",
    )
    assert 0 == await world.relay_once()
    one = await world.entry()
    assert ("uncertain", "expired, and an attempt may have taken effect") == (
        one.state,
        one.last_error,
    )


async def test_expiry_counts_from_the_cause_and_never_from_a_clock_that_is_ahead(world):
    hour, moment = timedelta(hours=1), await now(world)
    await world.enqueue(
        an_entry(1, expires=hour, happened_at=moment - 3 * hour),
        an_entry(2, expires=hour, happened_at=moment + 3 * hour),
        an_entry(3, expires=hour),
        an_entry(4),
    )
    told = [one.expires_at and one.expires_at - moment for one in await world.entries()]
    assert -2 * hour == told[0]
    assert all(hour <= one < hour + timedelta(minutes=1) for one in told[1:3])
    assert told[3] is None


async def test_an_idle_turn_takes_no_lock_and_one_statement(world):
    """What is looked at four times a second has to cost next to nothing."""
    await world.enqueue(an_entry())
    await world.relay_once()
    statements = []

    def note(_connection, _cursor, statement, *_):
        statements.append(statement)

    event.listen(world.engine.sync_engine, "before_cursor_execute", note)
    assert 0 == await world.relay_once()
    assert 1 == len(statements)
    before = await flow_of(world)
    assert before == await flow_of(world)


async def test_entries_that_back_off_cost_no_turn_anything(world):
    """A hundred thousand of them are not read to find that none is due."""
    await world.enqueue(an_entry())
    await run_sql(
        world.engine,
        "insert into reconciler.outbox (id, sender, event_id, effect, destination, method, path,"
        " state, due_at) select gen_random_uuid(), 'shop', 'many_' || n, 'capture', 'payments',"
        " 'POST', '/', 'pending', now() + interval '1 hour' from generate_series(1, 20000) n",
    )
    await run_sql(world.engine, "analyze reconciler.outbox")
    for told in (await plans_of_a_turn(world))[:4]:
        assert "Seq Scan on outbox" not in told, told
        assert "Rows Removed by Filter: 20000" not in told, told


async def test_a_backlog_is_not_read_to_take_some_of_it(world):
    """Ten thousand are due, and nobody has counted them yet: a turn reads the first few."""
    await run_sql(
        world.engine,
        "insert into reconciler.outbox (id, sender, event_id, effect, destination, method, path,"
        " state, due_at) select gen_random_uuid(), 'shop', 'many_' || n, 'capture', 'payments',"
        " 'POST', '/', 'pending', now() from generate_series(1, 10000) n",
    )
    for told in await plans_of_a_turn(world, calls=8):
        assert "Seq Scan on outbox" not in told, told
        for index in ("outbox_due_idx", "outbox_open_idx"):
            assert f"Bitmap Index Scan on {index}" not in told, told


async def test_what_is_taken_of_a_backlog_is_found_again_by_its_id(world):
    """Thirty thousand are due, and counted: of what the planner expects it would read them all."""
    await run_sql(
        world.engine,
        "insert into reconciler.outbox (id, sender, event_id, effect, destination, method, path,"
        " state, due_at) select gen_random_uuid(), 'shop', 'many_' || n, 'capture', 'payments',"
        " 'POST', '/', 'pending', now() - n * interval '1 millisecond'"
        " from generate_series(1, 30000) n",
    )
    await run_sql(world.engine, "analyze reconciler.outbox")
    for told in await plans_of_a_turn(world, calls=8):
        assert "Seq Scan on outbox" not in told, told


async def plans_of_a_turn(world, *, calls=1):
    """What PostgreSQL did for each statement up to the lease, run once more."""
    explained = []

    def explain(_connection, _cursor, statement, parameters, *_):
        explained.append((statement, parameters))

    event.listen(world.engine.sync_engine, "before_cursor_execute", explain)
    assert calls == await world.relay_once()
    event.remove(world.engine.sync_engine, "before_cursor_execute", explain)
    plans = []
    for statement, parameters in explained[:5]:
        async with world.engine.connect() as connection:
            plan = await connection.exec_driver_sql(
                f"explain (analyze, buffers) {statement}", parameters
            )
            plans.append("\n".join(plan.scalars()))
            await connection.rollback()
    return plans
