"""One PostgreSQL for the session, one database for each test."""

import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler import embedded, migrate
from reconciler.database import engine_for

MEMORY = Path("/dev/shm")  # noqa: S108
DISK = Path("/tmp")  # noqa: S108

SESSION = f"{os.getpid()}_{secrets.token_hex(3)}"
_number = itertools.count(1)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def new_directory() -> Callable[[], Path]:
    """Makes directories for servers: short paths, for their sockets; in memory where there is."""
    place = MEMORY if is_roomy(MEMORY) else DISK
    return lambda: Path(tempfile.mkdtemp(prefix="rt-", dir=place))


def is_roomy(place: Path) -> bool:
    if not os.access(place, os.W_OK):
        return False
    status = os.statvfs(place)
    runs_programs = not status.f_flag & os.ST_NOEXEC
    return runs_programs and status.f_bavail * status.f_frsize > 2**30


@pytest.fixture(scope="session")
def cluster(new_directory: Callable[[], Path]) -> Iterator[str]:
    """
    The URL of a PostgreSQL where databases may be made.

    TEST_DATABASE_URL when it is set (the run fails when that is out of reach), else one of our
    own that ends with the session. Never the database of a configuration.
    """
    if given := os.environ.get("TEST_DATABASE_URL"):
        url = given.replace("+psycopg://", "://", 1)
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError as error:
            pytest.exit(f"TEST_DATABASE_URL is set and out of reach: {error}", returncode=1)
        yield url
        return
    directory = new_directory()
    server = embedded.start(directory, fast=True)
    try:
        yield server.url
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def template(cluster: str) -> Iterator[str]:
    """The name of a migrated database that others are copied from."""
    name = f"template_{SESSION}"
    with made_database(cluster, name) as url:
        anyio.run(migrate.upgrade, url)
        yield name


@pytest.fixture
def database_url(cluster: str, template: str) -> Iterator[str]:
    """A migrated database for one test, as a libpq URL."""
    with made_database(cluster, f"test_{SESSION}_{next(_number)}", template=template) as url:
        yield url


@pytest.fixture
def empty_database_url(cluster: str) -> Iterator[str]:
    """A database for one test with nothing in it."""
    with made_database(cluster, f"test_{SESSION}_{next(_number)}") as url:
        yield url


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = engine_for(database_url)
    yield engine
    await engine.dispose()


@contextmanager
def made_database(cluster: str, name: str, *, template: str | None = None) -> Iterator[str]:
    """A database that is there for as long as the block runs."""
    with psycopg.connect(cluster, autocommit=True) as connection:
        how = f"template {template}" if template else ""
        if template and connection.info.server_version >= 150000:
            how += " strategy file_copy"
        connection.execute(f"create database {name} {how}")
    try:
        yield with_database(cluster, name)
    finally:
        with psycopg.connect(cluster, autocommit=True) as connection:
            connection.execute(f"drop database if exists {name} with (force)")


def with_database(url: str, name: str) -> str:
    """*url*, but for the database *name*."""
    address, question_mark, query = url.partition("?")
    scheme, _, place = address.partition("://")
    return f"{scheme}://{place.partition('/')[0]}/{name}{question_mark}{query}"
