"""C60: the system's order of letters changed, and unique indexes over text let doubles in."""

from pathlib import Path

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from reconciler.database import check_collation
from tests.world import a_world, order_event

pytestmark = pytest.mark.anyio


def query(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


async def told(engine: AsyncEngine) -> list[str]:
    with capture_logs() as logs:
        await check_collation(engine)
    return [line["collation"] for line in logs]


async def test_c60_a_collation_that_an_index_of_the_users_names(engine, database_url):
    """Also where the database's own locale is as it was: an index may name another."""
    query(database_url, "create table words (word text collate ucs_basic primary key)")
    assert [] == await told(engine)
    query(database_url, "update pg_collation set collversion = '0' where collname = 'ucs_basic'")
    assert ["ucs_basic"] == await told(engine)
    query(database_url, "drop table words")
    assert [] == await told(engine)


async def test_c60_ours_do_not_care(tmp_path: Path, database_url: str):
    """
    A database that was made by another library: the start warns, as your own tables may be
    concerned. Ids and keys of ours are compared byte by byte, so a repeated event is a duplicate.
    """
    query(
        database_url,
        "update pg_database set datcollversion = '0.9' where datname = current_database()",
    )
    async with a_world(tmp_path, database_url) as world, world.serving("--role", "receiver") as one:
        assert "database.collation_changed" in one.log
        event = order_event("evt_\u00c4", world.sender.sets("ord_1"), type_="order.created")
        assert "applied" == await world.outcome(event)
        assert "duplicate" == await world.outcome(event)
