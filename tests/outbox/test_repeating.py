"""Stories of calls that a person wants made again, as new ones (C92)."""

import asyncio

import pytest

from outbox.entry import outgoing_key
from outbox.redriving import Refusal
from outbox.repeating import repeat
from tests.outbox.pretend import Answers, Misbehaves, in_turn
from tests.outbox.test_redriving import discarded
from tests.outbox.world import an_entry, run_sql

pytestmark = pytest.mark.anyio


def new_key(_entry, first, repetition):
    return outgoing_key(first, repetition=repetition)


async def repeated(world, id_):
    async with world.engine.begin() as connection:
        return await repeat(connection, id_, new_key=new_key, destinations=world.destinations)


async def test_a_call_is_made_again_under_a_new_key_from_wherever_it_came_to_rest(world, pretend):
    """Delivered, dead, uncertain, discarded: same bytes, the next key; the first stays as it is."""
    answers = [Answers(), Answers(status=400), Misbehaves("closes")]
    pretend.behave = lambda number, _call: answers[number - 1] if number < 4 else Answers()
    world.set(concurrency=1)
    asked = await world.enqueue(*(an_entry(n, idempotent=False) for n in (1, 2, 3, 4)))
    for _ in range(3):
        await world.relay_once()
    assert [None] == await discarded(world, asked[3].id)
    was = ["delivered", "dead", "uncertain", "discarded"]
    assert was == await world.states()

    for one, state in zip(asked, was, strict=True):
        done = await repeated(world, one.id)
        assert (None, 1, state) == (done.meant.refusal, done.repetition, done.meant.entry["state"])
    world.set(concurrency=8)
    await world.relay_once()
    assert [f"key_{n}:r1" for n in (1, 2, 3, 4)] == sorted(pretend.keys[3:])
    assert 1 == len({call.body for call in pretend.calls})
    firsts = [row.state for row in await world.entries() if row.repetition == 0]
    assert was == firsts

    (again,) = [row for row in await world.entries() if row.idempotency_key == "key_1:r1"]
    assert "key_1:r2" == (await repeated(world, again.id)).made.idempotency_key


async def test_what_will_be_called_by_itself_is_refused(world):
    waiting, unrendered, skipped = await world.enqueue(
        an_entry(1),
        an_entry(2, method=None, body=None, fault="no such member"),
        an_entry(3, skip="baseline"),
    )
    expected = [Refusal.PENDING, Refusal.UNRENDERED, Refusal.SKIPPED, Refusal.UNKNOWN]
    ids = [waiting.id, unrendered.id, skipped.id, type(waiting.id)(int=7)]
    assert expected == [(await repeated(world, id_)).meant.refusal for id_ in ids]
    assert 3 == len(await world.entries())


async def test_two_people_at_once_make_two_calls_with_two_keys(world, pretend):
    (one,) = await world.enqueue(an_entry())
    await world.relay_once()
    async with asyncio.TaskGroup() as both:
        for _ in range(2):
            both.create_task(repeated(world, one.id))
    await world.relay_once()
    assert ["key_1", "key_1:r1", "key_1:r2"] == sorted(pretend.keys)


async def test_repetitions_count_where_there_are_no_keys_too(world):
    """The first is repeated twice: it is its third call, whichever of them was meant."""
    (one,) = await world.enqueue(an_entry(idempotency_key=None, idempotent=False))
    await world.relay_once()
    assert [1, 2] == [(await repeated(world, one.id)).repetition for _ in range(2)]


async def test_a_key_whose_entry_is_gone_is_not_used_again(world):
    (one,) = await world.enqueue(an_entry())
    await world.relay_once()
    first = await repeated(world, one.id)
    await run_sql(world.engine, f"delete from reconciler.outbox where id = '{first.made.id}'")  # noqa: S608
    assert "key_1:r2" == (await repeated(world, one.id)).made.idempotency_key


@pytest.mark.parametrize("lane", [{"lane": "order:42"}, {"ordered": True}], ids=["lane", "ordered"])
async def test_it_takes_the_place_of_the_first_and_waits_not_for_it(world, pretend, lane):
    """The head of a lane is uncertain: its repetition goes, and what is behind it still waits."""
    pretend.behave = in_turn(Misbehaves("closes"), Answers())
    about = {"kind": "order", "key": "42", **lane}
    head, _ = await world.enqueue(
        an_entry(1, revision=1, idempotent=False, **about), an_entry(2, revision=2, **about)
    )
    await world.relay_once()
    await repeated(world, head.id)
    assert 1 == await world.relay_once()
    assert ["key_1", "key_1:r1"] == pretend.keys
    assert 0 == await world.relay_once()
    assert [None] == await discarded(world, head.id)
    await world.relay_once()
    assert "key_2" == pretend.keys[-1]
