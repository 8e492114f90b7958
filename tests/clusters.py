"""A PostgreSQL to prove things on: the one that was named, or one of our own in memory."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from reconciler import embedded

MEMORY = Path("/dev/shm")  # noqa: S108
DISK = Path("/tmp")  # noqa: S108


@contextmanager
def a_cluster() -> Iterator[str]:
    """
    The URL of a server where databases may be made.

    TEST_DATABASE_URL when it is set, else a server of our own that ends with the block. Never
    the database of a configuration. Raises psycopg.OperationalError where the one that was
    named is out of reach.
    """
    if given := os.environ.get("TEST_DATABASE_URL"):
        url = given.replace("+psycopg://", "://", 1)
        psycopg.connect(url, connect_timeout=5).close()
        yield url
        return
    directory = new_directory()
    server = embedded.start(directory, fast=True)
    try:
        yield server.url
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def new_directory() -> Path:
    """A directory for a server: a short path, for its socket; in memory where there is room."""
    return Path(tempfile.mkdtemp(prefix="rt-", dir=MEMORY if is_roomy(MEMORY) else DISK))


def is_roomy(place: Path) -> bool:
    if not os.access(place, os.W_OK):
        return False
    status = os.statvfs(place)
    runs_programs = not status.f_flag & os.ST_NOEXEC
    return runs_programs and status.f_bavail * status.f_frsize > 2**30


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
