"""Stories of the daemon's look at its database, once a second for years."""

from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from reconciler.daemon_database import DatabaseWatch
from reconciler.lifecycle import Progress
from tests.cases.house import a_house

pytestmark = pytest.mark.anyio


async def test_a_server_for_tests_is_warned_of_once(engine: AsyncEngine, tmp_path: Path) -> None:
    """With fsync off the start says so; looks that find nothing new say nothing."""
    async with engine.connect() as connection:
        fsync = (await connection.execute(text("show fsync"))).scalar_one()
    async with a_house(engine, tmp_path) as house:
        watch = DatabaseWatch(assembly=house.assembly, engine=engine, progress=Progress())
        with capture_logs() as logs:
            assert [None] * 3 == [await watch.look() for _ in range(3)]
    events = [line["event"] for line in logs if line["event"].startswith("database.")]
    assert (["database.fsync_off"] if fsync == "off" else []) == events
