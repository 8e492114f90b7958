"""One bad entry: it uses itself up where it can be seen, and a hundred others do not notice."""

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.store import outbox
from tests.cases.house import a_house, order
from tests.outbox.pretend import Answers, Misbehaves
from tests.outbox.world import an_entry, run_sql

pytestmark = pytest.mark.anyio

BROKEN = {
    "no method": "method = null",
    "a method that is none": "method = 'PO ST'",
    "no path": "path = null",
    "a path that is none": "path = 'charges of the day'",
    "headers that are a list": "headers = '[1, 2]'",
    "headers that are a text": "headers = '\"x\"'",
    "headers that hold too long a number": "headers = cast(repeat('9', 5000) as jsonb)",
    "headers too deep": "headers = cast(repeat('[', 3000) || repeat(']', 3000) as jsonb)",
    "a header that is a number": "headers = '{\"X-A\": 7}'",
    "a header with a line in it": 'headers = \'{"X-A": "a\\nb"}\'',
    "no headers": "headers = null",
    "no body": "body = null",
    "no key": "idempotency_key = null",
    "a key with a line in it": "idempotency_key = E'a\\nb'",
    "a key of letters that no header has": "idempotency_key = '\u20ac'",
    "a last failure in the future": "due_at = now() - interval '9 years'",
}
CALLABLE = {"no headers", "no body", "no key", "a last failure in the future"}


async def test_stored_entries_that_cannot_be_sent(world, pretend) -> None:
    """
    Rows that somebody else wrote, or an upgrade broke. Each of them comes to an end; the others
    are delivered in the same turns, oldest or not.
    """
    world.set(max_attempts=2, concurrency=8)
    await world.enqueue(*(an_entry(number) for number in range(len(BROKEN))))
    for number, change in enumerate(BROKEN.values()):
        quoted = change.replace(":", "\\:")  # no parameter
        where = f"event_id = 'evt_{number}'"
        await run_sql(world.engine, f"update reconciler.outbox set {quoted} where {where}")  # noqa: S608
    await run_sql(world.engine, "update reconciler.outbox set due_at = due_at - interval '1 hour'")
    await world.enqueue(*(an_entry(1000 + number) for number in range(100)))
    for _ in range(40):
        await world.relay_once()
        await run_sql(
            world.engine,
            "update reconciler.outbox set due_at = now() - interval '1 hour'"
            " where state = 'pending'",
        )
    async with world.engine.connect() as connection:  # some of them cannot be read whole
        shown = outbox.c.event_id, outbox.c.state, outbox.c.last_error
        rows = await connection.execute(select(*shown))
    states = {row.event_id: (row.state, row.last_error) for row in rows}
    assert {"delivered"} == {states[f"evt_{1000 + number}"][0] for number in range(100)}
    for number, name in enumerate(BROKEN):
        state, error = states[f"evt_{number}"]
        expected = {"delivered"} if name in CALLABLE else {"dead", "uncertain"}
        assert state in expected, (name, state, error)
        assert state == "delivered" or error


@pytest.mark.parametrize("answer", [400, 404, 422, "hangs", "garbage", "resets", "floods"])
async def test_a_destination_that_cannot_take_one_of_them(world, pretend, answer) -> None:
    """Refused, hung on, or answered with nonsense: the hundred go out at once all the same."""
    world.set(max_attempts=2, timeout=timedelta(milliseconds=300))
    bad = Answers(status=answer) if isinstance(answer, int) else Misbehaves(answer)
    pretend.behave = lambda _, call: bad if call.key == "key_0" else Answers()
    await world.enqueue(*(an_entry(number) for number in range(101)))
    async with world.running():
        await world.until(lambda: len({call.key for call in pretend.calls}) == 101)

        async def through() -> bool:
            return (await world.states()).count("delivered") >= 100

        await world.until(through)
    pretend.release.set()


async def test_an_effect_that_cannot_be_rendered_fails_nothing_else(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """The event counts, its other effects go out, and the broken one is there to be seen."""
    more = """
[effects.broken]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /broken/{{ state.amount }}"
json = { of = "{{ state.status.of.nothing }}", amount = "{{ state.amount + 1 }}" }
"""
    async with a_house(engine, tmp_path, more=more) as house:
        for number in range(20):
            amount: object = 5 if number % 2 else None
            event = order(f"e{number}", f"k{number}", paid=True, amount=amount)
            assert "applied" == await house.outcome(event)
        while await house.call():
            pass
        rows = await house.rows("select effect, state, count(*) from outbox group by 1, 2")
        found = {(effect, state): count for effect, state, count in rows}
        assert 20 == found["capture", "delivered"]
        assert 10 == found["broken", "pending"]
        assert 10 == found["broken", "delivered"]
        stuck = await house.rows(
            "select distinct due_at, left(last_error, 10) from outbox where state = 'pending'"
        )
        assert [(None, "unrendered")] == stuck
