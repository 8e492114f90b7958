"""One database and one pretend destination for each story."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.outbox.pretend import Pretend
from tests.outbox.world import World


@pytest.fixture
async def pretend() -> AsyncIterator[Pretend]:
    async with Pretend() as pretend:
        yield pretend


@pytest.fixture
async def world(engine: AsyncEngine, pretend: Pretend) -> AsyncIterator[World]:
    world = World(engine=engine, pretend=pretend)
    yield world
    for channel in world.channels:
        await channel.close()
