"""Stories of a server that has no room for our whole pool, told at the start."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from reconciler.database import engine_for
from reconciler.server_room import check_room, oldest_transaction
from reconciler.transactions import transact

pytestmark = pytest.mark.anyio


async def told(engine: AsyncEngine) -> list[dict[str, Any]]:
    with capture_logs() as logs:
        await check_room(engine)
    return [dict(line) for line in logs if line["event"] == "database.room_short"]


@asynccontextmanager
async def as_a_role(url: str, *, limit: int) -> AsyncIterator[str]:
    """The URL of *url* for a role of its own that may have *limit* connections."""
    with psycopg.connect(url, autocommit=True) as administrator:
        name = f"limited_{administrator.info.backend_pid}"
        administrator.execute(
            f"create role {name} login password 'x' connection limit {limit}"  # type: ignore[arg-type]
        )
        try:
            limited = make_url(url).set(username=name, password="x")  # noqa: S106
            yield limited.render_as_string(hide_password=False)
        finally:
            administrator.execute(f"drop role {name}")  # type: ignore[arg-type]


async def test_a_pool_that_fits_is_not_spoken_of(database_url: str) -> None:
    """The usual case says nothing, also with connections of ours open already."""
    engine = engine_for(database_url, pool_size=10)
    async with asyncio.TaskGroup() as several:
        for _ in range(10):
            several.create_task(transact(engine, lambda c: c.execute(text("select 1"))))
    assert [] == await told(engine)
    await engine.dispose()


async def test_a_server_without_room_is_warned_of(database_url: str) -> None:
    """A pool that is larger than what max_connections leaves."""
    engine = engine_for(database_url, pool_size=100_000)
    (line,) = [line for line in await told(engine) if line["limit_of"] == "server"]
    assert 100_000 == line["pool_size"]
    assert 0 <= line["still_free"] < 100_000
    assert "max_connections" in line["cure"]
    await engine.dispose()


async def test_a_role_or_a_database_without_room_is_warned_of(database_url: str) -> None:
    """CONNECTION LIMIT of the role, then of the database too; exactly enough is enough."""
    async with as_a_role(database_url, limit=5) as url:
        engine = engine_for(url, pool_size=6)
        assert ["role"] == [line["limit_of"] for line in await told(engine)]
        await engine.dispose()
        engine = engine_for(url, pool_size=5)
        assert [] == await told(engine)
        with psycopg.connect(database_url, autocommit=True) as administrator:
            name = administrator.info.dbname
            administrator.execute(
                f"alter database {name} connection limit 3"  # type: ignore[arg-type]
            )
        assert ["database"] == [line["limit_of"] for line in await told(engine)]
        await engine.dispose()


async def test_a_transaction_that_holds_vacuum_back_is_seen(engine: AsyncEngine) -> None:
    """C100: somebody's report keeps a snapshot open; the gauge grows until it ends."""
    async with engine.connect() as report:
        await report.execute(text("select 1"))
        await asyncio.sleep(0.3)
        held = await transact(engine, oldest_transaction)
    assert 0.3 <= held
    assert held > await transact(engine, oldest_transaction)
