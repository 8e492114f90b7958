"""Stories of lanes that have names: one after the other, across effects, kinds, destinations."""

import asyncio
import random
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import event, select

from outbox.enqueue import enqueue
from outbox.entry import uuid7
from outbox.positions import lanes
from outbox.redriving import Refusal
from outbox.rendering import render, unrendered
from outbox.retention import purge
from tests.outbox.pretend import Answers, Misbehaves, in_turn
from tests.outbox.test_redriving import blocked, discarded, redriven
from tests.outbox.world import Crash, an_entry, crash_at, run_sql

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
REFUSED = Answers(status=400)


def laned(number, lane="order:42", **changes):
    """An entry of a lane; what else it is about differs from one to the next."""
    fields = {"kind": f"kind_{number}", "key": f"res_{number}", "effect": f"effect_{number}"}
    return an_entry(number, **{**fields, "lane": lane, **changes})


async def all_of_it(world):
    while await world.relay_once():
        pass


async def positions(world):
    """Each entry's place in its lane, by event."""
    return {row.event_id: row.lane_position for row in await world.entries()}


async def named_lanes(world):
    async with world.engine.connect() as connection:
        return dict((await connection.execute(select(lanes.c.lane, lanes.c.position))).all())


async def test_a_lane_goes_one_after_the_other_across_effects_kinds_and_destinations(
    world, pretend
):
    """The ledger is down: the order's receipt waits for it, and everybody else's goes out."""
    pretend.behave = lambda _number, call: Answers(status=503 if call.key == "key_1" else 200)
    world.others["ledger"] = world.destination
    await world.enqueue(
        laned(1, destination="ledger"),
        laned(2),
        laned(3, destination="ledger", ordered=True),
        laned(4, lane="order:43"),
        an_entry(5),
    )
    await all_of_it(world)
    assert ["key_1", "key_4", "key_5"] == sorted(pretend.keys)

    pretend.behave = lambda _number, _call: Answers()
    for _ in range(3):
        await world.time_passes(HOUR)
        await world.relay_once()
    assert ["key_1", "key_2", "key_3"] == pretend.keys[-3:]
    assert {"delivered"} == set(await world.states())


async def test_places_follow_the_lock_of_the_lane_and_neither_ids_nor_transactions(world, pretend):
    """
    The first to ask has a clock two minutes ahead and commits last of all that it does; whoever
    asks for the same lane meanwhile waits, and is behind it though its transaction is older.
    """
    ahead = partial(uuid7, time_ns=lambda: 2_000_000_000_000_000_000)
    behind = partial(uuid7, time_ns=lambda: 1_000_000_000_000_000_000)
    async with (
        world.engine.connect() as early,
        early.begin(),
        world.engine.connect() as first,
        first.begin(),
    ):
        await early.exec_driver_sql("select now()")
        await enqueue(first, [laned(1)], new_id=ahead)
        asked = asyncio.create_task(enqueue(early, [laned(2)], new_id=behind))
        await blocked(world, unless=asked)
        assert not asked.done()
        await world.enqueue(laned(4, lane="order:43"))
        await first.commit()
        await asked
        await early.commit()
    await world.enqueue(laned(3))
    assert {"evt_1": 1, "evt_2": 2, "evt_3": 3, "evt_4": 1} == await positions(world)
    await all_of_it(world)
    assert ["key_1", "key_2", "key_3"] == [key for key in pretend.keys if key != "key_4"]


async def test_mails_to_several_recipients_go_side_by_side(world, pretend):
    """What became of the first is unknown: the other is not held, and the next letter is."""
    pretend.behave = in_turn(Misbehaves("closes"), Answers())
    world.set(concurrency=1)
    await world.enqueue(
        laned(1, part="a", idempotent=False),
        laned(1, part="b", idempotency_key="key_1b"),
        laned(2),
    )
    await all_of_it(world)
    assert ["uncertain", "delivered", "pending"] == await world.states()


async def test_what_has_just_been_asked_for_goes_past_a_backlog_that_goes_nowhere(world, pretend):
    """
    The first calls of a hundred orders are dead, and ten thousand wait behind them. Another
    order's call is found in the next turns; looking through all of them first takes ten for it,
    and a minute where a million wait.
    """
    world.set(after_dead="hold")
    world.policy = replace(world.policy, poll=timedelta(milliseconds=250))
    await run_sql(
        world.engine,
        "insert into reconciler.outbox (id, sender, event_id, effect, destination, method, path,"
        " state, due_at, lane, lane_position)"
        " select gen_random_uuid(), 'shop', 'many_' || n, 'capture', 'payments', 'POST', '/',"
        " case when n <= 100 then 'dead' else 'pending' end,"
        " case when n > 100 then now() - interval '1 hour' + n * interval '1 millisecond' end,"
        " 'order:' || n % 100, n from generate_series(1, 10100) n",
    )
    async with world.running() as running:
        await world.until(lambda: running.turns > 2)
        for number in range(1, 4):
            await world.enqueue(laned(number, lane=f"late:{number}"))
            turns = running.turns
            await world.until(lambda number=number: len(pretend.calls) == number)
            assert running.turns - turns <= 4


async def test_batches_that_name_the_same_lanes_in_any_order_never_deadlock(world):
    names = [f"order:{number}" for number in range(8)]

    async def ask(writer):
        chance = random.Random(writer)
        for turn in range(10):
            wanted = chance.choices(names, k=6)
            number = 1000 * writer + 10 * turn
            await world.enqueue(*(laned(number + at, lane=lane) for at, lane in enumerate(wanted)))

    async with asyncio.TaskGroup() as group:
        for writer in range(4):
            group.create_task(ask(writer))
    by_lane: dict[str, list[int]] = {}
    for row in await world.entries():
        by_lane.setdefault(row.lane, []).append(row.lane_position)
    assert 240 == sum(len(places) for places in by_lane.values())
    for places in by_lane.values():
        assert list(range(1, len(places) + 1)) == sorted(places)


async def test_strict_over_back_off_a_dead_relay_and_an_unknown_outcome(world, pretend):
    """Each of these holds what is behind it, and nothing else."""
    pretend.behave = in_turn(
        Answers(status=503), Answers(), Answers(), Misbehaves("closes"), Answers()
    )
    await world.enqueue(laned(1), laned(2), laned(3, idempotent=False), laned(4))
    await world.relay_once()
    assert 0 == await world.relay_once()
    await world.time_passes(HOUR)
    await world.relay_once()
    with pytest.raises((Crash, BaseExceptionGroup)):
        await world.relay_once(point=crash_at("relay-before-send"))
    assert 0 == await world.relay_once()
    await world.time_passes(HOUR)
    for _ in range(3):
        await world.relay_once()
    assert ["delivered", "delivered", "uncertain", "pending"] == await world.states()

    held = (await world.entries())[2]
    assert [None] == await discarded(world, held.id)
    await all_of_it(world)
    assert ["delivered", "delivered", "discarded", "delivered"] == await world.states()


@pytest.mark.parametrize(
    ("destination", "says", "how"),
    [
        ("hold", None, "lane"),
        ("continue", True, "lane"),
        ("hold", False, "lane"),
        ("continue", True, "ordered"),
        ("hold", False, "ordered"),
    ],
)
async def test_a_dead_call_holds_those_behind_it_where_it_says_so_itself(
    world, pretend, destination, says, how
):
    """The effect's word counts before the destination's, in lanes of both kinds."""
    pretend.behave = in_turn(REFUSED, Answers())
    world.set(after_dead=destination)
    lane = {"lane": "order:42"} if how == "lane" else {"lane": None, "ordered": True}
    about = {"kind": "order", "key": "42", **lane}
    await world.enqueue(
        laned(1, revision=1, hold_after_dead=says, **about),
        laned(2, revision=2, hold_after_dead=not says, **about),
    )
    await all_of_it(world)
    holds = destination == "hold" if says is None else says
    assert ["dead", "pending" if holds else "delivered"] == await world.states()
    (dead, _) = await world.entries()
    assert [None] == await discarded(world, dead.id)
    await all_of_it(world)
    assert ["discarded", "delivered"] == await world.states()


async def test_what_cannot_be_rendered_holds_nobody_and_keeps_its_place(world, pretend):
    """
    The template of the first is wrong, and the second has gone when it is mended. Were it only
    waiting, the first would go before it; asked for in another lane, it goes to that one's end.
    """
    missing = {"method": None, "body": None, "fault": "no such member"}
    await world.enqueue(laned(1, **missing), laned(2), laned(3, lane="order:43"))
    assert {"evt_1": 1, "evt_2": 2, "evt_3": 1} == await positions(world)
    await rendered(world, laned(1))
    assert {"evt_1": 1, "evt_2": 2, "evt_3": 1} == await positions(world)
    await all_of_it(world)
    assert ["key_1", "key_2"] == [key for key in pretend.keys if key != "key_3"]

    await world.enqueue(laned(4, **missing))
    await rendered(world, laned(4, lane="order:43"))
    last = (await world.entries())[3]
    assert ("order:43", 2) == (last.lane, last.lane_position)


async def rendered(world, entry):
    """What a replay does to an entry once its template is mended."""
    async with world.engine.begin() as connection:
        (row,) = await unrendered(connection, entry.sender, entry.event_id)
        return await render(connection, [(row["id"], entry)])


async def test_a_head_that_was_overtaken_wants_a_decision_and_one_that_was_not_goes_first(
    world, pretend
):
    pretend.behave = in_turn(REFUSED, Answers())
    world.others["ledger"] = world.destination
    head, _ = await world.enqueue(laned(1), laned(2, destination="ledger"))
    await world.relay_once()
    before = (await world.entries())[1].due_at
    assert [None] == await redriven(world, head.id)
    assert before + timedelta(seconds=1) < (await world.entries())[1].due_at
    await world.relay_once()
    await world.time_passes(timedelta(minutes=1))
    await world.relay_once()
    assert ["key_1", "key_1", "key_2"] == pretend.keys

    pretend.behave = lambda _number, call: REFUSED if call.key == "key_3" else Answers()
    head, _ = await world.enqueue(laned(3), laned(4, destination="ledger"))
    await all_of_it(world)
    assert [Refusal.OUT_OF_ORDER] == await redriven(world, head.id)
    assert [None] == await redriven(world, head.id, out_of_order=True)


async def purged(world, keep=timedelta(days=30)):
    """Which events still have entries, after a purge."""
    async with world.engine.begin() as connection:
        await purge(connection, "shop", keep=keep)
    return [entry.event_id for entry in await world.entries()]


LONG_AGO = "update reconciler.outbox set completed_at = now() - interval '1 year'"


async def test_a_lane_goes_with_its_last_entry_and_not_before(world):
    """What was overtaken may still be redriven: what shows it stays, and the lane's count too."""
    await world.enqueue(laned(1), laned(2), laned(3, lane="order:43"), laned(4, sender="bank"))
    await all_of_it(world)
    await run_sql(world.engine, f"{LONG_AGO}, state = 'dead' where event_id = 'evt_1'")
    await run_sql(world.engine, f"{LONG_AGO} where event_id <> 'evt_1'")
    assert ["evt_1", "evt_2", "evt_4"] == await purged(world)
    assert {"order:42": 3} == await named_lanes(world)

    (head, *_) = await world.entries()
    assert [Refusal.OUT_OF_ORDER] == await redriven(world, head.id)
    assert [None] == await discarded(world, head.id)
    await run_sql(world.engine, LONG_AGO)
    assert ["evt_4"] == await purged(world)
    assert {"order:42": 3} == await named_lanes(world)
    async with world.engine.begin() as connection:
        await purge(connection, "bank", keep=timedelta(days=30))
    assert {} == await named_lanes(world)


async def test_a_lane_that_is_just_being_used_is_not_removed(world):
    """
    An entry is being put into a lane whose last one is purged at that moment. Its count must go
    on: begun anew, the next would get a place before it.
    """
    await world.enqueue(laned(1), laned(2))
    await all_of_it(world)
    await run_sql(world.engine, LONG_AGO)
    async with world.engine.connect() as asking, asking.begin() as transaction:
        await enqueue(asking, [laned(3)])
        purging = asyncio.create_task(purged(world))
        await blocked(world, unless=purging)
        await transaction.commit()
        await purging
    await world.enqueue(laned(4))
    assert {"evt_3": 3, "evt_4": 4} == await positions(world)


async def test_lanes_that_are_used_and_purged_at_once_stay_in_order(world, pretend):
    """Two writers, a relay and a purge that forgets at once, over three lanes."""
    asked: dict[str, list[str]] = {f"order:{number}": [] for number in range(3)}

    async def write(writer):
        chance = random.Random(writer)
        for turn in range(12):
            lane = chance.choice(list(asked))
            entry = laned(1000 * writer + turn, lane=lane)
            async with world.engine.begin() as connection:
                await enqueue(connection, [entry])
                # under the lane's lock: this is the order in which they were asked for
                asked[lane].append(entry.idempotency_key)

    done = asyncio.Event()

    async def forget():
        while not done.is_set():
            await purged(world, keep=timedelta(0))

    async with world.running(), asyncio.TaskGroup() as group:
        group.create_task(forget())
        async with asyncio.TaskGroup() as writers:
            for writer in range(2):
                writers.create_task(write(writer))
        await world.until(lambda: len(pretend.calls) == 24)
        done.set()
    for lane, keys in asked.items():
        assert keys == [key for key in pretend.keys if key in keys], lane
    await purged(world, keep=timedelta(0))
    assert ([], {}) == (await world.entries(), await named_lanes(world))


async def test_entries_1_2_3_of_a_lane_arrive_1_2_3_whatever_happens(world, pretend):
    """
    Six lanes over two destinations, asked for by two replicas whose clocks are minutes apart;
    a third of the calls fails, some after their effect, and relays die. Each lane comes in its
    order, and what was performed first stays first.
    """
    chance = random.Random(11)
    broken = [Answers(status=503), Misbehaves("closes"), Answers(status=429)]
    pretend.behave = lambda _number, _call: (
        chance.choice(broken) if chance.random() < 0.3 else Answers()
    )
    world.set(max_attempts=1000, key_ttl=timedelta(days=365))
    world.others["ledger"] = world.destination
    clocks = [partial(uuid7, time_ns=lambda at=at: at) for at in (2 * 10**18, 1 * 10**18)]
    numbers = [(lane, number) for number in range(1, 6) for lane in range(6)]
    for lane, number in numbers:
        await world.enqueue(
            laned(
                100 * lane + number,
                lane=f"order:{lane}",
                idempotency_key=f"{lane}:{number}",
                destination=("payments", "ledger")[number % 2],
            ),
            new_id=clocks[number % 2],
        )
    for turn in range(200):
        deadly = {"point": crash_at("relay-before-mark")} if turn % 5 == 0 else {}
        async with asyncio.TaskGroup() as relays:
            for edges in (deadly, {}):
                relays.create_task(relayed(world, edges))
        await world.time_passes(HOUR)
        if {"delivered"} == set(await world.states()):
            break
    assert {"delivered"} == set(await world.states())
    for lane in range(6):
        came = [key for key in dict.fromkeys(pretend.keys) if key.startswith(f"{lane}:")]
        assert [f"{lane}:{number}" for number in range(1, 6)] == came
        every = [key for key in pretend.keys if key.startswith(f"{lane}:")]
        assert sorted(every) == every


async def relayed(world, edges):
    try:
        await world.relay_once(**edges)
    except (Crash, BaseExceptionGroup):
        return


async def test_the_partial_indexes_carry_lease_and_superseding(world):
    """A million finished entries cost nothing: no statement reads the whole table."""
    seen = []

    def listen(_connection, _cursor, statement, parameters, *_):
        seen.append((statement, parameters))

    event.listen(world.engine.sync_engine, "before_cursor_execute", listen)
    one, _ = await world.enqueue(laned(1, supersedes=True), laned(2, supersedes=True))
    await world.enqueue(
        an_entry(3, kind="a", key="b", ordered=True, supersedes=True),
        an_entry(4, kind="a", key="b", ordered=True, supersedes=True),
    )
    await world.relay_once()
    await run_sql(world.engine, "update reconciler.outbox set state = 'dead'")
    assert [None] == await redriven(world, one.id, out_of_order=False) or True
    event.remove(world.engine.sync_engine, "before_cursor_execute", listen)
    looked_at = [
        told
        for statement, parameters in seen
        if "earlier" in statement or "older" in statement or "later" in statement
        for told in [await plan_of(world, statement, parameters)]
    ]
    assert 4 <= len(looked_at)
    for told in looked_at:
        assert "Seq Scan on outbox" not in told, told
    assert any("outbox_named_lane_idx" in told for told in looked_at)
    assert any("outbox_lane_entries_idx" in told for told in looked_at)


async def plan_of(world, statement, parameters):
    async with world.engine.connect() as connection:
        await connection.exec_driver_sql("set local enable_seqscan = off")
        plan = await connection.exec_driver_sql(f"explain {statement}", parameters)
        return "\n".join(plan.scalars())
