"""Stories of calls that a newer one makes superfluous before anybody has made them."""

import asyncio
from datetime import timedelta

import pytest

from outbox.entry import State
from outbox.leasing import lease
from outbox.redriving import Refusal
from tests.outbox.pretend import Answers, Misbehaves, in_turn
from tests.outbox.test_lanes import rendered
from tests.outbox.test_redriving import blocked, redriven, world_relay
from tests.outbox.world import an_entry, run_sql

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
MISSING = {"method": None, "body": None, "fault": "no such member"}


def sync(number, *, named=True, **changes):
    """Tells of the latest state of one thing, in a lane that has a name or in its resource's."""
    lane = {"lane": "thing:7"} if named else {"ordered": True}
    about = {"kind": "thing", "key": "7", "revision": number, "effect": "sync"}
    return an_entry(number, **{**about, **lane, "supersedes": True, **changes})


async def all_of_it(world):
    while await world.relay_once():
        pass


@pytest.mark.parametrize("named", [True, False], ids=["lane", "ordered"])
async def test_only_the_latest_of_what_waits_goes_out_and_the_others_say_why(world, pretend, named):
    """Three updates while nobody was looking, two of them in one commit."""
    await world.enqueue(sync(1, named=named))
    second, third = await world.enqueue(sync(2, named=named), sync(3, named=named))
    assert [State.DISCARDED, State.PENDING] == [second.state, third.state]
    assert f"superseded by {third.id}" == second.reason
    await all_of_it(world)
    assert ["key_3"] == pretend.keys
    first, second, last = await world.entries()
    assert ["discarded", "discarded", "delivered"] == await world.states()
    assert first.last_error == second.last_error == f"superseded by {last.id}"
    assert None is not first.completed_at
    assert [Refusal.DISCARDED] == await redriven(world, first.id)
    assert last.last_error is None


@pytest.mark.parametrize("how", ["answered", "in flight", "uncertain"])
async def test_what_may_have_been_sent_stays_and_goes_first(world, pretend, how):
    """Its outcome is open: a newer one must neither hide that nor overtake it."""
    pretend.behave = in_turn(Answers(status=503), Answers())
    if how == "uncertain":
        pretend.behave = in_turn(Misbehaves("closes"), Answers())
    await world.enqueue(sync(1, idempotent=how != "uncertain"))
    if how == "in flight":
        pretend.behave = in_turn(Answers())
        async with world.engine.begin() as connection:
            await lease(connection, world_relay(world))
    else:
        await world.relay_once()
    await world.enqueue(sync(2), sync(3))
    (first, *_) = await world.entries()
    assert ("uncertain" if how == "uncertain" else "pending") == first.state
    assert ["discarded", "pending"] == (await world.states())[1:]
    assert 0 == await world.relay_once()
    await world.time_passes(HOUR)
    await all_of_it(world)
    assert ("pending" if how == "uncertain" else "delivered") == (await world.states())[2]


async def test_what_was_tried_and_certainly_not_sent_is_superseded(world, pretend):
    world.destination.channel.base_url = "http://127.0.0.1:1"
    await world.enqueue(sync(1))
    await world.relay_once()
    world.destination.channel.base_url = pretend.url
    assert [1] == [entry.attempts for entry in await world.entries()]
    await world.enqueue(sync(2))
    await all_of_it(world)
    assert (["discarded", "delivered"], ["key_2"]) == (await world.states(), pretend.keys)


async def test_other_effects_lanes_and_calls_of_the_same_event_stay(world, pretend):
    await world.enqueue(
        sync(1, effect="audit"),
        sync(2, lane="thing:8"),
        sync(3, supersedes=False),
        sync(4, event_id="evt_5", part="a"),
        sync(5, part="b"),
    )
    assert [
        "pending",
        "pending",
        "discarded",
        "pending",
        "pending",
    ] == await world.states()


async def test_one_that_is_not_called_itself_supersedes_nothing(world, pretend):
    """Skipped, its key used, or not rendered yet: until it is."""
    await world.enqueue(sync(1))
    await world.enqueue(
        sync(2, skip="baseline"), sync(3, idempotency_key="key_1"), sync(4, **MISSING)
    )
    assert ["pending", "skipped", "skipped", "pending"] == await world.states()
    await rendered(world, sync(4))
    assert ["discarded", "skipped", "skipped", "pending"] == await world.states()
    await all_of_it(world)
    assert ["key_4"] == pretend.keys


async def test_what_waits_to_be_rendered_is_superseded_too(world, pretend):
    await world.enqueue(sync(1, **MISSING))
    await world.enqueue(sync(2))
    assert ["discarded", "pending"] == await world.states()


@pytest.mark.parametrize("leased", [True, False], ids=["leased", "rolled_back"])
async def test_a_relay_that_takes_it_at_that_moment_decides(world, pretend, leased):
    """The older is being leased while the newer is asked for: it stays only if it was."""
    await world.enqueue(sync(1))
    relay = await world.engine.connect()
    try:
        ((taken,), *_) = await lease(relay, world_relay(world))
        assert "evt_1" == taken.event_id
        asked = asyncio.create_task(world.enqueue(sync(2)))
        await blocked(world, unless=asked)
        assert not asked.done()
        await (relay.commit() if leased else relay.rollback())
        await asked
    finally:
        await relay.close()
    assert ["pending" if leased else "discarded", "pending"] == await world.states()
    assert (0 if leased else 1) == await world.relay_once()


async def test_a_relay_passes_over_what_is_just_being_superseded(world, pretend):
    from outbox.enqueue import enqueue

    await world.enqueue(sync(1))
    async with world.engine.connect() as asking, asking.begin() as transaction:
        await enqueue(asking, [sync(2)])
        assert 0 == await world.relay_once()
        await transaction.commit()
    await all_of_it(world)
    assert (["discarded", "delivered"], ["key_2"]) == (await world.states(), pretend.keys)


async def test_writers_and_relays_at_once_send_each_state_once_and_the_last_at_last(world, pretend):
    """Twenty updates from two writers beside two relays: what goes out rises, up to the last."""
    lock = asyncio.Lock()
    numbers = iter(range(1, 21))

    async def write():
        while True:
            async with lock:
                number = next(numbers, None)
                if number is None:
                    return
                await world.enqueue(sync(number))

    async with world.running(), world.running():
        async with asyncio.TaskGroup() as writers:
            for _ in range(2):
                writers.create_task(write())
        await world.until(lambda: "key_20" in pretend.keys)

        async def settled():
            return "pending" not in await world.states()

        await world.until(settled)
    sent = [int(key.removeprefix("key_")) for key in pretend.keys]
    assert sorted(set(sent)) == sent
    states = {row.event_id: row.state for row in await world.entries()}
    for number in range(1, 21):
        assert states[f"evt_{number}"] == ("delivered" if number in sent else "discarded")


@pytest.mark.parametrize("looked", [False, True])
async def test_what_a_lost_future_may_have_sent_stays_until_that_was_looked_at(world, looked):
    """
    The database went back. Until everything that waits was held, nobody knows what the lost
    future has sent of it; afterwards its first attempt says so.
    """
    await world.enqueue(sync(1))
    settled = "clock_timestamp()" if looked else "null"
    for number in (1, 2):
        await run_sql(
            world.engine,
            "insert into reconciler.generations (number, opened_at, reason, settled_at)"  # noqa: S608
            f" values ({number}, clock_timestamp(), 'a story', {settled})",
        )
    await world.enqueue(sync(2))
    assert ["discarded" if looked else "pending", "pending"] == await world.states()
