"""Where a run takes place: a server, a new database on it, and the destination."""

import asyncio
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from reconciler import embedded
from tests.clusters import made_database

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def destination() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.relay.destination"), stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.terminate()
        await process.wait()


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """A PostgreSQL with fsync on: the given one, or one of our own that speaks TCP, as all need."""
    if url is not None:
        yield url
        return
    directory = Path(tempfile.mkdtemp(prefix="rb-", dir="/tmp"))
    running = embedded.start(directory)
    try:
        yield running.url
    finally:
        running.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def fresh(cluster: str) -> Iterator[str]:
    """A database for one run."""
    with made_database(cluster, f"bench_{secrets.token_hex(4)}") as url:
        yield url
