"""The proxy in front of PostgreSQL loses what it is told to lose, and nothing else."""

import asyncio
import json
import sys

import psycopg
import pytest

from tests.postgres_proxy import PostgresProxy
from tests.world import eventually

pytestmark = pytest.mark.anyio


async def connect(url: str) -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(url, connect_timeout=5)


@pytest.fixture
async def proxy(database_url):
    async with await connect(database_url) as connection:
        await connection.execute("create table notes (text text not null)")
    async with PostgresProxy(database_url) as proxy:
        yield proxy


async def notes(proxy: PostgresProxy) -> list[str]:
    """What is really in the table: asked for past the proxy."""
    async with await connect(proxy.upstream) as connection:
        cursor = await connection.execute("select text from notes order by 1")
        return [row[0] for row in await cursor.fetchall()]


async def test_a_commit_whose_answer_is_dropped_has_happened(proxy):
    """The client only learns that its connection is gone; the server says: committed."""
    connection = await connect(proxy.url)
    await connection.execute("insert into notes values ('kept')")
    cursor = await connection.execute("select pg_current_xact_id()::text")
    (transaction,) = await cursor.fetchone()
    proxy.cut_after_commit()
    with pytest.raises(psycopg.OperationalError):
        await connection.commit()
    assert connection.closed

    assert ["kept"] == await notes(proxy)
    async with await connect(proxy.url) as again:
        status = await again.execute("select pg_xact_status(%s::xid8)", [transaction])
        assert ("committed",) == await status.fetchone()
    assert (1, 2) == (proxy.commits_cut, proxy.connections)


async def test_only_transactions_that_touched_a_table_are_cut(proxy):
    """What merely looks, and what rolls back, passes."""
    proxy.cut_after_commit(having="notes")
    async with await connect(proxy.url) as connection:
        for _ in range(3):
            await connection.execute("select 1")
            await connection.commit()
        await connection.execute("insert into notes values ('rolled back')")
        await connection.rollback()
        await connection.execute("select 1")
        await connection.commit()
        assert (0, 1) == (proxy.commits_cut, proxy.cuts_left())
        await connection.execute("insert into notes values (%s)", ["kept"])
        with pytest.raises(psycopg.OperationalError):
            await connection.commit()
    assert (["kept"], 1, 0) == (await notes(proxy), proxy.commits_cut, proxy.cuts_left())


async def test_a_frozen_proxy_is_a_black_hole_with_a_live_peer(proxy):
    """Nothing comes back and nothing breaks; thawed, new connections work, old ones are lost."""
    old = await connect(proxy.url)
    proxy.freeze()
    asked = asyncio.create_task(old.execute("insert into notes values ('lost')"))
    connecting = asyncio.create_task(psycopg.AsyncConnection.connect(proxy.url))
    _, unanswered = await asyncio.wait({asked, connecting}, timeout=0.3)
    assert {asked, connecting} == unanswered
    proxy.thaw()
    async with await connect(proxy.url) as connection:
        await connection.execute("insert into notes values ('kept')")
    assert ["kept"] == await notes(proxy)
    proxy.reset_all()
    for lost in (asked, connecting):
        with pytest.raises(psycopg.OperationalError):
            await lost


async def test_connections_are_reset_and_refused(proxy):
    connection = await connect(proxy.url)
    proxy.reset_all()
    with pytest.raises(psycopg.OperationalError):
        await connection.execute("select 1")
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        await connect(proxy.url)
    proxy.accept()
    proxy.trickle(100_000)
    async with await connect(proxy.url) as slow:
        await slow.execute("insert into notes values ('slowly')")
    assert ["slowly"] == await notes(proxy)


async def test_the_proxy_as_a_process(proxy):
    """For daemons that outlive a test's own loop: commands on standard input."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.postgres_proxy", proxy.upstream),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    url = (await process.stdout.readline()).decode().strip()
    process.stdin.write(b"cut_after_commit 1 notes\n")
    await process.stdout.readline()
    connection = await connect(url)
    await connection.execute("insert into notes values ('kept')")
    with pytest.raises(psycopg.OperationalError):
        await connection.commit()
    process.stdin.write(b"counters\n")
    assert 1 == json.loads(await process.stdout.readline())["commits_cut"]
    process.stdin.close()
    assert 0 == await asyncio.wait_for(process.wait(), 10)
    await eventually(lambda: has(proxy, "kept"))


async def has(proxy: PostgresProxy, text: str) -> bool:
    return text in await notes(proxy)
