"""Stories of scans: what was lost is found, nothing is lost on the way, and nothing is invented."""

import pytest

from reconciler.polling.report import End

from .world import a_world

pytestmark = pytest.mark.anyio


async def test_a_lost_webhook_is_made_good(engine):
    """P12: the order is paid, its webhook never arrives; the scan finds out, once, and charges."""
    async with a_world(engine) as world:
        await world.webhook(world.shop.put("ord_1", version=1))
        world.shop.put("ord_1", version=2, paid=True)

        report = await world.scan()
        assert (End.COMPLETED, 1, 0) == (report.end, report.corrected, report.in_sync)
        report = await world.scan()
        assert (0, 1) == (report.corrected, report.in_sync)

        assert {"ord_1": 2} == await world.held()
        assert ["ord_1"] == await world.calls()
        correction = (await world.rows("select * from reconciler.corrections"))[0]
        assert ("behind", 1, 2) == (
            correction.drift,
            correction.old_version,
            correction.new_version,
        )
        assert report.run_id != correction.run_id
