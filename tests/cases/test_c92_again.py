"""C92: sending again by hand does nothing, or does too much."""

from datetime import timedelta

import pytest

from outbox.redriving import Refusal
from tests.outbox.pretend import Answers, in_turn
from tests.outbox.test_redriving import redriven
from tests.outbox.world import an_entry

pytestmark = pytest.mark.anyio


async def test_each_redrive_really_calls_and_what_was_sent_is_not_sent_again(world, pretend):
    """
    Dead, redriven, dead again; the destination is mended, and the second redrive of the same day
    really calls, under the key of the first attempt. What was delivered is refused.
    """
    pretend.behave = in_turn(Answers(status=400), Answers(status=400), Answers())
    (one,) = await world.enqueue(an_entry())
    await world.relay_once()
    for expected in ("dead", "delivered"):
        assert [None] == await redriven(world, one.id)
        await world.relay_once()
        assert [expected] == await world.states()
    await world.time_passes(timedelta(minutes=1))
    assert [Refusal.DELIVERED] == await redriven(world, one.id)
    assert 0 == await world.relay_once()
    assert ["key_1"] * 3 == pretend.keys
    assert [1, 2, 3] == [attempt.attempt for attempt in await world.attempts()]
