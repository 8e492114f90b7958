"""What people see of the outbox."""

import uuid
from datetime import timedelta

import pytest

from outbox.entry import State
from outbox.store import counts, list_entries, show_entry
from tests.outbox.pretend import Answers, Misbehaves
from tests.outbox.world import an_entry

pytestmark = pytest.mark.anyio


async def test_entries_are_counted_by_state(world, pretend):
    pretend.behave = lambda _number, call: {
        "key_1": Answers(),
        "key_2": Answers(status=400),
        "key_3": Misbehaves("closes"),
        "key_4": Answers(status=503),
    }[call.key]
    async with world.engine.connect() as connection:
        empty = await counts(connection)
    assert {**dict.fromkeys(map(str, State), 0), "oldest_due_at": None} == empty

    await world.enqueue(*(an_entry(n, idempotent=n != 3) for n in range(1, 5)))
    await world.enqueue(an_entry(5, skip="baseline"))
    await world.relay_once()
    async with world.engine.connect() as connection:
        found = await counts(connection)
    assert {
        "pending": 1,
        "delivered": 1,
        "dead": 1,
        "uncertain": 1,
        "skipped": 1,
        "discarded": 0,
        "oldest_due_at": None,
    } == found

    await world.time_passes(timedelta(hours=1))
    async with world.engine.connect() as connection:
        oldest = (await counts(connection))["oldest_due_at"]
    assert oldest == next(row.due_at for row in await world.entries() if row.due_at)


async def test_entries_are_listed_newest_first_in_pages(world):
    enqueued = await world.enqueue(*(an_entry(n, body=b"large") for n in range(7)))
    newest_first = [one.id for one in reversed(enqueued)]
    seen, after = [], None
    async with world.engine.connect() as connection:
        while page := await list_entries(connection, limit=3, after=after):
            assert "body" not in page[0]
            seen += [row["id"] for row in page]
            after = seen[-1]
    assert newest_first == seen


async def test_lists_are_narrowed_by_state_and_columns(world):
    await world.enqueue(
        an_entry(1),
        an_entry(2, kind="order", key="42"),
        an_entry(3, kind="order", key="42", skip="baseline"),
        an_entry(4, destination="bank", effect="receipt"),
    )
    async with world.engine.connect() as connection:

        async def ids(state=None, **about):
            rows = await list_entries(connection, state=state, about=about, limit=10)
            return [row["event_id"] for row in rows]

        assert ["evt_3", "evt_2"] == await ids(kind="order", key="42")
        assert ["evt_2"] == await ids(State.PENDING, kind="order", key="42")
        assert ["evt_4"] == await ids(destination="bank", effect="receipt")
        assert ["evt_1"] == await ids(sender="shop", event_id="evt_1")
        assert [] == await ids(State.DEAD)


async def test_one_entry_is_shown_with_its_attempts(world, pretend):
    pretend.behave = lambda number, _call: Answers(status=503 if number == 1 else 200)
    (enqueued,) = await world.enqueue(an_entry(body=b"\x00\x01"))
    await world.relay_once()
    await world.time_passes(timedelta(hours=1))
    await world.relay_once()
    async with world.engine.connect() as connection:
        shown = await show_entry(connection, enqueued.id)
        missing = await show_entry(connection, uuid.uuid4())
    assert shown is not None
    entry, attempts = shown
    assert (b"\x00\x01", "delivered") == (entry["body"], entry["state"])
    assert [(1, 503, "answered 503"), (2, 200, None)] == [
        (one["attempt"], one["status"], one["error"]) for one in attempts
    ]
    assert missing is None
