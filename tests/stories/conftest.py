"""The world that every story is told in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.world import World, a_world

#: P1 to P6 are judged like this: a product that heals itself hides its own losses.
UNHEALED = ("--role", "receiver,relay")


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    """A shop with a listing, a destination for payments, and a daemon that is not started yet."""
    async with a_world(tmp_path, database_url) as world:
        yield world
