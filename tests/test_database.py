"""Transactions that run again when they must, and what comes back from the database."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.database import transact

pytestmark = pytest.mark.anyio


async def test_smoke(engine: AsyncEngine) -> None:
    async def work(connection):
        return await connection.scalar(text("select 1.50::numeric"))
    assert "1.50" == str(await transact(engine, work))
