"""
The guide's own tests, in its own tables, through the real daemon over HTTP.

"Testing Webhook Retries and Idempotency Contracts" asks for a repeated delivery, concurrent
deliveries, an out-of-order update, a retry storm, and a replay by curl.
"""

import asyncio
import hashlib
import hmac
import json
import random
import time
from collections import Counter

import pytest

from tests.stories.conftest import UNHEALED
from tests.world import SECRET, World, order_event, refund_event

pytestmark = pytest.mark.anyio

EVENT = {
    "id": "evt_9tX2mLq7Rk3vBn5cWd8pYs1a",
    "type": "refund.succeeded",
    "created_at": "2026-07-29T10:00:00Z",
    "api_version": "2026-07-01",
    "data": {"order_id": "ord_42", "amount": 4200, "currency": "EUR"},
}


async def all_at_once(world: World, events: list[dict]) -> Counter[str]:
    return Counter(answer.json()["outcome"] for answer in await world.all_at_once(events))


async def test_a_repeated_delivery_applies_the_effect_once(world: World):
    async with world.serving(*UNHEALED):
        assert "applied" == await world.outcome(EVENT)
        assert "duplicate" == await world.outcome(EVENT)
        await world.effects(f"receipt {EVENT['id']}")
    assert 1 == await world.value(
        "select count(*) from refunds where source_event = %s", EVENT["id"]
    )


async def test_concurrent_deliveries_of_the_same_event_apply_the_effect_once(world: World):
    """The case that an application-level "have I seen this?" gets wrong."""
    async with world.serving(*UNHEALED):
        assert {"applied": 1, "duplicate": 2} == await all_at_once(world, [EVENT] * 3)
        await world.effects(f"receipt {EVENT['id']}")
    assert 1 == await world.value(
        "select count(*) from refunds where source_event = %s", EVENT["id"]
    )


async def test_an_out_of_order_status_update_is_discarded(world: World):
    """A different id and an older version: the index does not catch it, the version guard does."""
    newer = {"order_id": "ord_42", "version": 5, "status": "delivered"}
    older = {"order_id": "ord_42", "version": 4, "status": "shipped"}
    async with world.serving(*UNHEALED):
        type_ = "order.status_changed"
        assert "applied" == await world.outcome(order_event("evt_b", newer, type_=type_))
        assert "stale" == await world.outcome(order_event("evt_a", older, type_=type_))
    (row,) = await world.rows("select status, status_version from orders where id = 'ord_42'")
    assert {"status": "delivered", "status_version": 5} == row


async def test_a_burst_of_200_deliveries_half_duplicates_applies_each_effect_once(world: World):
    """Throughput may degrade under a storm; correctness may not."""
    events = [refund_event(f"evt_{number}") for number in range(100)]
    burst = [*events, *events]
    random.Random(42).shuffle(burst)
    async with world.serving(*UNHEALED):
        assert {"applied": 100, "duplicate": 100} == await all_at_once(world, burst)
        await world.effects(*(f"receipt {event['id']}" for event in events))
    assert 100 == await world.value("select count(*) from refunds")
    assert 100 == await world.value("select count(distinct source_event) from refunds")


async def test_three_signed_curl_posts_are_one_row(world: World):
    """The guide's last proof, word for word: its URL without a sender, and its headers."""
    fixture = world.directory / "refund-succeeded.json"
    fixture.write_bytes(json.dumps(EVENT).encode())
    stamp = str(int(time.time()))
    signature = hmac.new(
        SECRET.encode(), f"{stamp}.".encode() + fixture.read_bytes(), hashlib.sha256
    ).hexdigest()
    answers = []
    async with world.serving(*UNHEALED) as daemon:
        for _ in range(3):
            curl = await asyncio.create_subprocess_exec(
                *("curl", "-sS", "-X", "POST", f"{daemon.webhooks}/webhooks"),
                *("-H", f"X-Signature: {signature}", "-H", f"X-Signature-Timestamp: {stamp}"),
                *("--data-binary", f"@{fixture}"),
                stdout=asyncio.subprocess.PIPE,
                env={**world.environment, "no_proxy": "*"},
            )
            out, _ = await curl.communicate()
            assert 0 == curl.returncode
            answers.append(json.loads(out))
    assert ["applied", "duplicate", "duplicate"] == [answer["outcome"] for answer in answers]
    assert {EVENT["id"]} == {answer["event_id"] for answer in answers}
    assert 1 == await world.value(
        "select count(*) from refunds where source_event = 'evt_9tX2mLq7Rk3vBn5cWd8pYs1a'"
    )
