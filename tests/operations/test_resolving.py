"""A person says what became of a call, by the command line, and it is written down."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.enqueue import enqueue
from reconciler.operations import resolving
from reconciler.operations.acting import Order
from reconciler.operations.assembly import assemble
from tests.outbox.world import an_entry

pytestmark = pytest.mark.anyio

CONFIGURATION = """
[destinations.payments]
base_url = "https://api.payments.example"
"""


async def test_who_resolved_what_and_why_is_kept_with_the_act(engine: AsyncEngine, tmp_path):
    """A dry run leaves nothing; then one entry is delivered, one goes again, one is refused."""
    (tmp_path / "reconciler.toml").write_text(CONFIGURATION)
    assembly = assemble(tmp_path / "reconciler.toml", environ={})
    async with engine.begin() as connection:
        entries = [an_entry(number, idempotent=False) for number in (1, 2, 3)]
        one, two, three = await enqueue(connection, entries)
        await connection.execute(
            text(
                "update reconciler.outbox set state = 'uncertain', due_at = null,"
                " completed_at = now() where event_id <> 'evt_3'"
            )
        )

    def order(*, dry_run: bool = False) -> Order:
        return Order(
            engine=engine, assembly=assembly, actor="ann", reason="seen there", dry_run=dry_run
        )

    for dry_run in (True, False):
        items = await resolving.resolve(order(dry_run=dry_run), [one.id, three.id], delivered=True)
        assert ["delivered", None] == [item["became"] for item in items]
        assert [None, "not_uncertain"] == [item["refusal"] for item in items]
    (item,) = await resolving.resolve(order(), [two.id], delivered=False)
    assert ("uncertain", "pending") == (item["state"], item["became"])
    await assembly.aclose()

    async with engine.connect() as connection:
        states = await connection.scalars(
            text("select state from reconciler.outbox order by event_id")
        )
        assert ["delivered", "pending", "pending"] == list(states)
        kept = await connection.execute(
            text(
                "select actor, action, reason, subject ->> 'entry_id', subject ->> 'as'"
                " from reconciler.actions order by id"
            )
        )
        assert [
            ("ann", "outbox.resolve", "seen there", str(one.id), "delivered"),
            ("ann", "outbox.resolve", "seen there", str(two.id), "not-delivered"),
        ] == [tuple(row) for row in kept]
