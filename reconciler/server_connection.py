"""One connection to the server: how it is asked for, how long it waits, and what it notices."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote, unquote

import psycopg
from psycopg import generators, waiting
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.types.json import set_json_dumps, set_json_loads

from reconciler import exact_json
from reconciler.errors import ConfigError
from reconciler.lifecycle import wait_bounded

V = TypeVar("V")

ANSWERED_WITHIN: Final = timedelta(seconds=10)
"""How long one statement or commit may take, unless it is said to need longer."""

ROLLED_BACK_WITHIN: Final = timedelta(seconds=1)
"""How long a rollback may take; the server rolls back what we close anyway."""

LOOKS_UP: Final = timedelta(seconds=10)
"""How long the resolver may take to find the servers, beyond the attempts to connect."""

LIMITS: Final = (
    b"; SET LOCAL idle_in_transaction_session_timeout = '60s'"
    b"; SET LOCAL lock_timeout = '5s'"
    b"; SET LOCAL client_connection_check_interval = '500ms'"
    b"; SET LOCAL jit = off"
)
"""
What holds in every transaction, asked for together with its BEGIN.

Nobody waits for ever for what a stopped process holds, nor we for what others hold; and the server
notices within half a second that we have closed a connection that it works for. No statement of
ours is long enough to be worth compiling, which takes longer than to lease from a backlog.
"""

NEVER_BY_ITSELF: Final = 2**31 - 1
"""Executions after which a statement is prepared that does not say so itself."""

LOOK_EVERY: Final = 0.1  #: seconds between two looks at a socket that says nothing

PLACE: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:,]+):([0-9]+)")  #: host and port

NETWORK: Final = {
    "application_name": "reconciler",
    "connect_timeout": "2",
    "tcp_user_timeout": "3000",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "target_session_attrs": "read-write",
}
"""What a URL does not say itself: without these a client hangs for a whole network partition."""


async def open_connection(conninfo: str) -> "ServerConnection":
    """
    A connection that works through PgBouncer in transaction mode, and reads JSON exactly.

    No startup options, nothing set for the session. Statements are prepared only where they say
    so, and only by whoever talks to the server itself: a pooler tells its clients a process of
    its own making.
    Raises psycopg.OperationalError where nobody answers in time.
    """
    said = conninfo_to_dict(conninfo)
    hosts = str(said.get("host") or said.get("hostaddr") or "").count(",") + 1
    patience = LOOKS_UP.total_seconds() + hosts * float(said.get("connect_timeout") or 60)
    wait_bounded(timedelta(seconds=patience))
    try:
        async with asyncio.timeout(patience):
            connection = await ServerConnection.connect(conninfo, prepare_threshold=None)
    except TimeoutError:
        raise psycopg.OperationalError("no server was found in time") from None
    try:
        if await connection.is_direct():
            connection.prepare_threshold = NEVER_BY_ITSELF
    except BaseException:
        connection.let_go()
        raise
    set_json_loads(read_json, connection)
    set_json_dumps(exact_json.dumps, connection)
    connection.add_notice_handler(connection.notice)
    return connection


def read_json(data: str | bytes) -> exact_json.Json:
    return exact_json.parse(data.encode() if isinstance(data, str) else data)


def conninfo_for(url: str, *, password: str | None = None) -> str:
    """
    The libpq connection string for *url*, with our network limits where it has none.

    Takes what libpq takes, and SQLAlchemy's driver suffix and repeated `host=a:5432&host=b:5432`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.partition("+")[0] not in {"postgresql", "postgres"}:
        raise ConfigError("database.url is not a PostgreSQL URL", hint='like "postgresql:///app"')
    address, _, query = rest.partition("?")
    pairs = [pair.partition("=")[::2] for pair in query.split("&") if pair]
    hosts = [unquote(host) for name, host in pairs if name == "host"]
    if len(hosts) > 1 or any(PLACE.fullmatch(host) for host in hosts):
        # libpq would silently keep the last one, and look the port up as a part of the name
        places = [found.groups() if (found := PLACE.fullmatch(h)) else (h, "5432") for h in hosts]
        pairs = [(name, value) for name, value in pairs if name not in {"host", "port"}]
        pairs += [("host", quote(",".join(host.strip("[]") for host, _ in places)))]
        pairs += [("port", ",".join(port for _, port in places))]
    query = "&".join(f"{name}={value}" for name, value in pairs)
    try:
        said = conninfo_to_dict(f"postgresql://{address}" + (f"?{query}" if query else ""))
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"database.url cannot be read: {str(error).strip()}") from None
    merged: dict[str, Any] = {**NETWORK, **said}
    if password is not None:
        merged["password"] = password
    return make_conninfo("", **merged)


class Slot(Protocol):
    """What a connection holds at the server."""

    def leave(self, connection: PGconn) -> None:
        """Close *connection*, and count it until the server has let go of it."""


class ServerConnection(psycopg.AsyncConnection[Any]):
    """
    A connection that waits for nothing without a limit of its own.

    A silent peer defeats every limit of the server and of TCP. What is not answered in time, or
    whose waiter is cancelled, is closed on the spot: nobody waits for a server to be told, and a
    COMMIT is never cancelled, which would make it look like a success.
    """

    bound: timedelta = ANSWERED_WITHIN  #: of each statement
    opened_at: float = 0.0  #: by the loop's time
    slot: Slot | None = None
    commit_unconfirmed: bool = False
    _limit: asyncio.Timeout | None = None
    _waiting_since: float = 0.0

    async def wait(
        self, gen: PQGen[V], interval: float = LOOK_EVERY, timeout: float | None = None
    ) -> V:
        limit = asyncio.timeout(self.bound.total_seconds())
        wait_bounded(self.bound)
        self._waiting_since = asyncio.get_running_loop().time()
        try:
            async with limit:
                self._limit = limit
                return await waiting.wait_async(
                    gen, self.pgconn.socket, interval=interval, timeout=timeout
                )
        except TimeoutError:
            waited = asyncio.get_running_loop().time() - self._waiting_since
            self.let_go()
            raise psycopg.OperationalError(
                f"the database did not answer within {waited:.1f} s"
            ) from None
        except asyncio.CancelledError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.let_go()
            raise
        finally:
            self._limit = None

    def give_up_waiting(self, *, before: float) -> None:
        """End a wait that has lasted since *before*, unless it may take longer than is usual."""
        if self._limit is None or self.bound > ANSWERED_WITHIN:
            return
        if self._waiting_since <= before and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    @contextmanager
    def bounded(self, bound: timedelta) -> Iterator[None]:
        """Within the block each statement may take *bound*."""
        before, self.bound = self.bound, bound
        try:
            yield
        finally:
            self.bound = before

    async def is_direct(self) -> bool:
        """Whether it is the server that we talk to, and nobody who hands its connections out."""
        await self.set_autocommit(True)
        cursor = await self.execute("select pg_backend_pid()")
        (process,) = await cursor.fetchone() or (None,)
        await self.set_autocommit(False)
        return bool(process == self.info.backend_pid)

    async def commit(self) -> None:
        self.commit_unconfirmed = False
        await super().commit()
        if self.commit_unconfirmed:
            self.let_go()
            raise psycopg.OperationalError("a standby's word for the commit did not come")

    async def rollback(self) -> None:
        if self.closed:  # what is lost is rolled back by the server
            return
        try:
            with self.bounded(min(self.bound, ROLLED_BACK_WITHIN)):
                await super().rollback()
        except psycopg.OperationalError:
            if not self.closed:
                raise

    async def close(self) -> None:
        self.let_go()
        await super().close()

    def let_go(self) -> None:
        """Close at once, whatever is under way; the server is neither asked nor waited for."""
        if self.slot is None:
            self.pgconn.finish()
        else:
            self.slot.leave(self.pgconn)

    def notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        # "canceling wait for synchronous replication": COMMIT succeeds all the same. The text
        # is translated and the SQLSTATE is that of any warning; the place is neither.
        if diagnostic.source_function == "SyncRepWaitForLSN":
            self.commit_unconfirmed = True

    def _start_query(self) -> PQGen[None]:
        # psycopg's own knows one command and one answer; ours has several, and one way to go
        if self.autocommit or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return
        self._check_connection_ok()
        self.pgconn.send_query(self._get_tx_start_command() + LIMITS)
        for result in (yield from generators.execute(self.pgconn)):
            if result.status != ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result, encoding=self.info.encoding)
