"""Brings the database's schema to what this version needs: forward only, one migrator at a time."""

from datetime import timedelta
from typing import Final

from sqlalchemy import Column, Connection, MetaData, String, Table, func, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.schema import CreateSchema

from reconciler import faults, indexes
from reconciler.data import migrations_directory
from reconciler.database import engine_for, prepare_transaction, schema_of
from reconciler.errors import BusyError, ConfigError, DatabaseAwayError, SchemaBehindError
from reconciler.transactions import MISSING, is_locked_out, sqlstate_of, taking_up_to, transact

LOCK_TIMEOUT: Final = timedelta(seconds=2)
"""How long a migrator waits for another one."""

ALTER_TIMEOUT: Final = timedelta(milliseconds=100)
"""Behind a waiting ALTER everything else waits too: give up at once, and try again soon."""

ATTEMPTS: Final = 8
"""How often the migration asks for its locks before it says who is in the way."""

MIGRATION: Final = timedelta(hours=1)
"""How long one statement of a migration may take: there may be much to fill in, or to index."""

ROUNDS: Final = 5
"""How often a migrator that met another one looks again."""

RACED: Final = frozenset({"23505", "42P06", "42P07"})  # another one made that schema or table

versions = Table(
    "alembic_version",
    MetaData(schema="reconciler"),
    Column("version_num", String(32), primary_key=True),
)


async def upgrade(database: AsyncEngine | str, schema: str = "reconciler") -> str:
    """
    Apply every migration that the database lacks, in one transaction; return the revision.

    Indexes are made after it, concurrently, and rebuilt where an earlier run broke off. *database*
    is an engine (its own schema counts) or a URL. Safe to run at any time, under traffic, and by
    several at once. A database one migration ahead of this version is left as it is.

    Raises BusyError when a table stays locked, ConfigError when the database is further ahead.
    """
    if isinstance(database, str):
        engine = engine_for(database, schema=schema, pool_size=2)
        try:
            return await upgrade(engine)
        finally:
            await engine.dispose()

    found = await current(database)
    if found is None or not (found == head() or is_ahead(found)):
        found = await upgrade_tables(database)
    await indexes.mend(database)
    return found


async def upgrade_tables(database: AsyncEngine) -> str:
    """Apply what is missing, but for the indexes of tables with rows; return the revision."""
    schema = schema_of(database)
    for _ in range(ROUNDS):
        try:
            await transact(
                database, lambda connection: migrate(connection, schema), attempts=ATTEMPTS
            )
            return await require_current(database)
        except DBAPIError as error:
            if sqlstate_of(error) not in RACED:
                raise
        except DatabaseAwayError as error:
            if not is_locked_out(error):
                raise
            raise BusyError(
                "another transaction holds a lock that the migration needs",
                hint="nothing was changed, nobody had to wait: run it again when that has ended",
            ) from error
    raise BusyError("another migration is running")


async def migrate(connection: AsyncConnection, schema: str) -> None:
    """Apply what is missing within the transaction of *connection*."""
    await prepare_transaction(connection, lock_timeout=LOCK_TIMEOUT, search_path=f'"{schema}"')
    if not await connection.run_sync(lambda sync: inspect(sync).has_schema(schema)):
        await connection.execute(CreateSchema(schema))
    await connection.run_sync(versions.create, checkfirst=True)
    # Not ACCESS EXCLUSIVE: whoever only asks for the revision does not wait for us.
    await connection.execute(
        text(f'lock table "{schema}".alembic_version in share row exclusive mode')
    )
    found = await revision_on(connection)
    if not is_ahead(found):
        await prepare_transaction(connection, lock_timeout=ALTER_TIMEOUT, search_path=f'"{schema}"')
        with taking_up_to(connection, MIGRATION):
            await connection.run_sync(run_alembic, schema, fresh=found is None)
        faults.point("in-migration")


def run_alembic(
    connection: Connection, schema: str, *, fresh: bool, revision: str = "head"
) -> None:
    """Apply the migrations up to *revision*; *fresh*: the tables are being made, and empty."""
    # a third of a second to import: only for whoever really migrates
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
    config.attributes.update(connection=connection, schema=schema, fresh=fresh)
    command.upgrade(config, revision)


def head() -> str:
    """The revision that this version of the program needs: the last of its files."""
    files = migrations_directory().joinpath("versions").glob("[0-9]*_*.py")
    return max(file.name.partition("_")[0] for file in files)


async def current(engine: AsyncEngine) -> str | None:
    """
    The revision that the database is at; None where nothing was ever migrated.

    Raises TablesGoneError where that was different before (`transactions.expect_tables`).
    """
    try:
        return await transact(engine, revision_on)
    except DBAPIError as error:
        if sqlstate_of(error) in MISSING:
            return None
        raise


async def revision_on(connection: AsyncConnection) -> str | None:
    found: str | None = await connection.scalar(select(func.max(versions.c.version_num)))
    return found


async def require_current(engine: AsyncEngine) -> str:
    """
    See that the database is at our migration, or one ahead; return its revision.

    One ahead is how a rolling upgrade looks to the replicas that are still to be restarted.
    Raises SchemaBehindError when it is behind, ConfigError when it is further ahead.
    """
    found = await current(engine)
    if found == head() or is_ahead(found):
        assert found is not None
        return found
    raise SchemaBehindError(found=found, needed=head())


def is_ahead(found: str | None) -> bool:
    """
    Whether *found* is one migration ahead of ours. Revisions are numbers: 0001, 0002, ...

    Raises ConfigError when it is further ahead.
    """
    ahead = int(found) - int(head()) if found is not None else 0
    if ahead > 1:
        raise ConfigError(
            f"the database is at migration {found}, this version knows no further than {head()}",
            hint="run a version of reconciler that is as new as the database",
        )
    return ahead == 1
