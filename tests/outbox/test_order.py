"""Calls about one resource come one after the other, where that is asked (B4, C61, C62)."""

import asyncio
import random
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import event

from outbox.enqueue import enqueue
from outbox.leasing import Wanted, lease
from outbox.windows import Next, Window, ends, last, rest_before
from tests.outbox.pretend import Answers, Misbehaves, in_turn
from tests.outbox.world import Crash, an_entry, crash_at, run_sql

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)


def ordered(number, revision, **changes):
    fields = {"kind": "order", "key": "42", "ordered": True, **changes}
    return an_entry(number, revision=revision, **fields)


async def all_of_it(world):
    while await world.relay_once():
        pass


async def test_order_is_by_revision_whatever_was_written_first(world, pretend):
    await world.enqueue(ordered(3, 3))
    await world.enqueue(ordered(1, 1), ordered(2, 2))
    await all_of_it(world)
    assert ["key_1", "key_2", "key_3"] == pretend.keys


async def test_within_one_revision_order_is_by_place_in_the_configuration(world, pretend):
    await world.enqueue(ordered(2, 7, position=2), ordered(1, 7, position=1))
    await all_of_it(world)
    assert ["key_1", "key_2"] == pretend.keys


async def test_without_revisions_order_is_by_time_of_the_insert(world, pretend):
    for number in (3, 1, 2):
        await world.enqueue(ordered(number, None))
    await world.enqueue(ordered(5, None), ordered(4, None))
    await all_of_it(world)
    assert [f"key_{n}" for n in (3, 1, 2, 5, 4)] == pretend.keys


async def test_order_does_not_follow_the_time_of_the_transaction(world, pretend):
    """The transaction that began first may write last; now() would put it first."""
    async with world.engine.connect() as early, early.begin():
        await early.exec_driver_sql("select 1")
        await world.enqueue(ordered(1, None))
        await enqueue(early, [ordered(2, None)])
        await early.commit()
    await all_of_it(world)
    assert ["key_1", "key_2"] == pretend.keys


async def test_a_failing_call_holds_its_successors_and_nobody_else(world, pretend):
    """C62: the first is in back-off; two relays look for something to do."""
    pretend.behave = lambda number, call: Answers(
        status=503 if call.key == "key_1" and number <= 1 else 200
    )
    world.set(concurrency=1)
    await world.enqueue(ordered(1, 1))
    await world.relay_once()
    world.set(concurrency=8)
    await world.enqueue(
        ordered(2, 2),
        ordered(3, 3),
        ordered(4, 4, key="43"),
        ordered(5, 5, kind="invoice"),
        ordered(6, 6, sender="other"),
        ordered(7, 9, ordered=False),
    )
    async with world.running(), world.running():
        await world.until(lambda: len(pretend.calls) == 5)
    assert ["key_1", "key_4", "key_5", "key_6", "key_7"] == sorted(pretend.keys)

    await world.time_passes(HOUR)
    await all_of_it(world)
    assert ["key_1", "key_2", "key_3"] == pretend.keys[5:]


async def test_a_call_in_flight_or_at_a_dead_relay_holds_its_successors(world, pretend):
    await world.enqueue(ordered(1, 1), ordered(2, 2))
    with pytest.raises((Crash, BaseExceptionGroup)):
        await world.relay_once(point=crash_at("relay-before-send"))
    assert 0 == await world.relay_once()
    await world.time_passes(timedelta(minutes=1))
    await all_of_it(world)
    assert ["key_1", "key_2"] == pretend.keys


async def test_the_next_goes_as_soon_as_the_one_before_is_marked(world, pretend):
    """A lane is not slowed down to one call a poll."""
    world.policy = type(world.policy)(
        poll=HOUR, lease=world.policy.lease, backoff=world.policy.backoff
    )
    await world.enqueue(*(ordered(n, n) for n in range(10, 30)))
    async with world.running():
        await world.until(lambda: len(pretend.calls) == 20)
    assert [f"key_{n}" for n in range(10, 30)] == pretend.keys
    assert 1 == pretend.most_in_flight


async def test_an_uncertain_call_holds_its_successors(world, pretend):
    """Whether the one before has happened is a person's to find out."""
    pretend.behave = in_turn(Misbehaves("closes"), Answers())
    await world.enqueue(ordered(1, 1, idempotent=False), ordered(2, 2))
    await world.relay_once()
    await world.time_passes(HOUR)
    assert 0 == await world.relay_once()
    assert ["uncertain", "pending"] == await world.states()

    await run_sql(
        world.engine, "update reconciler.outbox set state = 'delivered' where revision = 1"
    )
    assert 1 == await world.relay_once()


@pytest.mark.parametrize(
    ("after_dead", "goes"), [("continue", True), ("hold", False)], ids=["continue", "hold"]
)
async def test_a_dead_call_releases_its_successors_unless_told_to_hold(
    world, pretend, after_dead, goes
):
    pretend.behave = in_turn(Answers(status=422), Answers())
    world.set(after_dead=after_dead)
    await world.enqueue(ordered(1, 1), ordered(2, 2))
    await all_of_it(world)
    assert ["dead", "delivered" if goes else "pending"] == await world.states()

    await run_sql(
        world.engine, "update reconciler.outbox set state = 'discarded' where state = 'dead'"
    )
    await all_of_it(world)
    assert ["discarded", "delivered"] == await world.states()


async def test_what_cannot_be_rendered_holds_nobody(world):
    await world.enqueue(ordered(1, 1, fault="no such member"), ordered(2, 2, skip="baseline"))
    await world.enqueue(ordered(3, 3))
    await all_of_it(world)
    assert ["pending", "skipped", "delivered"] == await world.states()


async def test_entries_about_no_resource_wait_for_nobody(world, pretend):
    pretend.behave = in_turn(Answers(status=503), Answers())
    await world.enqueue(ordered(1, None, kind=None, key=None))
    await world.relay_once()
    await world.enqueue(ordered(2, None, kind=None, key=None))
    assert 1 == await world.relay_once()


async def test_an_entry_that_commits_late_is_found(world, pretend):
    """C61: it has the older id and time; the relay has long been past them."""
    world.set(concurrency=2)
    async with world.engine.connect() as late, late.begin() as transaction:
        await enqueue(late, [an_entry(1)])
        await world.enqueue(an_entry(2))
        await all_of_it(world)
        assert ["key_2"] == pretend.keys
        await transaction.commit()
    await all_of_it(world)
    assert ["key_2", "key_1"] == pretend.keys


async def test_live_entries_go_before_redriven_ones(world, pretend):
    world.set(concurrency=1)
    await world.enqueue(an_entry(1), an_entry(2))
    await run_sql(world.engine, "update reconciler.outbox set redriven = true")
    await world.enqueue(an_entry(3))
    await all_of_it(world)
    assert "key_3" == pretend.keys[0]


async def test_lanes_under_failures_crashes_and_two_relays(world, pretend):
    """Ten resources with ten calls each; a third of the calls fails, some relays are killed."""
    chance = random.Random(7)
    pretend.behave = lambda _number, _call: Answers(status=503 if chance.random() < 0.3 else 200)
    world.set(max_attempts=1000, key_ttl=timedelta(days=365))
    numbers = [(lane, n) for lane in range(10) for n in range(10)]
    await world.enqueue(
        *(
            ordered(lane * 100 + n, n, key=str(lane), idempotency_key=f"{lane}:{n}")
            for lane, n in numbers
        )
    )
    for _ in range(100):
        await fails_now_and_then(world, len(pretend.calls))
        await world.time_passes(HOUR)
        if {"delivered"} == set(await world.states()):
            break
    assert {"delivered"} == set(await world.states())
    firsts = list(dict.fromkeys(pretend.keys))
    for lane in range(10):
        assert [f"{lane}:{n}" for n in range(10)] == [k for k in firsts if k.startswith(f"{lane}:")]


async def fails_now_and_then(world, so_far):
    async def one(point):
        try:
            await world.relay_once(**point)
        except (Crash, BaseExceptionGroup):
            return

    deadly = {"point": crash_at("relay-before-mark")} if so_far % 4 == 0 else {}
    async with asyncio.TaskGroup() as group:
        group.create_task(one(deadly))
        group.create_task(one({}))


async def test_a_deep_backlog_that_waits_is_looked_through_in_pieces(world, pretend, monkeypatch):
    """
    The head of a lane backs off, a hundred others wait for it, and in the midst of them
    one of another lane is ready. It is found, though no turn looks at all of them.
    """
    monkeypatch.setattr("outbox.windows._ENDS", ends(10))
    monkeypatch.setattr("outbox.windows._NEWEST", last(5))
    pretend.behave = lambda _number, call: Answers(status=503 if call.key == "key_1" else 200)
    await world.enqueue(ordered(1, 0))
    await world.relay_once()
    await world.enqueue(*(ordered(n, n) for n in range(100, 150)))
    await world.enqueue(ordered(2, 1, key="43"))
    await world.enqueue(*(ordered(n, n) for n in range(150, 200)))
    async with world.running() as running:
        await world.until(lambda: len(pretend.calls) == 2)
        assert running.turns >= 5
    assert ["key_1", "key_2"] == pretend.keys
    assert 100 == (await world.states()).count("pending") - 1


@pytest.mark.parametrize(
    ("window", "took", "rest"),
    [
        (Next.SOON, 0.001, 0.05),  # a fifth of the poll
        (Next.SOON, 0.02, 0.18),  # after a slow look others have the database for nine times that
        (Next.SOON, 5.0, 0.25),  # and never longer than the poll
        (Next.AT_ONCE, 5.0, 0.0),
        (Next.NOTHING, 0.001, 0.25),
    ],
)
def test_looking_through_what_goes_nowhere_takes_a_tenth_of_the_time(window, took, rest):
    assert rest == pytest.approx(rest_before(window, poll=0.25, took=took))


async def test_what_has_just_been_asked_for_goes_past_a_deep_backlog_that_waits(
    world, pretend, monkeypatch
):
    """As above, but the poll is in an hour: a hint is all that the other lane's have."""
    monkeypatch.setattr("outbox.windows._ENDS", ends(10))
    monkeypatch.setattr("outbox.windows._NEWEST", last(5))
    pretend.behave = lambda _number, call: Answers(status=503 if call.key == "key_1" else 200)
    await world.enqueue(ordered(1, 0))
    await world.relay_once()
    await world.enqueue(*(ordered(n, n) for n in range(100, 200)))
    world.policy = replace(world.policy, poll=timedelta(hours=1))
    async with world.running() as running:
        await world.until(lambda: running.turns == 1)
        for number in (2, 3):
            await world.enqueue(ordered(number, 1, key=f"{number}"))
            running.hint.set()
            await world.until(lambda: len(pretend.calls) == number)  # noqa: B023
    assert ["key_1", "key_2", "key_3"] == pretend.keys


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_a_deep_backlog_goes_without_a_pause_and_its_oldest_first(
    world, pretend, monkeypatch, concurrency
):
    """A call that ends makes room for the next: nothing waits for the poll, which is in an hour."""
    monkeypatch.setattr("outbox.windows._ENDS", ends(10))
    monkeypatch.setattr("outbox.windows._NEWEST", last(5))
    world.set(concurrency=concurrency)
    world.policy = replace(world.policy, poll=timedelta(hours=1))
    await world.enqueue(*(an_entry(n) for n in range(55)))
    async with world.running():
        await world.until(lambda: len(pretend.calls) == 55)
    assert {f"key_{n}" for n in range(10)} <= set(pretend.keys[:25])


async def test_a_window_is_all_that_a_lease_looks_at(world):
    await world.enqueue(*(an_entry(n) for n in range(1, 6)))
    places = [row.due_at for row in await world.entries()]
    wanted = Wanted(
        destination="payments",
        free=10,
        lease=timedelta(seconds=60),
        hold_after_dead=False,
        max_attempts=12,
        key_life=HOUR,
        window=Window(after=places[1], upto=places[3]),
    )
    async with world.engine.begin() as connection:
        leased, *_ = await lease(connection, [wanted])
    assert ["evt_3", "evt_4"] == sorted(one.event_id for one in leased)


async def test_the_partial_indexes_carry_the_lease(world):
    """A million finished entries cost nothing: the statement never reads the whole table."""
    explained = []

    def explain(_connection, _cursor, statement, parameters, *_):
        if statement.lstrip().startswith("WITH") and "UPDATE reconciler.outbox" in statement:
            explained.append((statement, parameters))

    event.listen(world.engine.sync_engine, "before_cursor_execute", explain)
    await world.enqueue(ordered(1, 1), ordered(2, 2))
    await world.relay_once()
    (statement, parameters) = explained[0]
    async with world.engine.connect() as connection:
        await connection.exec_driver_sql("set local enable_seqscan = off")
        plan = await connection.exec_driver_sql(f"explain {statement}", parameters)
        told = "\n".join(plan.scalars())
    assert "outbox_due_idx" in told
    assert "outbox_lane_idx" in told
    assert "Seq Scan on outbox" not in told
