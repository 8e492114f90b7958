"""Types that nobody named are acknowledged: a sender must not give up on the endpoint."""

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cases.house import a_house, order

pytestmark = pytest.mark.anyio

UNKNOWN = [
    "invoice.some_new_thing",
    "Order.updated",
    "orders.updated",
    "order",
    "refund.succeeded.v2",
    " refund.succeeded",
    "*",
    "order*",
    "[order]",
    "%",
    "\u00f6rder.x",
    "x" * 512,
    "\U0001f389",
]


async def test_they_are_recorded_and_change_nothing(engine: AsyncEngine, tmp_path: Path) -> None:
    """
    200 each, whatever stands in them: no data, data of another shape, a version that would be
    refused elsewhere. They are claimed as ignored and counted; what we know keeps flowing.
    """
    bodies = [{}, {"data": None}, {"data": {"order_id": True, "version": "x"}}, {"data": [1]}]
    async with a_house(engine, tmp_path) as house:
        for number, type_ in enumerate(UNKNOWN):
            event = {"id": f"e{number}", "type": type_, **bodies[number % len(bodies)]}
            assert "ignored" == await house.outcome(event), type_
            assert "duplicate" == await house.outcome(event)
            assert "ignored" == (await house.tried({**event, "id": f"t{number}"}))[0]["outcome"]
        for number in range(10):
            assert "ignored" == await house.outcome({"id": f"k{number}", "type": UNKNOWN[0]})
        assert "applied" == await house.outcome(order("good", paid=True, amount=1))
        claimed = await house.rows("select outcome, count(*) from processed_events group by 1")
        assert {"ignored": len(UNKNOWN) + 10, "applied": 1} == dict(claimed)
        assert 1 == await house.call()
        assert {"ord_42": 1} == await house.held()
        counted = [told.outcomes for told in house.receiver.told if "ignored" in told.outcomes]
        assert len(UNKNOWN) + 10 == len(counted)


async def test_in_a_batch_the_known_ones_count(engine: AsyncEngine, tmp_path: Path) -> None:
    async with a_house(engine, tmp_path, batches=True) as house:
        mixed = []
        for number, type_ in enumerate(UNKNOWN):
            mixed += [{"id": f"u{number}", "type": type_}, order(f"e{number}", f"k{number}")]
        assert ["ignored", "applied"] * len(UNKNOWN) == await house.outcomes(mixed)


async def test_a_sender_that_nobody_wrote_rules_for_is_heard(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """No kinds, no effects: every delivery is an unknown type, and none is an error."""
    more = '\n[senders.quiet]\nsecrets = ["env:SHOP_SECRET"]\n'
    async with a_house(engine, tmp_path, more=more) as house:
        for type_ in ("order.updated", "refund.succeeded", "x"):
            event = {"id": type_, "type": type_, "data": {"order_id": "o", "version": 1}}
            assert "ignored" == await house.outcome(event, "/webhooks/quiet")
        assert 0 == await house.call()
        assert {} == await house.held()


@pytest.mark.parametrize("type_", ["", None, 7.5, True, ["order.paid"], {"a": 1}, "x" * 513])
async def test_no_type_at_all_is_something_else(
    engine: AsyncEngine, tmp_path: Path, type_: object
) -> None:
    """Not unknown but unsaid: kept whole where somebody can see it, and 200 all the same."""
    async with a_house(engine, tmp_path) as house:
        assert "quarantined" == await house.outcome({"id": "e1", "type": type_})
        assert {"quarantine": 1} == await house.counts()
