"""Reaching the database from a command: the configured one, or the private one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler import database, embedded, migrate
from reconciler.errors import ConfigError
from reconciler.ledger import baselines
from reconciler.settings import Loaded, Settings, load
from reconciler.transactions import taking_up_to

LOOKED_UP_WITHIN = timedelta(seconds=25)  #: large tables, and a person who waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A database within reach, and the libpq URL that a person can use."""

    engine: AsyncEngine
    url: str  #: without a password


def uses_private(loaded: Loaded) -> bool:
    """Whether the private PostgreSQL is meant. Raises ConfigError where none is allowed."""
    if loaded.settings.database.url is not None:
        return False
    if loaded.settings.database.embedded == "never":
        raise ConfigError(
            'database.url is absent, and [database] embedded = "never"',
            hint="set database.url, or RECONCILER_DATABASE__URL",
        )
    return True


@asynccontextmanager
async def opened(loaded: Loaded, *, migrated: bool = True) -> AsyncIterator[Opened]:
    """
    Open the configured database for one command.

    The private one is joined where a daemon runs it, else started for as long as we need it,
    and migrates itself. With *migrated*, another one must be: SchemaBehindError.
    """
    if uses_private(loaded):
        server = embedded.attach(embedded.state_directory(loaded.settings))
        try:
            engine = await database.connect(loaded.settings, loaded.secrets, url=server.url)
            try:
                await migrate.upgrade(engine)
                yield Opened(engine=engine, url=server.url)
            finally:
                await engine.dispose()
        finally:
            server.stop()
        return
    engine = await database.connect(loaded.settings, loaded.secrets)
    try:
        if migrated:
            await migrate.require_current(engine)
        url = loaded.settings.database.url
        assert url is not None
        yield Opened(engine=engine, url=url)
    finally:
        await engine.dispose()


@asynccontextmanager
async def reading(path: Path | None) -> AsyncIterator[AsyncConnection]:
    """A connection to the database of the configuration at *path*, to look things up."""
    async with looking(path) as (connection, _):
        yield connection


@asynccontextmanager
async def looking(path: Path | None) -> AsyncIterator[tuple[AsyncConnection, Settings]]:
    """The same, with what is configured there."""
    loaded = load(path)
    async with opened(loaded) as found, found.engine.connect() as connection:
        with taking_up_to(connection, LOOKED_UP_WITHIN):
            yield connection, loaded.settings


async def give_birthdays(engine: AsyncEngine, kinds: list[tuple[str, str]]) -> None:
    """Give every kind its birthday: the first of `migrate`, `serve` and `reconcile` does (P20)."""
    async with engine.begin() as connection:
        await baselines.register(connection, kinds)
