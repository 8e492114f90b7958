"""Migrating under traffic: nobody waits behind it, and a run that broke off can go on."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler import indexes, migrate
from reconciler.database import engine_for, prepare_transaction
from reconciler.errors import BusyError, ConfigError

pytestmark = pytest.mark.anyio

READS = "select count(*) from reconciler.outbox"
WRITES = "delete from reconciler.outbox where false"
REVISION = "select version_num from reconciler.alembic_version"
INVALID = "select indexrelid::regclass::text from pg_index where not indisvalid order by 1"
INDEXES = (
    "select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid"
    " where c.relnamespace = 'reconciler'::regnamespace and i.indisvalid"
    " and c.relname not like 'alembic%' order by 1"
)


async def at_first_migration(url: str) -> None:
    """Bring the database at *url* to where the version before this one left it, with rows."""
    engine = engine_for(url, pool_size=2)
    async with engine.begin() as connection:
        await connection.execute(text("create schema reconciler"))
        await prepare_transaction(connection, search_path="reconciler")
        await connection.run_sync(migrate.run_alembic, "reconciler", fresh=True, revision="0001")
    await engine.dispose()
    with psycopg.connect(url) as connection:
        connection.execute(
            "insert into reconciler.outbox (id, sender, event_id, effect, destination, state)"
            " select gen_random_uuid(), 'shop', 'evt_' || i, 'capture', 'payments', 'delivered'"
            " from generate_series(1, 100) i"
        )


@contextmanager
def open_transaction(url: str, statement: str) -> Iterator[psycopg.Connection]:
    """Somebody who has run *statement* and does not end the transaction."""
    with psycopg.connect(url) as connection:
        connection.execute(statement)
        yield connection


def query(url: str, statement: str) -> list[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        return [row[0] for row in connection.execute(statement).fetchall()]


async def test_the_next_migration_brings_all_that_a_new_database_has(
    empty_database_url, database_url
):
    await at_first_migration(empty_database_url)
    assert migrate.head() == await migrate.upgrade(empty_database_url)
    assert query(database_url, INDEXES) == query(empty_database_url, INDEXES)


async def test_several_migrators_of_a_database_with_rows(empty_database_url):
    """Replicas of a new version are started together: they meet at the tables, not in the end."""
    await at_first_migration(empty_database_url)
    async with asyncio.TaskGroup() as replicas:
        found = [replicas.create_task(migrate.upgrade(empty_database_url)) for _ in range(3)]
    assert [migrate.head()] * 3 == [task.result() for task in found]
    assert [] == query(empty_database_url, INVALID)


async def test_c141_an_open_reader_makes_the_migration_fail_fast(empty_database_url, monkeypatch):
    """Nothing is changed then, nobody waits behind it, and it can be run again."""
    monkeypatch.setattr(migrate, "ATTEMPTS", 3)
    await at_first_migration(empty_database_url)
    with open_transaction(empty_database_url, READS):
        with pytest.raises(BusyError, match="holds a lock"):
            await migrate.upgrade(empty_database_url)
        assert ["0001"] == query(empty_database_url, REVISION)
    assert migrate.head() == await migrate.upgrade(empty_database_url)


async def test_c141_an_index_that_waits_for_others_is_given_up(empty_database_url, monkeypatch):
    """
    The tables are ready by then. What is left is invalid, `serve` may start (with a warning),
    and the next run rebuilds it: concurrently, like the first.
    """
    monkeypatch.setattr(indexes, "PATIENCE", timedelta(seconds=0.6))
    await at_first_migration(empty_database_url)
    engine = engine_for(empty_database_url, pool_size=2)
    await migrate.upgrade_tables(engine)
    with open_transaction(empty_database_url, WRITES) as other:
        with pytest.raises(BusyError, match="outbox_completed_idx waits for"):
            await migrate.upgrade(engine)
        assert ["reconciler.outbox_completed_idx"] == query(empty_database_url, INVALID)
        await indexes.check(engine)
        other.rollback()
        assert migrate.head() == await migrate.upgrade(engine)
    assert [] == query(empty_database_url, INVALID)
    await engine.dispose()


async def test_what_keeps_events_from_happening_twice_must_be_valid(
    engine: AsyncEngine, database_url
):
    """A unique index that a crash left invalid refuses nothing: no start with it, until rebuilt."""
    invalidate(database_url, "processed_events_pkey")
    with pytest.raises(ConfigError, match="processed_events_pkey is invalid") as caught:
        await indexes.check(engine)
    assert 78 == caught.value.exit_code
    await migrate.upgrade(engine)
    await indexes.check(engine)
    assert [] == query(database_url, INVALID)


async def test_what_a_broken_rebuild_leaves_behind_is_removed(engine: AsyncEngine, database_url):
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("create index outbox_completed_idx_ccnew on reconciler.outbox (sender)")
    invalidate(database_url, "outbox_completed_idx_ccnew")
    await migrate.upgrade(engine)
    assert [] == query(database_url, INVALID)
    assert "outbox_completed_idx_ccnew" not in query(database_url, INDEXES)


async def test_an_index_that_somebody_dropped_is_made_again(engine: AsyncEngine, database_url):
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("drop index reconciler.quarantine_open_idx")
    with pytest.raises(ConfigError, match="quarantine_open_idx is missing"):
        await indexes.check(engine)
    await migrate.upgrade(engine)
    await indexes.check(engine)


def invalidate(url: str, index: str) -> None:
    """Leave *index* as a CREATE INDEX CONCURRENTLY that broke off does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "update pg_index set indisvalid = false where indexrelid = %s::regclass",
            (f"reconciler.{index}",),
        )


@pytest.mark.parametrize("place", ["in-migration", "between-indexes"])
async def test_p21_a_migration_that_is_killed_is_run_again(empty_database_url, tmp_path, place):
    """Whatever statement was its last: what was committed stays, the next run does the rest."""
    await at_first_migration(empty_database_url)
    config = tmp_path / "reconciler.toml"
    config.write_text(f'[database]\nurl = "{empty_database_url}"\n')
    killed = await migrate_command(config, RECONCILER_TEST_CRASH_AT=place)
    assert -signal.SIGKILL == killed
    made = {"in-migration": "0001", "between-indexes": migrate.head()}
    assert [made[place]] == query(empty_database_url, REVISION)
    assert 0 == await migrate_command(config)
    assert [migrate.head()] == query(empty_database_url, REVISION)
    assert [] == query(empty_database_url, INVALID)
    engine = engine_for(empty_database_url)
    await indexes.check(engine)
    async with engine.connect() as connection:
        assert [] == await indexes.look(connection)
    await engine.dispose()


async def migrate_command(config: Path, **environment: str) -> int:
    """`reconciler migrate` as a process; its exit code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "reconciler", "migrate", "--config", str(config)),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()
