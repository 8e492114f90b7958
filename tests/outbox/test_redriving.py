"""Stories of entries that stopped, and of people who give them new attempts."""

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import text

from outbox.choosing import find
from outbox.entry import State, Verdict
from outbox.forgetting import count
from outbox.leasing import Wanted, lease
from outbox.redriving import Refusal, discard, redrive
from outbox.retention import old_entries, purge
from outbox.settling import Mark, settle
from tests.outbox.pretend import Answers, Misbehaves, in_turn
from tests.outbox.world import POLICY, an_entry, run_sql

pytestmark = pytest.mark.anyio

REFUSED = Answers(status=400)
BUSY = Answers(status=503)


async def redriven(world, *ids, **how):
    """Redrive entries as an operator's command does; each one's refusal, or None."""
    lives = {name: one.key_life(lease=POLICY.lease) for name, one in world.destinations.items()}
    async with world.engine.begin() as connection:
        handled = await redrive(connection, ids, key_lives=lives, **how)
    return [one.refusal for one in handled]


async def discarded(world, *ids):
    async with world.engine.begin() as connection:
        return [one.refusal for one in await discard(connection, ids)]


async def leased_by_hand(world):
    """An entry leased as a relay does that then takes very long."""
    wanted = world_relay(world)
    async with world.engine.begin() as connection:
        (leased,), *_ = await lease(connection, wanted)
    return leased


def world_relay(world):
    """What a relay of this world asks for, one entry at a time."""
    one = world.destination
    return [
        Wanted(
            destination="payments",
            free=1,
            lease=POLICY.lease,
            hold_after_dead=one.after_dead == "hold",
            max_attempts=one.max_attempts,
            key_life=one.key_life(lease=POLICY.lease),
        )
    ]


async def reported(world, leased, state):
    verdict = Verdict.DELIVERED if state is State.DELIVERED else Verdict.DEAD
    mark = Mark(
        id=leased.id,
        attempt=leased.attempt,
        started_at=leased.leased_at,
        state=state,
        wait=timedelta(0),
        maybe_sent=state is not State.DEAD,
        refusals=0,
        verdict=verdict,
        status=None,
        error=None,
        ordered=False,
    )
    async with world.engine.begin() as connection:
        return await settle(connection, [mark])


async def test_a_dead_letter_goes_out_again_under_its_key_with_a_budget_of_its_own(world, pretend):
    """
    Two attempts and it was given up. Redriven it has two more, under the same key and with the
    numbers going on; what has waited without failing goes first.
    """
    world.set(max_attempts=2, concurrency=1)
    pretend.behave = in_turn(BUSY, BUSY, BUSY, Answers(), Answers())
    (dead,) = await world.enqueue(an_entry(1))
    for _ in range(2):
        await world.relay_once()
        await world.time_passes(timedelta(hours=1))
    assert ["uncertain"] == await world.states()

    assert [None] == await redriven(world, dead.id)
    entry = await world.entry()
    assert ("pending", True, 2, 2) == (
        entry.state,
        entry.redriven,
        entry.attempts,
        entry.attempts_before,
    )
    await world.relay_once()
    assert ["pending"] == await world.states()

    await world.enqueue(an_entry(2))
    await world.time_passes(timedelta(hours=1))
    await world.relay_once()
    assert "key_2" == pretend.keys[-1]
    await world.relay_once()
    entry = (await world.entries())[0]
    assert ("delivered", 4) == (entry.state, entry.attempts)
    assert {"key_1"} == {key for key in pretend.keys if key != "key_2"}
    assert [1, 2, 3, 4] == [
        one.attempt for one in await world.attempts() if one.entry_id == dead.id
    ]


async def test_the_clock_of_the_key_does_not_begin_anew(world, pretend):
    """
    An uncertain call may be repeated while the destination remembers its key, counted from the
    first attempt. After that a redrive is refused: it would be performed twice (P10).
    """
    world.set(max_attempts=1)
    pretend.behave = in_turn(Misbehaves("closes"), Misbehaves("closes"), Answers())
    (one,) = await world.enqueue(an_entry())
    await world.relay_once()
    first = (await world.entry()).first_attempt_at
    assert ["uncertain"] == await world.states()

    assert [None] == await redriven(world, one.id)
    await world.relay_once()
    assert (first, "uncertain") == ((await world.entry()).first_attempt_at, "uncertain")

    await world.time_passes(timedelta(hours=24))
    assert [Refusal.KEY_LIFE_OVER] == await redriven(world, one.id)
    assert (["uncertain"], 2) == (await world.states(), len(pretend.calls))


async def test_what_a_destination_without_keys_may_have_performed_is_not_repeated(world, pretend):
    pretend.behave = in_turn(Misbehaves("closes"), REFUSED)
    uncertain, dead = await world.enqueue(
        an_entry(1, idempotent=False), an_entry(2, idempotent=False)
    )
    world.set(concurrency=1)
    await world.relay_once()
    await world.relay_once()
    assert ["uncertain", "dead"] == await world.states()
    assert [Refusal.MAYBE_PERFORMED, None] == await redriven(world, uncertain.id, dead.id)


async def test_what_cannot_or_need_not_be_sent_is_refused(world):
    delivered, unrendered, waiting, gone, elsewhere = await world.enqueue(
        an_entry(1),
        an_entry(2, method=None, body=None, fault="no such member"),
        an_entry(3),
        an_entry(4),
        an_entry(5, destination="elsewhere"),
    )
    ends = {delivered: "delivered", gone: "discarded", elsewhere: "dead"}
    for one, state in ends.items():
        await run_sql(
            world.engine,
            f"update reconciler.outbox set state = '{state}', completed_at = now()"  # noqa: S608
            f" where id = '{one.id}'",
        )
    before = await world.entries()
    unknown = type(waiting.id)(int=7)
    ids = [one.id for one in (delivered, unrendered, waiting, gone, elsewhere)]
    assert [
        Refusal.DELIVERED,
        Refusal.UNRENDERED,
        Refusal.PENDING,
        Refusal.DISCARDED,
        Refusal.NO_DESTINATION,
        Refusal.UNKNOWN,
    ] == await redriven(world, *ids, unknown)
    assert before == await world.entries()


async def test_a_call_that_later_ones_have_overtaken_wants_a_decision(world, pretend):
    """The head of a lane died and its successor was performed: redriven it would come after."""
    lane = {"ordered": True, "kind": "order", "key": "ord_42"}
    pretend.behave = in_turn(REFUSED, Answers(), Answers())
    head, _ = await world.enqueue(an_entry(1, revision=1, **lane), an_entry(2, revision=2, **lane))
    await world.relay_once()
    await world.relay_once()
    assert ["dead", "delivered"] == await world.states()

    assert [Refusal.OUT_OF_ORDER] == await redriven(world, head.id)
    assert [None] == await redriven(world, head.id, out_of_order=True)
    await world.relay_once()
    assert ["key_1", "key_2", "key_1"] == pretend.keys


@pytest.mark.parametrize("stopped", ["dead", "uncertain", "unrendered"])
async def test_what_shows_that_a_call_was_overtaken_is_not_purged_before_it(
    world, pretend, stopped
):
    """
    The head of a lane stopped, and its successors were performed a year ago. They stay for as long
    as somebody may release it, and go when it is given up; other lanes' go at once.
    """
    lane = {"ordered": True, "kind": "order", "key": "ord_42"}
    pretend.behave = lambda _number, _call: Answers()
    missing = {"method": None, "body": None, "fault": "no such member"}
    head, _, _, _ = await world.enqueue(
        an_entry(1, revision=2, **lane, **(missing if stopped == "unrendered" else {})),
        an_entry(2, revision=3, **lane),
        an_entry(3, revision=1, **lane),
        an_entry(4, revision=3, **{**lane, "key": "ord_43"}),
    )
    ends = {"dead": "dead", "uncertain": "uncertain", "unrendered": "pending"}
    await run_sql(
        world.engine,
        "update reconciler.outbox set completed_at = now() - interval '1 year', state = case"  # noqa: S608
        f" when event_id = 'evt_1' then '{ends[stopped]}' else 'delivered' end",
    )

    assert ["evt_1", "evt_2"] == await purged(world)
    if stopped != "unrendered":
        assert [Refusal.OUT_OF_ORDER] == await redriven(world, head.id)
    assert ["evt_1", "evt_2"] == await purged(world)
    assert [None] == await discarded(world, head.id)
    assert ["evt_1"] == await purged(world)


async def purged(world):
    """Which events still have entries after a purge of what was over a month ago."""
    keep = timedelta(days=30)
    async with world.engine.begin() as connection:
        would_go = await count(connection, old_entries("shop", keep))
        gone = await purge(connection, "shop", keep=keep)
    assert would_go == gone.rows
    return [entry.event_id for entry in await world.entries()]


async def test_a_redriven_head_goes_before_what_waits_behind_it(world, pretend):
    """
    Nobody has called its successor yet: it is held back at once, also from a relay that began to
    look before the redrive was committed, and goes when the head is through.
    """
    lane = {"ordered": True, "kind": "order", "key": "ord_42"}
    pretend.behave = in_turn(REFUSED, Answers(), Answers())
    head, behind = await world.enqueue(
        an_entry(1, revision=1, **lane), an_entry(2, revision=2, **lane)
    )
    await world.relay_once()
    before = await world.entries()
    assert [None] == await redriven(world, head.id)
    entries = await world.entries()
    assert before[1].due_at + timedelta(seconds=1) < entries[1].due_at
    assert 1 == await world.relay_once()
    assert "key_1" == pretend.keys[-1]
    await world.time_passes(timedelta(minutes=1))
    await world.relay_once()
    assert (["delivered", "delivered"], behind.id) == (await world.states(), entries[1].id)


async def test_a_successor_that_is_just_being_called_is_not_overtaken_unseen(world, pretend):
    lane = {"ordered": True, "kind": "order", "key": "ord_42"}
    pretend.behave = in_turn(REFUSED)
    head, _ = await world.enqueue(an_entry(1, revision=1, **lane), an_entry(2, revision=2, **lane))
    await world.relay_once()
    leasing = await world.engine.connect()
    try:
        (leased,), *_ = await lease(leasing, world_relay(world))
        asked = asyncio.create_task(redriven(world, head.id))
        await blocked(world, unless=asked)
        await leasing.commit()
        assert [Refusal.OUT_OF_ORDER] == await asked
        assert "evt_2" == leased.event_id
    finally:
        await leasing.close()


async def blocked(world, *, unless):
    """Wait until somebody waits for a lock."""

    async def waits():
        if unless.done():
            return True
        async with world.engine.connect() as connection:
            return await connection.scalar(text("select count(*) from pg_locks where not granted"))

    await world.until(waits)


async def test_what_history_held_back_is_released_once_and_takes_its_key(world, pretend):
    """
    Skipped, it had not used its key. Released, it has it: whoever asks for the same call later
    finds it used. A second one that was skipped for the same key is refused, now and for ever.
    """
    old, twin = await world.enqueue(
        an_entry(1, skip="baseline"), an_entry(2, idempotency_key="key_1", skip="baseline")
    )
    assert [None, Refusal.KEY_USED] == await redriven(world, old.id, twin.id)
    (later,) = await world.enqueue(an_entry(3, idempotency_key="key_1"))
    assert (State.SKIPPED, "key used") == (later.state, later.reason)
    assert [Refusal.KEY_USED, Refusal.KEY_USED] == await redriven(world, twin.id, later.id)
    await world.relay_once()
    assert (["delivered", "skipped", "skipped"], ["key_1"]) == (
        await world.states(),
        pretend.keys,
    )
    await run_sql(world.engine, "delete from reconciler.effect_keys")  # as a purge does
    assert [Refusal.KEY_USED] == await redriven(world, later.id)


async def test_an_old_attempt_that_fails_late_changes_nothing_and_one_that_succeeds_does(world):
    """
    A relay hung in its only attempt, the entry was given up and redriven. Its failure must not
    kill the entry that has not been called again yet; its success settles it.
    """
    world.set(max_attempts=1)
    await world.enqueue(an_entry())
    hung = await leased_by_hand(world)
    await world.time_passes(timedelta(hours=1))
    await world.relay_once()
    assert ["uncertain"] == await world.states()
    assert [None] == await redriven(world, hung.id)

    assert set() == await reported(world, hung, State.DEAD)
    assert ["pending"] == await world.states()
    assert {hung.id} == await reported(world, hung, State.DELIVERED)
    assert ["delivered"] == await world.states()


async def test_discarding_releases_what_waits_and_stops_no_call(world, pretend):
    """The uncertain head of a lane is given up, and a call that was under way arrives late."""
    lane = {"ordered": True, "kind": "order", "key": "ord_42"}
    world.set(max_attempts=1)
    head, _ = await world.enqueue(an_entry(1, revision=1, **lane), an_entry(2, revision=2, **lane))
    hung = await leased_by_hand(world)
    assert 0 == await world.relay_once()
    assert [None] == await discarded(world, head.id)
    await world.relay_once()
    assert (["discarded", "delivered"], ["key_2"]) == (await world.states(), pretend.keys)
    assert [Refusal.DISCARDED] == await discarded(world, head.id)

    assert {head.id} == await reported(world, hung, State.DELIVERED)
    assert "delivered" == (await world.entries())[0].state
    assert [Refusal.DELIVERED] == await discarded(world, head.id)


async def test_two_operators_at_once_beside_a_relay_redrive_each_entry_once(world, pretend):
    """Forty dead letters; whoever comes second is refused, and each goes out once more."""
    pretend.behave = lambda number, _call: REFUSED if number <= 40 else Answers()
    asked = await world.enqueue(*(an_entry(number) for number in range(40)))
    ids = [one.id for one in asked]
    async with world.running():
        await world.until(lambda: len(pretend.calls) == 40)
        await world.until(all_in(world, "dead"))
        async with asyncio.TaskGroup() as both:
            operators = [both.create_task(redriven(world, *ids)) for _ in range(2)]
        await world.until(all_in(world, "delivered"))
    told = [
        sorted(map(str, one)) for one in zip(*(each.result() for each in operators), strict=True)
    ]
    assert all("None" in one and one != ["None", "None"] for one in told)
    assert sorted(pretend.keys) == sorted(2 * [f"key_{number}" for number in range(40)])


def all_in(world, state):
    async def look():
        return {state} == set(await world.states())

    return look


async def test_entries_are_found_by_what_is_said_of_them(world, pretend):
    pretend.behave = in_turn(REFUSED, Answers(status=404))
    world.set(concurrency=1)
    first, second, skipped = await world.enqueue(
        an_entry(1), an_entry(2, effect="receipt"), an_entry(3, skip="baseline")
    )
    await world.relay_once()
    await world.relay_once()

    async def found(**filters):
        async with world.engine.connect() as connection:
            wanted = {"state": State.DEAD, "limit": 10, **filters}
            return [*await find(connection, **wanted)]

    assert [first.id, second.id] == await found()
    assert [second.id] == await found(after=first.id)
    assert [first.id] == await found(limit=1)
    assert [second.id] == await found(error="ANSWERED 404")
    assert [] == await found(error="%")
    assert [second.id] == await found(effect="receipt", destination="payments", sender="shop")
    assert [skipped.id] == await found(state=State.SKIPPED)
    now = (await world.entries())[2].completed_at
    assert [] == await found(before=now)
    assert [first.id, second.id] == await found(since=now)


async def a_restore(world, *, days):
    """The database went back to how it was so many days ago, and this was noticed."""
    for number in (1, 2):
        await run_sql(
            world.engine,
            "insert into reconciler.generations (number, opened_at, reason, lost_since) values"  # noqa: S608
            f" ({number}, clock_timestamp(), 'a story', now() - interval '{days} days')",
        )


@pytest.mark.parametrize("days", [0, 2])
async def test_what_a_lost_future_may_have_redriven_counts_as_sent_since_then(world, pretend, days):
    """
    The entries had died before the moment to which the database was restored. After it somebody
    may have redriven them: within the key's life they may go out again, but its clock runs.
    """
    pretend.behave = in_turn(REFUSED, REFUSED)
    keyed, keyless = await world.enqueue(an_entry(1), an_entry(2, idempotent=False))
    await world.relay_once()
    await a_restore(world, days=days)
    last = Refusal.KEY_LIFE_OVER if days else None
    assert [last, Refusal.MAYBE_PERFORMED] == await redriven(world, keyed.id, keyless.id)
    entry = (await world.entries())[0]
    expected = ("dead", False) if days else ("pending", True)
    assert expected == (entry.state, entry.first_attempt_at is not None)
