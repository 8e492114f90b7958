"""Calls of unknown outcome: the destination is asked, or a person, and then they go on or end."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import event

from outbox.breaker import Breaker
from outbox.flow import Rate, ask_to_look
from outbox.look_leases import take
from outbox.looking import Looker
from outbox.looking_up import Finding, LookUp, conclude
from outbox.pausing import pause, resume
from outbox.redriving import Refusal
from outbox.relay import always
from outbox.resolving import Said, resolve, settle_unknown
from outbox.verdict import Answer, Failure, Sent
from outbox.waiting import standings
from tests.outbox.pretend import Answers, Misbehaves
from tests.outbox.world import POLICY, an_entry, run_sql

pytestmark = pytest.mark.anyio

LAG = timedelta(seconds=30)
THERE = Answers(body=b'{"data": [{"id": "ch_1"}]}')
NOTHING = Answers(body=b'{"data": []}')
LOOK_UP = LookUp(
    path=lambda names: f"/v1/charges?reference={names['idempotency_key']}",
    found=lambda status, _headers, body: status == 200 and len(body["data"]) == 1,
    not_found=lambda status, _headers, body: status == 200 and not body["data"],
    lag=LAG,
    every=timedelta(seconds=10),
    at_most=timedelta(hours=1),
    looks=3,
)


def loses_answers(shown: Answers | Misbehaves):
    """A destination that resets every POST, and shows *shown* to whoever looks."""
    return lambda _, call: shown if call.method == "GET" else Misbehaves("resets")


def a_looker(world, **changes) -> Looker:
    return Looker(
        engine=world.engine,
        destinations=world.destinations,
        lease=POLICY.lease,
        poll=timedelta(milliseconds=20),
        may_call=always,
        **changes,
    )


async def an_unknown(world, pretend, shown, **entry):
    """One entry whose call was lost, long enough ago that absence proves something."""
    pretend.behave = loses_answers(shown)
    world.set(look_up=LOOK_UP)
    (one,) = await world.enqueue(an_entry(idempotent=False, **entry))
    await world.relay_once()
    assert ["uncertain"] == await world.states()
    await lag_passes(world)
    return one


async def lag_passes(world) -> None:
    await run_sql(
        world.engine,
        "update reconciler.outbox set completed_at = completed_at - interval '1 minute',"
        " look_at = look_at - interval '1 hour'",
    )


def methods(pretend) -> list[str]:
    return [call.method for call in pretend.calls]


async def test_what_the_destination_shows_is_delivered_and_not_called_again(world, pretend):
    """The answer was lost, the charge was made: a look by our own reference finds it."""
    await an_unknown(world, pretend, THERE)
    assert 1 == await a_looker(world).once()
    assert 0 == await a_looker(world).once()
    await world.relay_once()

    assert ["delivered"] == await world.states()
    assert ["POST", "GET"] == methods(pretend)
    assert "/v1/charges?reference=key_1" == pretend.calls[1].target
    assert "looked up: answered 200, it is there" == (await world.entry()).last_error


async def test_what_is_certainly_not_there_goes_on_under_the_same_key(world, pretend):
    """Nothing was made: the call is made again, under its key, within the attempts it had."""
    await an_unknown(world, pretend, NOTHING)
    await a_looker(world).once()
    assert ("pending", None) == (
        (await world.entry()).state,
        (await world.entry()).first_attempt_at,
    )
    pretend.behave = lambda _, __: Answers()
    await world.relay_once()

    assert ["delivered"] == await world.states()
    assert ["key_1", "", "key_1"] == pretend.keys
    assert [1, 2] == [attempt.attempt for attempt in await world.attempts()]


async def test_absence_within_the_lag_proves_nothing(world, pretend):
    """What was asked for a moment ago may only not be visible yet."""
    pretend.behave = loses_answers(NOTHING)
    world.set(look_up=LOOK_UP)
    await world.enqueue(an_entry(idempotent=False))
    await world.relay_once()
    await a_looker(world).once()
    assert 0 == await a_looker(world).once()
    assert ["uncertain"] == await world.states()

    await lag_passes(world)
    assert 1 == await a_looker(world).once()
    assert ["pending"] == await world.states()


@pytest.mark.parametrize(
    "shown", [Answers(status=500), Answers(status=404), Misbehaves("resets"), Answers(body=b"no")]
)
async def test_an_answer_that_says_neither_is_asked_again_a_bounded_number_of_times(
    world, pretend, shown
):
    """An error is no absence. After the last look it waits for a person, and says so."""
    await an_unknown(world, pretend, shown)
    for _ in range(5):
        await a_looker(world).once()
        await lag_passes(world)
    await run_sql(world.engine, "update reconciler.outbox set due_at = now()")

    assert ["uncertain"] == await world.states()
    assert ["POST", "GET", "GET", "GET"] == methods(pretend)
    assert "looked up 3 times, the last time: " in (await world.entry()).last_error


async def test_what_is_not_there_and_whose_key_is_forgotten_is_dead(world, pretend):
    """P10: past the life of its key nothing goes out again by itself; only a new call is left."""
    pretend.behave = loses_answers(NOTHING)
    world.set(look_up=LOOK_UP)
    await world.enqueue(an_entry())
    await world.relay_once()
    await world.time_passes(timedelta(hours=25))
    await world.relay_once()
    assert ["uncertain"] == await world.states()
    await lag_passes(world)
    await a_looker(world).once()

    assert ["dead"] == await world.states()
    assert (await world.entry()).last_error.endswith(
        "not there; its key's life is over: only a new call under a new key is left"
    )


async def test_what_used_its_attempts_up_and_is_not_there_is_dead(world, pretend):
    """A look gives no attempts: what fails again and again ends."""
    world.set(max_attempts=1)
    await an_unknown(world, pretend, NOTHING)
    await a_looker(world).once()

    assert ["dead"] == await world.states()
    assert (await world.entry()).last_error.endswith("not there; attempts used up")


async def test_two_replicas_do_not_both_look(world, pretend):
    """The look is leased: whoever comes second finds nothing to do."""
    await an_unknown(world, pretend, THERE)
    async with asyncio.TaskGroup() as both:
        looks = [both.create_task(a_looker(world).once()) for _ in range(4)]

    assert 1 == sum(look.result() for look in looks)
    assert ["POST", "GET"] == methods(pretend)


async def test_a_person_who_was_faster_is_not_overruled(world, pretend):
    """While the look is under way a person says that it was delivered; "not there" comes late."""
    one = await an_unknown(world, pretend, NOTHING)
    absent = replace(LOOK_UP, found=lambda *_: False, not_found=lambda *_: True)
    world.set(look_up=absent)
    pretend.behave = lambda _, __: Misbehaves("answers_late")
    async with asyncio.TaskGroup() as both:
        look = both.create_task(a_looker(world).once())
        await world.until(lambda: len(pretend.calls) == 2)
        assert [None] == await resolved(world, one.id, delivered=True)
        pretend.release.set()
        await look

    assert ["delivered"] == await world.states()
    assert "resolved by a person as delivered" == (await world.entry()).last_error


async def test_a_look_whose_lease_ran_out_decides_nothing_any_more(world, pretend):
    """Another replica has looked since: only what the latest look found is written."""
    one = await an_unknown(world, pretend, Answers(status=500))
    for _ in range(2):
        await a_looker(world).once()
        await lag_passes(world)
    life = timedelta(hours=24)
    old = Said(id=one.id, delivered=False, life=life, reason="late", max_attempts=12, attempts=1)
    async with world.engine.begin() as connection:
        assert [] == await settle_unknown(connection, [replace(old, looks=1)])
        assert [] == await settle_unknown(connection, [replace(old, looks=2, attempts=2)])
    assert ["uncertain"] == await world.states()


async def test_the_relay_looks_up_beside_its_calls(world, pretend):
    """One relay: the call is lost, found by the look, and the one behind it in its lane goes."""
    done: list[str] = []

    def behave(_, call):
        if call.method == "GET":
            return THERE
        done.append(call.key)
        return Misbehaves("resets") if call.key == "key_1" else Answers()

    pretend.behave = behave
    world.set(look_up=LOOK_UP)
    of_one = {"kind": "order", "key": "ord_1", "ordered": True, "idempotent": False}
    await world.enqueue(an_entry(1, revision=1, **of_one), an_entry(2, revision=2, **of_one))
    async with world.running():
        await world.until(lambda: _are(world, ["delivered", "delivered"]))

    assert ["key_1", "key_2"] == done


async def test_an_effect_may_be_held_where_its_destination_looks_up(world, pretend):
    """What is said of an effect goes before what is said of its destination."""
    pretend.behave = loses_answers(THERE)
    world.set(look_up=LOOK_UP, look_ups={"capture": None})
    await world.enqueue(an_entry(1, idempotent=False), an_entry(2, effect="pay", idempotent=False))
    await world.relay_once()
    await lag_passes(world)
    await a_looker(world).once()
    assert ["uncertain", "delivered"] == await world.states()

    world.set(look_up=None, look_ups={"capture": LOOK_UP})
    assert 1 == await a_looker(world).once()
    assert ["delivered", "delivered"] == await world.states()


@pytest.mark.parametrize("delivered", [True, False])
async def test_a_person_settles_what_is_unknown_and_lets_its_lane_go(world, pretend, delivered):
    """
    The first of a lane is uncertain and holds the second. A person finds out: delivered, and only
    the second is called; not delivered, and both are, the first under the key that it had.
    """
    pretend.behave = lambda number, _: Misbehaves("resets") if number == 1 else Answers()
    of_one = {"kind": "order", "key": "ord_1", "ordered": True, "idempotent": False}
    one, two = await world.enqueue(
        an_entry(1, revision=1, **of_one), an_entry(2, revision=2, **of_one)
    )
    for _ in range(3):
        await world.relay_once()
    assert ["uncertain", "pending"] == await world.states()
    assert [Refusal.NOT_UNCERTAIN] == await resolved(world, two.id, delivered=delivered)

    assert [None] == await resolved(world, one.id, delivered=delivered)
    for _ in range(3):
        await world.relay_once()
    assert ["delivered", "delivered"] == await world.states()
    expected = ["key_1", "key_2"] if delivered else ["key_1", "key_1", "key_2"]
    assert expected == pretend.keys
    expected_refusal = [Refusal.DELIVERED]
    assert expected_refusal == await resolved(world, one.id, delivered=delivered)


async def test_not_delivered_past_the_life_of_its_key_is_dead(world, pretend):
    """A person's word gives no old key a new life (C79, P10)."""
    pretend.behave = lambda _, __: Misbehaves("resets")
    (one,) = await world.enqueue(an_entry())
    await world.relay_once()
    await world.time_passes(timedelta(hours=25))
    await world.relay_once()
    assert ["uncertain"] == await world.states()

    assert [None] == await resolved(world, one.id, delivered=False)
    assert ["dead"] == await world.states()
    assert 0 == await world.relay_once()
    assert 1 == len(pretend.calls)


async def test_not_delivered_gives_new_attempts_under_the_same_key(world, pretend):
    """Attempts used up, one of them lost; a person says no: it goes again, numbered on."""
    pretend.behave = lambda _, __: Misbehaves("resets")
    world.set(max_attempts=1)
    (one,) = await world.enqueue(an_entry())
    await world.relay_once()
    assert ["uncertain"] == await world.states()
    pretend.behave = lambda _, __: Answers()
    await resolved(world, one.id, delivered=False)
    await world.relay_once()

    assert ["delivered"] == await world.states()
    assert ["key_1", "key_1"] == pretend.keys
    assert [1, 2] == [attempt.attempt for attempt in await world.attempts()]


async def resolved(world, *ids, delivered: bool):
    """Resolve as an operator's command does; each one's refusal, or None."""
    lives = {name: one.key_life(lease=POLICY.lease) for name, one in world.destinations.items()}
    async with world.engine.begin() as connection:
        handled, _ = await resolve(connection, ids, delivered=delivered, key_lives=lives)
    return [one.refusal for one in handled]


async def _are(world, expected: list[str]) -> bool:
    return expected == await world.states()


def an_answer(status: int = 200, *, complete: bool = True, **body) -> Answer:
    return Answer(status=status, body=json.dumps(body).encode(), complete=complete)


@pytest.mark.parametrize(
    ("result", "since", "expected"),
    [
        (an_answer(data=[1]), 0, Finding.FOUND),
        (an_answer(data=[1]), 60, Finding.FOUND),
        (an_answer(data=[]), 60, Finding.ABSENT),
        (an_answer(data=[]), 30, Finding.ABSENT),
        (an_answer(data=[]), 29.9, Finding.UNDECIDED),
        (an_answer(data=[1, 2]), 60, Finding.UNDECIDED),
        (an_answer(404, data=[]), 60, Finding.UNDECIDED),
        (an_answer(complete=False, data=[]), 60, Finding.UNDECIDED),
        (an_answer(other=[]), 60, Finding.UNDECIDED),
        (Answer(status=200, body=b"<html>"), 60, Finding.UNDECIDED),
        (Failure(kind=Sent.NOT_SENT, reason="refused"), 60, Finding.UNDECIDED),
        (Failure(kind=Sent.MAYBE_SENT, reason="timeout"), 60, Finding.UNDECIDED),
    ],
)
def test_every_look_has_its_finding(result, since, expected):
    """Found at any time; absent only by a whole answer that says so, and only past the lag."""
    found = conclude(result, LOOK_UP, looks=1, since=timedelta(seconds=since))
    assert expected is found.finding
    assert (found.wait is None) == (expected is not Finding.UNDECIDED)


def test_an_answer_that_fits_both_decides_nothing():
    """Two expressions that contradict each other are the configuration's fault, not the call's."""
    both = replace(LOOK_UP, not_found=LOOK_UP.found)
    found = conclude(an_answer(data=[1]), both, looks=1, since=LAG)
    assert Finding.UNDECIDED is found.finding


def test_waits_between_looks_grow_and_end():
    """Twice as long each time, never longer than said, and none after the last look."""
    patient = replace(LOOK_UP, looks=12)
    waits = [
        conclude(an_answer(500), patient, looks=number, since=LAG).wait for number in range(1, 13)
    ]
    seconds = [None if wait is None else wait.total_seconds() for wait in waits]
    assert [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, None] == seconds


# look-ups are calls too: a destination's limits hold for them


async def probe_is_due(world) -> None:
    await run_sql(world.engine, "update reconciler.destination_flow set probe_at = now()")


async def test_nothing_is_looked_up_at_a_paused_destination_or_of_a_paused_effect(world, pretend):
    """Whoever pauses a destination wants no request to reach it, not even a question."""
    await an_unknown(world, pretend, THERE)
    for effect in ("", "capture"):
        async with world.engine.begin() as connection:
            await pause(connection, "payments", effect=effect, actor="ops", reason=None)
        assert 0 == await a_looker(world).once()
        async with world.engine.begin() as connection:
            await resume(connection, "payments", effect=effect)
    assert ["POST"] == methods(pretend)
    assert 1 == await a_looker(world).once()
    assert ["delivered"] == await world.states()


async def test_look_ups_and_calls_share_one_rate(world, pretend):
    """A token that a look took is not there for a call."""
    pretend.behave = loses_answers(THERE)
    world.set(look_up=LOOK_UP, rate=Rate(per_second=0.001, burst=3))
    await world.enqueue(*(an_entry(n, idempotent=False) for n in (1, 2)))
    assert 2 == await world.relay_once()
    await lag_passes(world)
    assert 1 == await a_looker(world).once()
    assert 0 == await a_looker(world).once()
    await world.enqueue(an_entry(3))
    assert 0 == await world.relay_once()
    assert ["POST", "POST", "GET"] == methods(pretend)


async def test_a_destination_that_is_not_well_is_not_asked_and_one_look_finds_it_well(
    world, pretend
):
    """
    Nothing is looked up while its breaker is open. Where no call waits to be the probe, one look
    is it; and a look that fails keeps it open.
    """
    pretend.behave = loses_answers(Answers(status=503))
    world.set(
        look_up=LOOK_UP,
        breaker=Breaker(after=2, pause=timedelta(minutes=1), pause_max=timedelta(minutes=5)),
    )
    await world.enqueue(*(an_entry(n, idempotent=False) for n in (1, 2, 3)))
    await world.relay_once()
    await lag_passes(world)
    assert 0 == await a_looker(world).once()

    await probe_is_due(world)
    assert 1 == await a_looker(world).once()
    assert 0 == await a_looker(world).once()
    await probe_is_due(world)
    await run_sql(world.engine, "update reconciler.outbox set look_at = null")
    pretend.behave = loses_answers(THERE)
    await world.enqueue(an_entry(4))
    assert 0 == await a_looker(world).once()  # the call is the better probe
    await run_sql(world.engine, "delete from reconciler.outbox where event_id = 'evt_4'")
    assert 1 == await a_looker(world).once()
    assert 2 == await a_looker(world).once()
    assert ["delivered"] * 3 == await world.states()


async def test_a_look_that_is_answered_too_many_slows_its_destination(world, pretend):
    world.set(rate=Rate(per_second=0.01, burst=2))
    await an_unknown(world, pretend, Answers(status=429, headers=(("Retry-After", "20"),)))
    assert 1 == await a_looker(world).once()
    await world.enqueue(an_entry(2))
    assert 0 == await world.relay_once()
    async with world.engine.connect() as connection:
        assert "slowed" == (await standings(connection))["payments"]["waiting_for"]


async def test_of_many_unknown_outcomes_only_the_next_few_are_read(world):
    """Ten thousand wait for a look, and elsewhere as many for a person: a turn reads what goes."""
    await run_sql(
        world.engine,
        "insert into reconciler.outbox (id, sender, event_id, effect, destination, method, path,"
        " state, completed_at, look_at) select gen_random_uuid(), 'shop', 'many_' || n, 'capture',"
        " case n % 2 when 0 then 'payments' else 'ledger' end, 'POST', '/', 'uncertain', now(),"
        " case n % 2 when 1 then timestamptz '9000-01-01 00:00:00+00' end"
        " from generate_series(1, 20000) n",
    )
    await run_sql(world.engine, "analyze reconciler.outbox")
    for name, number in (("payments", 4), ("ledger", 0)):
        wanted = [{"destination": name, "only": None, "never": [], "lease": 60, "free": 4}]
        asked = []

        def note(_connection, _cursor, statement, parameters, *_, asked=asked):
            asked.append((statement, parameters))

        event.listen(world.engine.sync_engine, "before_cursor_execute", note)
        async with world.engine.begin() as connection:
            await ask_to_look(connection, wanted, {name: None})
            assert number == len(await take(connection, wanted))
        event.remove(world.engine.sync_engine, "before_cursor_execute", note)
        for statement, parameters in (asked[0], asked[-1]):
            told = await plan_of(world, statement, parameters)
            assert "Sort Key" not in told, told  # they come in the index's order
            assert "Rows Removed by Filter: 10000" not in told, told


async def plan_of(world, statement, parameters):
    """What PostgreSQL does for a statement, run once more."""
    async with world.engine.connect() as connection:
        told = await connection.exec_driver_sql(f"explain (analyze) {statement}", parameters)
        await connection.rollback()
        return "\n".join(told.scalars())
