"""No commit of ours queues behind the lock that NOTIFY takes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cases.house import a_house, item, order

pytestmark = pytest.mark.anyio


async def test_nothing_that_runs_with_events_notifies(engine: AsyncEngine, tmp_path: Path) -> None:
    """
    C99: sixty deliveries at once, their calls, a scan and a read. Not one of the statements
    notifies or listens, by itself or by a trigger, so that commits wait for the disk and for
    nothing else; hints travel inside the process, and looking finds the same.
    """
    statements: set[str] = set()

    def look(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.add(statement.lower())

    async with a_house(engine, tmp_path) as house:
        event.listen(engine.sync_engine, "before_cursor_execute", look)
        try:
            async with asyncio.TaskGroup() as deliveries:
                for number in range(60):
                    deliveries.create_task(
                        house.outcome(order(f"e{number}", f"k{number}", paid=True, amount=1))
                    )
            while await house.call():
                pass
            house.listed = [item("k0", version=9)]
            house.got = {"k0": house.listed[0]}
            await house.reconcile()
            await house.reconcile("k0")
        finally:
            event.remove(engine.sync_engine, "before_cursor_execute", look)
        assert 60 <= len(house.pretend.calls)
    assert 10 < len(statements)
    assert [] == [one for one in statements if "notify" in one or one.startswith("listen")]
