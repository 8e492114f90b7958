"""Stories of a database that fails a command midway: a sentence and an exit code, no traceback."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import anyio
import psycopg
import pytest
from click.testing import CliRunner, Result

from reconciler import server_connection
from reconciler.cli import main
from reconciler.operations import opening
from tests.postgres_proxy import PostgresProxy
from tests.world import eventually

TABLES = """
select string_agg(format('%I.%I', schemaname, tablename), ', ') from pg_tables
where schemaname = 'reconciler' and tablename <> 'alembic_version'
"""
CONFIG = """
[database]
url = "{url}"

[senders.shop]
secrets = ["env:SHOP_SECRET"]

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
"""
LOCKED_OUT = (
    "error: another transaction holds a lock that this needs\n"
    "hint: try again when that transaction has ended\n"
)


@pytest.fixture
def config(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOP_SECRET", "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ=")
    return written(tmp_path, database_url)


@pytest.fixture
def locked(database_url: str) -> Iterator[None]:
    """What a person does in psql: look at nothing, and hold everything."""
    with psycopg.connect(database_url) as holder:
        row = holder.execute(TABLES).fetchone()
        assert row is not None
        holder.execute(f"lock table {row[0]} in access exclusive mode")
        yield


def written(directory: Path, url: str) -> Path:
    file = directory / "reconciler.toml"
    file.write_text(CONFIG.format(url=url))
    return file


def called(words: str, config: Path) -> Result:
    return CliRunner().invoke(main, [*words.split(), "--config", str(config)])


@pytest.mark.parametrize(
    "words",
    [
        *("status", "why shop order ord_42", "baseline", "events list", "outbox list"),
        *("events list --outcome quarantined", "purge", "outbox redrive --state dead --yes"),
        "events replay --all-quarantined",
    ],
)
@pytest.mark.usefixtures("locked")
def test_who_holds_a_lock_is_told_of(words: str, config: Path, monkeypatch: pytest.MonkeyPatch):
    """Not that the database is out of reach: it is there, and busy. Exit 75, one sentence."""
    brief = server_connection.LIMITS.replace(b"lock_timeout = '5s'", b"lock_timeout = '50ms'")
    monkeypatch.setattr(server_connection, "LIMITS", brief)

    told = called(words, config)

    assert (75, "", LOCKED_OUT) == (told.exit_code, told.stdout, told.stderr)


@pytest.mark.anyio
@pytest.mark.usefixtures("locked")
async def test_a_black_hole_in_the_middle_of_a_query(
    config: Path, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nobody waits for minutes at a terminal; it says so in a sentence and exits with 69."""
    assert timedelta(seconds=30) > opening.LOOKED_UP_WITHIN
    monkeypatch.setattr(opening, "LOOKED_UP_WITHIN", timedelta(seconds=1))
    async with PostgresProxy(database_url) as proxy:
        config = written(tmp_path, proxy.url)
        command = asyncio.create_task(anyio.to_thread.run_sync(called, "outbox list", config))
        await eventually(lambda: someone_waits(database_url), within=10)
        proxy.freeze()
        began = time.monotonic()
        told = await command

    assert 4.0 > time.monotonic() - began
    sentence = "error: the database is out of reach: the database did not answer within 1.0 s\n"
    assert (69, "", sentence) == (told.exit_code, told.stdout, told.stderr)


async def someone_waits(url: str) -> bool:
    asked = (
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock'"
    )
    async with await psycopg.AsyncConnection.connect(url) as connection:
        found = await (await connection.execute(asked)).fetchone()
    return found == (1,)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="LOUD: this system has no /dev/full")
def test_output_that_cannot_be_written(config: Path):
    """`status > /dev/full`: one sentence and exit 1, and Python adds nothing when it ends."""
    with Path("/dev/full").open("w") as full:
        told = process("status", config, stdout=full.fileno())

    assert "error: the output cannot be written: No space left on device\n" == told.stderr
    assert 1 == told.returncode


def test_a_reader_that_has_gone(config: Path):
    """`status | true`: nobody is told, and the shell sees what it sees of others: 141."""
    reading, writing = os.pipe()
    os.close(reading)
    told = process("status", config, stdout=writing)
    os.close(writing)

    assert (141, "") == (told.returncode, told.stderr)


def process(word: str, config: Path, *, stdout: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reconciler", word, "--config", str(config)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
