"""P11, ids are kept long enough, and what was purged cannot happen again."""

import asyncio

import pytest

from tests.stories.conftest import UNHEALED
from tests.world import World, eventually, refund_event

pytestmark = pytest.mark.anyio

DAY = 24 * 60 * 60


async def test_p11_ids_kept_for_less_than_twice_the_retry_window_are_refused(world: World):
    """An hour of memory beside a day of retries brings duplicates back: 78 at the start."""
    short = {
        "RECONCILER_SENDERS__SHOP__KEEP_CLAIMS": "47h",
        "RECONCILER_SENDERS__SHOP__RETRY_WINDOW": "24h",
    }
    log_file = world.directory / "serve.log"
    process = await world.serve(log_file, **short)
    assert 78 == await asyncio.wait_for(process.wait(), 30)
    assert "keep_claims" in log_file.read_text()
    code, _, told = await world.command("check", **short)
    assert (78, True) == (code, "keep_claims" in told)


async def test_p11_an_event_from_before_the_purge_is_kept_for_a_person(world: World):
    """
    A refund of a hundred days ago is purged. When it is delivered again it may have counted, so
    it is quarantined; a new refund is none of that.
    """
    old = refund_event("evt_old", age=101 * DAY)
    async with world.serving(*UNHEALED):
        assert "applied" == await world.outcome(old)
        await world.effects("receipt evt_old")
        await world.settled()
    await world.rows(
        "update reconciler.processed_events set processed_at = now() - interval '100 days'"
    )
    await world.rows(
        "update reconciler.outbox set created_at = now() - interval '100 days',"
        " completed_at = now() - interval '100 days'"
    )

    async def purged() -> bool:
        return not await world.value("select count(*) from reconciler.processed_events")

    async with world.serving():
        await eventually(purged)
        assert "quarantined" == await world.outcome(old)
        assert "applied" == await world.outcome(refund_event("evt_new"))
        await world.effects("receipt evt_new", "receipt evt_old")
    assert 2 == await world.value("select count(*) from refunds")
    (kept,) = (await world.document("events", "list", "--outcome", "quarantined"))["items"]
    assert "evt_old" == kept["event_id"]
    assert kept["fault"]
