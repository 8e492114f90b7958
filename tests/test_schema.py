"""What the migrations make is what the program's own tables say, and it is made in one go."""

import asyncio
import hashlib
import importlib
import pkgutil
import subprocess

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateSchema

import outbox
import reconciler
from reconciler import migrate
from reconciler.data import migrations_directory
from reconciler.database import engine_for
from reconciler.embedded_binaries import binaries_directory
from reconciler.errors import BusyError, ConfigError, SchemaBehindError

pytestmark = pytest.mark.anyio


def declared() -> list[MetaData]:
    """The tables that any module of ours declares."""
    for package in (reconciler, outbox):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith((".__main__", ".embedded_child")) and (
                ".migrations" not in module.name
            ):
                importlib.import_module(module.name)
    from outbox import store
    from reconciler import database

    return [database.metadata, store.metadata]


def dumped(url: str) -> list[str]:
    """The definition of everything in our schema, as pg_dump writes it."""
    program = [
        str(binaries_directory() / "pg_dump"),
        "--schema-only",
        "--no-owner",
        "--schema=reconciler",
        "--exclude-table=reconciler.alembic_version",
        f"--dbname={url}",
    ]
    said = subprocess.run(program, capture_output=True, text=True, check=False)
    assert "" == said.stderr
    noise = ("--", "SET ", "SELECT pg_catalog.set_config", "\\")
    return [line for line in said.stdout.splitlines() if line and not line.startswith(noise)]


async def test_migrations_make_what_the_tables_declare(database_url, empty_database_url):
    """
    Compared by pg_dump: it sees check constraints, the predicates of partial indexes,
    collations and storage options, which Alembic's own comparison passes over.
    """
    engine = engine_for(empty_database_url)
    async with engine.begin() as connection:
        await connection.execute(CreateSchema("reconciler"))
        for metadata in declared():
            await connection.run_sync(metadata.create_all)
    await engine.dispose()

    by_migrations = dumped(database_url)
    assert 20 == sum(line.startswith("CREATE TABLE") for line in by_migrations)
    assert by_migrations == dumped(empty_database_url)


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement).fetchall()


async def test_keys_do_not_depend_on_the_systems_order_of_letters(database_url):
    """An index over text that is not COLLATE "C" breaks when the system's libraries change."""
    assert [] == query(
        database_url,
        """
        select c.relname, a.attname
          from pg_index i
          join pg_class c on c.oid = i.indexrelid
          join pg_attribute a on a.attrelid = i.indexrelid
          join pg_collation l on l.oid = a.attcollation
         where c.relnamespace = 'reconciler'::regnamespace
           and l.collname <> 'C' and a.atttypid = 'text'::regtype
           and (c.relname, a.attname) not in (  -- hexadecimal, and words of ours
                 ('quarantine_open_idx', 'body_digest'), ('scans_pkey', 'mode'),
                 ('outbox_stopped_idx', 'state'))
        """,
    )


async def test_nothing_runs_out_or_reaches_across_tables(database_url):
    """No sequences (conflicts use them up), no triggers, no foreign keys."""
    assert [] == query(
        database_url,
        "select relname from pg_class"
        " where relkind = 'S' and relnamespace = 'reconciler'::regnamespace",
    )
    assert [] == query(database_url, "select tgname from pg_trigger where not tgisinternal")
    assert [] == query(database_url, "select conname from pg_constraint where contype = 'f'")


async def test_several_migrators_at_once(empty_database_url):
    """Four replicas are started on an empty database: one migrates, all of them succeed."""
    async with asyncio.TaskGroup() as replicas:
        found = [replicas.create_task(migrate.upgrade(empty_database_url)) for _ in range(4)]
    assert [migrate.head()] * 4 == [task.result() for task in found]
    assert [(1,)] == query(empty_database_url, "select count(*) from reconciler.alembic_version")


async def test_a_schema_of_any_name(empty_database_url):
    """`[database] schema` may be a word of SQL's; two schemas live side by side."""
    for schema in ("order", "billing"):
        assert migrate.head() == await migrate.upgrade(empty_database_url, schema)
        engine = engine_for(empty_database_url, schema=schema)
        assert migrate.head() == await migrate.require_current(engine)
        await engine.dispose()
    tables = "select schemaname, count(*) from pg_tables where tablename = 'resources' group by 1"
    assert {("order", 1), ("billing", 1)} == set(query(empty_database_url, tables))


async def test_a_role_that_owns_only_its_schema_can_migrate(empty_database_url):
    """The administrator made the schema; the role may make nothing else in that database."""
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        role = sql.Identifier(f"limited_{connection.info.dbname}")
        connection.execute(sql.SQL("create role {}").format(role))
        try:
            connection.execute(sql.SQL("create schema reconciler authorization {}").format(role))
            separator = "&" if "?" in empty_database_url else "?"
            name = role.as_string(connection).strip('"')
            limited = f"{empty_database_url}{separator}options=-c%20role%3D{name}"
            assert migrate.head() == await migrate.upgrade(limited)
        finally:
            connection.execute(sql.SQL("drop owned by {}").format(role))
            connection.execute(sql.SQL("drop role {}").format(role))


async def test_a_migration_gives_up_on_a_lock_and_can_be_run_again(empty_database_url, monkeypatch):
    """Behind a waiting migration all traffic would wait, so it asks for a short time only."""
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", migrate.LOCK_TIMEOUT / 40)
    table = "reconciler.alembic_version"
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("create schema reconciler")
        connection.execute(f"create table {table} (version_num varchar(32) primary key)")
        with connection.transaction():
            connection.execute(f"lock table {table} in access share mode")
            connection.execute(f"lock table {table} in row exclusive mode")
            with pytest.raises(BusyError):
                await migrate.upgrade(empty_database_url)
    assert migrate.head() == await migrate.upgrade(empty_database_url)


async def test_reading_the_revision_waits_for_no_migrator(engine: AsyncEngine, database_url):
    """`status` answers while a migration runs, and an up-to-date database takes no lock at all."""
    table = "reconciler.alembic_version"
    with psycopg.connect(database_url) as connection:
        connection.execute(f"lock table {table} in share row exclusive mode")
        assert migrate.head() == await migrate.current(engine)
        assert migrate.head() == await migrate.upgrade(engine)


async def test_an_unmigrated_database_is_refused(empty_database_url):
    """Exit 78, and the command that helps is named."""
    engine = engine_for(empty_database_url)
    with pytest.raises(SchemaBehindError) as caught:
        await migrate.require_current(engine)
    await engine.dispose()
    assert 78 == caught.value.exit_code
    assert "reconciler migrate" in str(caught.value.hint)


@pytest.mark.parametrize("ahead", [1, 2])
async def test_one_migration_ahead_is_a_rolling_upgrade(engine, database_url, ahead):
    """The first replica of a new version has migrated: the old ones go on. Two ahead is too far."""
    found = f"{int(migrate.head()) + ahead:04}"
    with psycopg.connect(database_url) as connection:
        connection.execute("update reconciler.alembic_version set version_num = %s", (found,))
    for use in (migrate.require_current, migrate.upgrade):
        if ahead == 1:
            assert found == await use(engine)
        else:
            with pytest.raises(ConfigError):
                await use(engine)


async def test_a_released_migration_never_changes():
    """What has run somewhere stays as it ran: a change is a migration of its own."""
    directory = migrations_directory()
    known = dict(
        reversed(line.split()) for line in (directory / "checksums.txt").read_text().splitlines()
    )
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.glob("versions/*.py")
    }
    assert known == found
