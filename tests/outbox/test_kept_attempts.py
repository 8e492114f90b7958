"""What is kept of attempts is bounded, and goes with its entry."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from outbox.entry import State, Verdict
from outbox.settling import KEPT_ATTEMPTS, Mark, settle
from tests.outbox.world import an_entry

pytestmark = pytest.mark.anyio


def a_mark(id_: uuid.UUID, *, attempt: int) -> Mark:
    return Mark(
        id=id_,
        attempt=attempt,
        started_at=datetime.now(UTC),
        state=State.PENDING,
        wait=timedelta(0),
        maybe_sent=False,
        refusals=0,
        verdict=Verdict.RETRY,
        status=401,
        error="refused",
        ordered=False,
    )


async def test_of_an_entry_that_is_refused_for_weeks_the_first_and_the_latest_are_kept(world):
    """A password was changed: a hundred and thirty calls of one entry, each refused."""
    (enqueued,) = await world.enqueue(an_entry())
    for attempt in range(1, 131):
        async with world.engine.begin() as connection:
            await settle(connection, [a_mark(enqueued.id, attempt=attempt)])
    assert [1, *range(31, 131)] == [row.attempt for row in await world.attempts()]
    assert 100 == KEPT_ATTEMPTS


async def test_an_answer_that_comes_after_its_entry_was_forgotten_leaves_nothing(world):
    """The relay stood still for so long that the entry was delivered by another, and purged."""
    async with world.engine.begin() as connection:
        taken = await settle(connection, [a_mark(uuid.uuid4(), attempt=3)])
    assert set() == taken
    assert [] == await world.attempts()
