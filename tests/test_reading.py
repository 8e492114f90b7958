"""Stories of what operators list: a narrowing that cannot be made is said, never passed over."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.errors import UsageError
from reconciler.ledger import quarantine
from reconciler.operations.reading import list_events

pytestmark = pytest.mark.anyio


async def test_quarantine_is_listed_by_sender_and_by_nothing_that_it_does_not_know(
    engine: AsyncEngine,
):
    """
    What is kept was never read as far as its resource, so that asking for a kind can find nothing:
    an empty list would look like good news.
    """
    async with engine.begin() as connection:
        await quarantine.keep(connection, "shop", b"{", {}, "not JSON")
        await quarantine.keep(connection, "store", b"{", {}, "not JSON")

        asked = {"outcome": "quarantined", "sender": "shop"}
        found = await list_events(connection, equal=asked, limit=10)
        assert ["shop"] == [item["sender"] for item in found["items"]]
        with pytest.raises(UsageError, match="no key and no kind"):
            await list_events(connection, equal={**asked, "kind": "order", "key": "x"}, limit=10)
