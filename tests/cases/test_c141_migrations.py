"""C141: a migration that waits for a lock would stop the world. Ours does not wait."""

import asyncio
import shutil
from pathlib import Path

import psycopg
import pytest

from reconciler import indexes, migrate
from reconciler.data import migrations_directory
from reconciler.errors import BusyError
from tests.world import World, a_world, order_event

pytestmark = pytest.mark.anyio

NEXT = '''
"""What the next version will bring."""

from alembic import op

revision = "{revision}"
down_revision = "{before}"


def upgrade() -> None:
    op.execute("alter table outbox add column weight integer not null default 0")


INDEXES = """
create index concurrently outbox_weight_idx on outbox (weight)
"""
'''

LONGEST = (
    "select coalesce(max(extract(epoch from clock_timestamp() - waitstart)), 0)::float"
    " from pg_locks where not granted and mode in ('RowExclusiveLock', 'AccessShareLock')"
    " and database = (select oid from pg_database where datname = current_database())"
)


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The migrations of a version to come; its revision."""
    directory = tmp_path / "migrations"
    shutil.copytree(migrations_directory(), directory)
    before = migrate.head()
    revision = f"{int(before) + 1:04}"
    text = NEXT.format(revision=revision, before=before)
    (directory / "versions" / f"{revision}_next.py").write_text(text)
    for module in (migrate, indexes):
        monkeypatch.setattr(module, "migrations_directory", lambda: directory)
    return revision


async def test_c141_deliveries_go_on_while_a_migration_is_in_somebodys_way(
    tmp_path: Path, database_url: str, next_version: str
):
    """
    Somebody has read the outbox and does not end the transaction. The next version's migration
    needs that table: it gives up, says so and has changed nothing. Deliveries are acknowledged
    all the while and none of them queues behind it. When the reader is gone, it is run again,
    and the running daemon goes on with a database that is one migration ahead.
    """
    async with a_world(tmp_path, database_url) as world, world.serving("--role", "receiver"):
        delivering = asyncio.create_task(deliver_for_ever(world))
        watching = asyncio.create_task(longest_wait(database_url))
        with psycopg.connect(database_url) as reader:
            reader.execute("select count(*) from reconciler.outbox")
            with pytest.raises(BusyError):
                await migrate.upgrade(database_url)
            delivered = await stopped(delivering)
        assert delivered
        assert await stopped(watching) < 1.0
        assert next_version == await migrate.upgrade(database_url)
        await world.outcome(order_event("evt_after", world.sender.sets("ord_after")))
        rows = await world.rows("select weight from reconciler.outbox")
        assert {0} >= {row["weight"] for row in rows}


async def deliver_for_ever(world: World) -> int:
    """New orders, one after another, until cancelled; each must be applied. How many."""
    number = 0
    try:
        while True:
            number += 1
            data = world.sender.sets(f"ord_{number}", status="paid", paid=True)
            created = order_event(f"evt_{number}", data, type_="order.created")
            assert "applied" == await world.outcome(created)
    except asyncio.CancelledError:
        return number - 1


async def longest_wait(url: str) -> float:
    """For how many seconds ordinary statements waited for a lock, at the longest."""
    longest = 0.0
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        try:
            while True:
                cursor = await connection.execute(LONGEST)
                row = await cursor.fetchone()
                assert row is not None
                longest = max(longest, row[0])
                await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            return longest


async def stopped(task: "asyncio.Task[float]") -> float:
    task.cancel()
    return await task
