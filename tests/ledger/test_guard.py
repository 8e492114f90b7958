"""Stories for each cell of the table of states."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger.event import Change, Outcome
from tests.ledger.shop import Shop

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop(engine: AsyncEngine) -> Shop:
    return await Shop.open(engine)


async def test_a_newer_webhook_is_applied(shop: Shop) -> None:
    """An order is created, then paid: state follows, and paying it is charged once."""
    created = await shop.take(shop.event("order.created", 1, status="new", paid=False, amount=5))
    paid = await shop.take(shop.event("order.updated", 2, status="new", paid=True, amount=5))

    assert (Outcome.APPLIED, Change.CREATED) == (created.outcome, created.change)
    assert (Outcome.APPLIED, Change.UPDATED) == (paid.outcome, paid.change)
    order = await shop.order()
    assert order is not None
    assert (2, True) == (order["version"], order["state"]["paid"])
    assert [("capture", "pending", "")] == await shop.calls()
