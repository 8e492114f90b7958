"""One PostgreSQL for the session, one database for each test."""

import itertools
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import anyio
import psycopg
import pytest
import structlog
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler import migrate
from reconciler.database import engine_for
from tests import nursery
from tests.clusters import a_cluster, made_database, new_directory

SESSION = f"{os.getpid()}_{secrets.token_hex(3)}"
_number = itertools.count(1)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _processes_are_forked() -> Iterator[None]:
    """Processes of stories: most of a start is importing, done once for all of them."""
    with ExitStack() as stack:
        nursery.at_hand = cache(lambda: stack.enter_context(nursery.shared()))
        yield
        nursery.at_hand = None


@pytest.fixture(scope="session", autouse=True)
def _plain_tracebacks() -> None:
    """Where rich is installed, structlog would draw each one with every local: for seconds."""
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], renderer])


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A command that runs in this process says how to log: not so for the tests after it."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session", name="new_directory")
def fixture_new_directory() -> Callable[[], Path]:
    """Makes directories for servers: short paths, for their sockets; in memory where there is."""
    return new_directory


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The URL of a PostgreSQL where databases may be made; the run ends where it is away."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(a_cluster())
        except psycopg.OperationalError as error:
            pytest.exit(f"TEST_DATABASE_URL is set and out of reach: {error}", returncode=1)
        # A configuration refuses a password in its URL: libpq, ours and theirs, finds it here.
        found = make_url(url)
        if found.password:
            os.environ["PGPASSWORD"] = str(found.password)
        yield found._replace(password=None).render_as_string(hide_password=False)


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
