"""Everything works through PgBouncer in transaction mode: nothing of ours needs a session."""

import asyncio
import os
import pwd
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url, text
from structlog.testing import capture_logs

from outbox.backoff import Backoff
from outbox.breaker import Breaker
from outbox.flow import Rate
from reconciler.database import engine_for
from reconciler.errors import DatabaseAwayError
from reconciler.server_connection import conninfo_for, open_connection
from reconciler.transactions import transact
from tests.outbox.pretend import Answers, Call, Pretend
from tests.outbox.world import POLICY, an_entry
from tests.outbox.world import World as Outbox
from tests.postgres_proxy import PostgresProxy
from tests.world import Answer, a_world, eventually, order_event, refund_event

pytestmark = pytest.mark.anyio

HASTY = replace(
    POLICY, backoff=Backoff(base=timedelta(milliseconds=10), cap=timedelta(milliseconds=50))
)
BREAKER = Breaker(after=2, pause=timedelta(milliseconds=50), pause_max=timedelta(seconds=1))

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

CONFIGURATION = """\
[databases]
{name} = {place} dbname={name} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
max_client_conn = 200
query_wait_timeout = 5
server_reset_query =
logfile = {directory}/pgbouncer.log
pidfile = {directory}/pgbouncer.pid
admin_users = nobody
"""


@asynccontextmanager
async def bouncing(url: str) -> AsyncIterator[str]:
    """The URL of *url* by way of a real PgBouncer: transaction mode, two server connections."""
    # by way of TCP: it may not look into our socket's directory
    async with PostgresProxy(url) as upstream, bouncer(url, upstream) as through:
        yield through


@asynccontextmanager
async def bouncer(url: str, upstream: PostgresProxy) -> AsyncIterator[str]:
    assert PROGRAM is not None
    with psycopg.connect(url) as known:
        name, user, password = known.info.dbname, known.info.user, known.info.password
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = f"host=127.0.0.1 port={upstream.port}" + (f" password={password}" if password else "")
    directory = Path(tempfile.mkdtemp(prefix="bouncer-"))
    file = directory / "pgbouncer.ini"
    file.write_text(
        CONFIGURATION.format(name=name, place=place, user=user, port=port, directory=directory)
    )
    owner = None
    if os.geteuid() == 0:  # it refuses to run as root
        owner = pwd.getpwnam("postgres" if known_user("postgres") else "nobody").pw_uid
        for path in (directory, file):
            os.chown(path, owner, -1)
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "-q", str(file), user=owner, stderr=asyncio.subprocess.DEVNULL
    )
    ours = make_url(url).set(
        host="127.0.0.1", port=port, username=user, query={"sslmode": "disable"}
    )
    through = ours._replace(password=None).render_as_string(hide_password=False)

    async def answers() -> bool:
        assert process.returncode is None, (directory / "pgbouncer.log").read_text()
        try:
            async with await psycopg.AsyncConnection.connect(through):
                return True
        except psycopg.OperationalError:
            return False

    try:
        await eventually(answers)
        yield through
    finally:
        process.send_signal(signal.SIGINT)
        await process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def known_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


needs_pgbouncer = pytest.mark.skipif(
    PROGRAM is None, reason="NOT TESTED: pgbouncer is not installed (apt install pgbouncer)"
)


@needs_pgbouncer
async def test_the_whole_service_through_pgbouncer(tmp_path: Path, database_url: str) -> None:
    """
    Ten connections of ours share two of the server's, and no two transactions in a row need the
    same. Webhooks, your statements, calls and their retries, a baseline, a lost webhook found by a
    scan, a read, the commands: all as if PgBouncer were not there.
    """
    async with bouncing(database_url) as url, a_world(tmp_path, database_url) as world:
        lines = world.config.read_text().splitlines()
        lines[1] = f'url = "{url}"'
        world.config.write_text("\n".join(lines))
        async with world.serving() as daemon:
            await world.baseline_over()
            world.destination.troubles = [Answer(status=503), Answer(lost=True)]
            events = [
                order_event(
                    f"evt_{n}", world.sender.sets(f"ord_{n}", paid=True), type_="order.created"
                )
                for n in range(8)
            ]
            answers = await world.all_at_once([*events, *events, refund_event("ref_1")])
            assert {200} == {answer.status_code for answer in answers}
            world.sender.sets("lost", paid=True)
            expected = [f"capture ord_{n}" for n in range(8)]
            await world.effects(*expected, "capture lost", "receipt ref_1")
            status = await world.document("status")
            assert 10 == status["outbox"]["delivered"]
            code, out, err = await world.command("reconcile", "shop", "order", "lost")
            assert 0 == code, out + err
            assert await daemon.shown("/readyz")
        assert 9 == await world.value("select count(*) from orders")
        assert 0 == await world.value(
            "select count(*) from pg_locks where locktype = 'advisory' and database ="
            " (select oid from pg_database where datname = current_database())"
        )
        assert "Traceback" not in daemon.log


@needs_pgbouncer
async def test_nothing_is_prepared_where_a_pooler_is_in_between(database_url: str) -> None:
    """The process that it names is of its own making; the server names the one that answers."""
    async with bouncing(database_url) as url, PostgresProxy(database_url) as proxy:
        allowed = {}
        for name, place in {"pooled": url, "far": proxy.url, "direct": database_url}.items():
            connection = await open_connection(conninfo_for(place))
            allowed[name] = connection.prepare_threshold is not None
            await connection.close()
    assert {"pooled": False, "far": True, "direct": True} == allowed


@needs_pgbouncer
async def test_limits_hold_and_cancelled_requests_leave_nothing_behind(database_url: str) -> None:
    """
    Limits are asked for in each transaction and stay in it. Requests that are cancelled in the
    middle of a slow statement free the server's connections within a second, so that two of
    them are enough for whoever comes next.
    """
    async with bouncing(database_url) as url:
        engine = engine_for(url, pool_size=5)

        async def slow() -> None:
            try:
                async with asyncio.timeout(0.05):
                    await transact(engine, lambda c: c.execute(text("select pg_sleep(60)")))
            except (TimeoutError, DatabaseAwayError):
                pass

        async with asyncio.TaskGroup() as storm:
            for _ in range(10):
                storm.create_task(slow())
        async with asyncio.timeout(15):
            limit = await transact(engine, lambda c: c.scalar(text("show lock_timeout")))
        assert "5s" == limit
        assert 0 == engine.pool.checkedout()
        await engine.dispose()
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as plain:
            cursor = await plain.execute("show lock_timeout")
            assert ("0",) == await cursor.fetchone()


@needs_pgbouncer
async def test_lanes_a_rate_and_a_breaker_through_pgbouncer(database_url: str) -> None:
    """
    Two relays and whoever asks share two of the server's connections. The destination is down
    until its breaker opens, once for both, and a probe closes it. Lanes keep their order, and
    nobody calls more often than the rate allows.
    """
    came: list[float] = []

    def behave(_number: int, _call: Call) -> Answers:
        came.append(time.monotonic())
        opened = any(line["event"] == "relay.breaker_opened" for line in logs)
        return Answers(status=200 if opened else 503)

    async with bouncing(database_url) as url, Pretend(behave=behave) as pretend:
        engine = engine_for(url, pool_size=5)
        world = Outbox(engine=engine, pretend=pretend, policy=HASTY)
        world.set(rate=Rate(per_second=100, burst=5), breaker=BREAKER)
        with capture_logs() as logs:
            async with world.running(), world.running():
                for number in range(40):
                    lane = f"order:{number % 5}"
                    await world.enqueue(an_entry(number, effect=f"step_{number // 5}", lane=lane))
                await world.until(lambda: all_delivered(world))
        for lane in range(5):
            keys = [key for key in pretend.keys if int(key.removeprefix("key_")) % 5 == lane]
            expected = [f"key_{number}" for number in range(lane, 40, 5)]
            assert expected == list(dict.fromkeys(keys))
            assert sorted(keys, key=expected.index) == keys
        told = [line["event"] for line in logs]
        assert 1 <= told.count("relay.breaker_opened") == told.count("relay.breaker_closed")
        tenths = [sum(began <= at < began + 0.1 for at in came) for began in came]
        assert max(tenths) <= 5 + 10 + 1, tenths
        for channel in world.channels:
            await channel.close()
        await engine.dispose()


async def all_delivered(world: Outbox) -> bool:
    return {"delivered"} == set(await world.states())
