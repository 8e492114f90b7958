"""What is acknowledged and not applied can be seen from outside, each for what it is."""

import time
from pathlib import Path

import pytest

from tests.world import a_world, order_event, refund_event

pytestmark = pytest.mark.anyio


async def test_the_daemon_counts_what_it_does_not_apply(database_url: str, tmp_path: Path) -> None:
    """
    A type that nobody named, one id with two bodies, a body beyond use, twice a signature that
    is too old or too new: 200 or 401, and a figure for each.
    """
    async with a_world(tmp_path, database_url) as world, world.serving() as daemon:
        told = [
            (await world.deliver(event)).json()["outcome"]
            for event in (
                {"id": "k1", "type": "invoice.some_new_thing"},
                refund_event("r1"),
                refund_event("r1", amount=7),
                order_event("bad", {"order_id": "ord_1", "version": True}),
                b"no JSON",
            )
        ]
        assert ["ignored", "applied", "duplicate", "quarantined", "quarantined"] == told
        for age in (301, -302):
            late = await world.deliver(refund_event("r2"), at=int(time.time()) - age)
            assert 401 == late.status_code

        shown = (await daemon.shown("/metrics") or "").splitlines()
        for line in (
            'reconciler_events_total{outcome="ignored",sender="shop"} 1.0',
            'reconciler_events_total{outcome="duplicate",sender="shop"} 1.0',
            'reconciler_events_total{outcome="quarantined",sender="shop"} 2.0',
            'reconciler_events_other_body_total{sender="shop"} 1.0',
            'reconciler_webhook_requests_total{answer="too_old",sender="shop"} 1.0',
            'reconciler_webhook_requests_total{answer="too_new",sender="shop"} 1.0',
        ):
            assert line in shown, [one for one in shown if one.startswith("reconciler_e")]
