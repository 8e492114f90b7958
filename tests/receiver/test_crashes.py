"""Stories of a daemon that dies while it takes a delivery, and of the sender that tries again."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from .senders import SECRET, SHOP, body_of, order, signed

pytestmark = pytest.mark.anyio

SETTINGS = """
[database]
url = "{url}"

[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
"""


@asynccontextmanager
async def serving(
    directory: Path, url: str, *, crash_at: str = ""
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Run `reconciler serve` as a process of its own; it dies at *crash_at*."""
    file = directory / "reconciler.toml"
    file.write_text(SETTINGS.format(url=url) + SHOP)
    environ = {**os.environ, "SHOP_SECRET": SECRET}
    if crash_at:
        environ["RECONCILER_TEST_CRASH_AT"] = crash_at
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "reconciler", "serve", "--role", "receiver"),
        *("--config", str(file)),
        stderr=asyncio.subprocess.PIPE,
        env=environ,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            yield await webhooks_of(process.stderr), process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()


async def webhooks_of(log: asyncio.StreamReader) -> str:
    """Read the log up to the line that says where webhooks go."""
    seen = []
    async for line in log:
        seen.append(line.decode())
        if "daemon.ready" in seen[-1]:
            ready = json.loads(seen[-1])
            await until_usable(ready["admin"])
            return str(ready["webhooks"])
    raise AssertionError("".join(seen))


async def until_usable(admin: str) -> None:
    """Wait for the database: a daemon listens before it has seen one."""
    async with httpx.AsyncClient(trust_env=False) as http:
        while (await http.get(f"{admin}/readyz")).status_code != 200:
            continue


async def delivered(webhooks: str) -> httpx.Response:
    body = body_of(order())
    async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
        headers = signed(body, now=int(time.time()))
        return await http.post(f"{webhooks}/webhooks/shop", content=body, headers=headers)


@pytest.mark.parametrize(
    ("crash_at", "kept", "second"),
    [
        ("after-verify", 0, "applied"),
        ("after-claim", 0, "applied"),
        ("before-commit", 0, "applied"),
        ("after-commit", 1, "duplicate"),
        ("after-commit-before-ack", 1, "duplicate"),
    ],
)
async def test_a_delivery_without_an_answer_is_repeated_and_happens_once(
    engine: AsyncEngine,
    database_url: str,
    tmp_path: Path,
    *,
    crash_at: str,
    kept: int,
    second: str,
):
    """
    The power goes at a place that matters: the sender has no answer, and what is stored is all
    or nothing. It tries again, and then the event has happened, once (P1, P2, P3).
    """
    async with serving(tmp_path, database_url, crash_at=crash_at) as (webhooks, process):
        with pytest.raises(httpx.TransportError):
            await delivered(webhooks)
        assert -signal.SIGKILL == await process.wait()
    assert {kept} == {await rows(engine, table) for table in ("processed_events", "resources")}

    async with serving(tmp_path, database_url) as (webhooks, _):
        again = await delivered(webhooks)
    assert (200, second) == (again.status_code, again.json()["outcome"])
    assert {1} == {await rows(engine, table) for table in ("processed_events", "resources")}


async def rows(engine: AsyncEngine, table: str) -> int:
    async with engine.connect() as connection:
        count = await connection.scalar(text(f"select count(*) from reconciler.{table}"))  # noqa: S608
    assert isinstance(count, int)
    return count
