"""Asking for calls: together with the caller's transaction, one entry a key (P3, P6, P7)."""

import asyncio

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import IntegrityError

from outbox.enqueue import enqueue
from outbox.entry import State
from outbox.store import effect_keys
from tests.outbox.world import an_entry

pytestmark = pytest.mark.anyio


async def keys(world):
    async with world.engine.connect() as connection:
        rows = await connection.execute(select(effect_keys).order_by(effect_keys.c.idempotency_key))
        return list(rows.all())


async def test_an_entry_is_frozen_to_the_byte(world):
    """Bytes that are no text, headers in no alphabet: what is stored is what was given."""
    body = bytes(range(256)) * 300
    (enqueued,) = await world.enqueue(
        an_entry(
            body=body,
            headers={"X-Ä": "ü", "a": "b"},
            kind="order",
            key="ord\u0301_42",
            revision=2**62,
            position=3,
            ordered=True,
            idempotent=False,
        )
    )

    row = await world.entry()
    assert (enqueued.id, State.PENDING, None, "key_1") == (
        row.id,
        enqueued.state,
        enqueued.reason,
        enqueued.idempotency_key,
    )
    assert body == row.body
    assert {"X-Ä": "ü", "a": "b"} == row.headers
    assert ("order", "ord\u0301_42", 2**62, 3) == (row.kind, row.key, row.revision, row.position)
    assert (True, False, 0) == (row.ordered, row.idempotent, row.attempts)
    assert row.created_at <= row.due_at
    assert (row.first_attempt_at, row.completed_at) == (None, None)


async def test_nothing_is_asked_for_until_the_transaction_commits(world):
    async with world.engine.connect() as connection, connection.begin() as transaction:
        await enqueue(connection, [an_entry()])
        await transaction.rollback()

    assert [] == await world.entries()
    assert [] == await keys(world)
    assert 0 == await world.relay_once()


async def test_nothing_to_ask_for_asks_the_database_nothing(world):
    assert [] == await world.enqueue()


async def test_a_thousand_entries_take_two_statements(world):
    statements = []

    def count(_connection, _cursor, statement, *_):
        statements.append(statement)

    event.listen(world.engine.sync_engine, "before_cursor_execute", count)
    enqueued = await world.enqueue(*(an_entry(n) for n in range(1000)))

    assert 2 == len(statements)
    assert [f"key_{n}" for n in range(1000)] == [one.idempotency_key for one in enqueued]
    assert [one.id for one in enqueued] == sorted(one.id for one in enqueued)


async def test_two_effects_of_one_event_are_two_calls(world):
    """C81: the key tells them apart, and so does the entry."""
    await world.enqueue(
        an_entry(effect="capture", idempotency_key="evt_1:capture"),
        an_entry(effect="receipt", idempotency_key="evt_1:receipt"),
    )
    assert 2 == await world.relay_once()
    assert ["evt_1:capture", "evt_1:receipt"] == sorted(world.pretend.keys)


async def test_a_key_used_by_the_same_effect_is_not_used_again(world):
    """
    The change was called for by a webhook; after a fall-back a scan finds it again,
    under another event id. The key is the same, and there is no second call.
    """
    await world.enqueue(an_entry(1, idempotency_key="shop:order:42:7:capture"))
    await world.relay_once()
    (again,) = await world.enqueue(an_entry(2, idempotency_key="shop:order:42:7:capture"))

    assert (State.SKIPPED, "key used") == (again.state, again.reason)
    assert 0 == await world.relay_once()
    assert ["delivered", "skipped"] == await world.states()
    assert "key used" == (await world.entries())[1].last_error
    assert 1 == len(world.pretend.calls)


async def test_a_key_taken_by_another_effect_is_a_fault_to_be_seen(world):
    await world.enqueue(an_entry(1, effect="capture", idempotency_key="k"))
    (taken,) = await world.enqueue(an_entry(2, effect="receipt", idempotency_key="k"))

    assert (State.PENDING, "unrendered: key taken") == (taken.state, taken.reason)
    row = (await world.entries())[1]
    assert ("pending", None, "unrendered: key taken") == (row.state, row.due_at, row.last_error)
    assert 1 == await world.relay_once()
    assert 0 == await world.relay_once()


async def test_within_one_batch_the_first_has_the_key(world):
    results = await world.enqueue(
        an_entry(1, idempotency_key="k"),
        an_entry(2, idempotency_key="k"),
        an_entry(3, idempotency_key="k", effect="receipt"),
        an_entry(4, idempotency_key="k", destination="bank"),
    )
    assert [None, "key used", "unrendered: key taken", None] == [one.reason for one in results]
    assert results[0].id == next(k.entry_id for k in await keys(world) if k.destination != "bank")


async def test_what_is_not_called_uses_up_no_key(world):
    """History and faults leave the key to the call that is made one day."""
    skipped, faulty = await world.enqueue(
        an_entry(1, idempotency_key="k", skip="baseline"),
        an_entry(2, idempotency_key="k", fault="no such member", body=None, method=None),
    )
    (real,) = await world.enqueue(an_entry(3, idempotency_key="k"))

    assert (State.SKIPPED, "baseline") == (skipped.state, skipped.reason)
    assert (State.PENDING, "unrendered: no such member") == (faulty.state, faulty.reason)
    assert (State.PENDING, None) == (real.state, real.reason)
    assert 1 == await world.relay_once()
    assert ["skipped", "pending", "delivered"] == await world.states()


async def test_a_key_without_version_or_event_is_marked_as_lasting(world):
    await world.enqueue(
        an_entry(1, idempotency_key="capture:42", lasting=True, kind="order", key="42"),
        an_entry(2, idempotency_key="evt_2"),
    )
    assert [("capture:42", True, "order", "42"), ("evt_2", False, None, None)] == [
        (k.idempotency_key, k.lasting, k.kind, k.key) for k in await keys(world)
    ]


async def test_a_second_entry_for_one_cause_is_an_error_and_not_silence(world):
    await world.enqueue(an_entry(1, idempotency_key="a"))
    with pytest.raises(IntegrityError, match="outbox_once"):
        await world.enqueue(an_entry(1, idempotency_key="b"))
    assert 1 == len(await world.entries())


async def test_of_two_transactions_with_one_key_one_calls(world):
    """The second waits for the first; if the first rolls back, the second has the key."""
    for commits in (True, False):
        key = f"k_{commits}"
        base = 10 if commits else 20
        async with world.engine.connect() as first, first.begin() as transaction:
            await enqueue(first, [an_entry(base, idempotency_key=key)])
            other = asyncio.create_task(world.enqueue(an_entry(base + 1, idempotency_key=key)))
            await world.until(lambda: waiting_for_a_lock(world))
            await (transaction.commit() if commits else transaction.rollback())
        (second,) = await other
        assert ("key used" if commits else None) == second.reason


async def test_batches_with_the_same_keys_in_other_orders_do_not_deadlock(world):
    """
    Somebody holds the first key; two batches wait for it that name the keys in opposite
    orders. Neither may hold the second key meanwhile.
    """
    for n in range(0, 100, 10):
        one, two = f"{n}:1", f"{n}:2"
        async with world.engine.connect() as holder, asyncio.TaskGroup() as group:
            transaction = await holder.begin()
            await enqueue(holder, [an_entry(n, idempotency_key=one)])
            for event_number, keys_named in ((n + 1, (one, two)), (n + 5, (two, one))):
                entries = [
                    an_entry(event_number + i, idempotency_key=key)
                    for i, key in enumerate(keys_named)
                ]
                group.create_task(world.enqueue(*entries))
            await world.until(lambda: two_wait(world))
            await transaction.rollback()
    states = await world.states()
    assert (20, 20) == (states.count("pending"), states.count("skipped"))


async def two_wait(world):
    return 2 == await waiting_for_a_lock(world)


async def waiting_for_a_lock(world):
    async with world.engine.connect() as connection:
        waiting = await connection.exec_driver_sql(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'"
        )
        return waiting.scalar()
