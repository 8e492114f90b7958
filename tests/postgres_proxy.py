"""
A proxy in front of PostgreSQL that can lose what no test can lose otherwise: the answer to COMMIT.

    async with PostgresProxy(url) as proxy:
        ...  # connect to proxy.url
        proxy.cut_after_commit()

It reads the server's side of the protocol (version 3), message by message, so that it acts
exactly when the server has performed a COMMIT. In a process of its own:

    python -m tests.postgres_proxy URL

prints the URL to use; then every line of standard input is one call, as in
`cut_after_commit 2 processed_events`, answered by the counters in JSON.
"""

import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104
CHUNK = 64 * 1024
COMMITTED = b"C\0\0\0\x0bCOMMIT\0"  #: CommandComplete
IDLE = b"Z\0\0\0\x05I"  #: ReadyForQuery, outside a transaction
REMEMBERED = 256 * 1024  #: bytes of what a client has asked for within one transaction
RESET = struct.pack("ii", 1, 0)  #: SO_LINGER: close with a reset, not with an orderly end


class PostgresProxy:
    """Stands between clients and the PostgreSQL at *url*, and harms what passes when told to."""

    def __init__(self, url: str) -> None:
        self.upstream = url
        self.connections = 0
        """How many were accepted so far."""
        self.commits = 0
        """How many COMMITs the server has performed so far."""
        self.commits_cut = 0
        """Of these, how many whose answer nobody ever got."""
        self._cuts: deque[bytes] = deque()
        self._late: tuple[float, bytes] | None = None
        self._refusing = False
        self._frozen = False
        self._rate: float | None = None
        self._open: dict[asyncio.Task[None], Link] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(tuple(self._open))
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """The upstream's URL by way of this proxy; without TLS, which it could not see into."""
        url = make_url(self.upstream)
        rest = {n: v for n, v in url.query.items() if n not in ("host", "port", "sslmode")}
        ours = url.set(host="127.0.0.1", port=self.port, query={**rest, "sslmode": "disable"})
        return ours.render_as_string(hide_password=False)

    def cut_after_commit(self, n: int = 1, *, having: str = "") -> None:
        """
        Let the next *n* COMMITs happen, drop their answers and reset their connections.

        Where *having* is given, only of transactions that asked for something with this text
        in it: a table's name finds those that matter among the loops' idle looks.
        """
        self._cuts.extend([having.encode()] * n)

    def late_after_commit(self, seconds: float, *, having: str) -> None:
        """Answer the next COMMIT of a transaction that asked for *having* so much later."""
        self._late = (seconds, having.encode())

    def is_late(self) -> bool:
        """Whether the COMMIT that was to be answered late has happened."""
        return self._late is None

    def cuts_left(self) -> int:
        """How many of the cuts that were asked for have not been made yet."""
        return len(self._cuts)

    def spare(self) -> None:
        """Forget the cuts that have not been made yet."""
        self._cuts.clear()

    def freeze(self) -> None:
        """A black hole: what is sent from now on is lost both ways, and TCP stays alive."""
        self._frozen = True

    def thaw(self) -> None:
        """
        Pass things on again.

        A connection that has lost bytes stays silent until an end of it gives up.
        """
        self._frozen = False

    def reset_all(self) -> None:
        """Reset every connection that is open, on both sides; new ones are welcome."""
        for link in self._open.values():
            link.reset()

    def refuse(self) -> None:
        """Reset every new connection at once, as where nobody listens; open ones live on."""
        self._refusing = True

    def accept(self) -> None:
        """Take new connections again."""
        self._refusing = False

    def trickle(self, bytes_per_second: float | None) -> None:
        """Let no more than this through, each way of each connection; None: as fast as it goes."""
        self._rate = bytes_per_second

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = Link(reader, writer)
        if self._refusing:
            link.reset()
            return
        this = asyncio.current_task()
        assert this is not None
        self._open[this] = link
        try:
            await self._serve(link)
        except asyncio.CancelledError:
            pass  # by `__aexit__` alone, and asyncio would report it as an error
        finally:
            link.reset()
            del self._open[this]

    async def _serve(self, link: "Link") -> None:
        with contextlib.suppress(OSError, EOFError):
            first = await without_encryption(link)
            link.server, link.to_server = await connected(self.upstream)
            await self._pass(link, first, link.to_server)
            ways = {
                asyncio.create_task(self._to_server(link)),
                asyncio.create_task(self._to_client(link)),
            }
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.wait(ways)

    async def _to_server(self, link: "Link") -> None:
        assert link.to_server is not None
        with contextlib.suppress(OSError):
            while data := await link.client.read(CHUNK):
                link.asked = (link.asked + data)[-REMEMBERED:]
                await self._pass(link, data, link.to_server)

    async def _to_client(self, link: "Link") -> None:
        """Pass the server's messages on; after `cut_after_commit`, end before COMMIT's answer."""
        assert link.server is not None
        waiting = b""
        with contextlib.suppress(OSError):
            while data := await link.server.read(CHUNK):
                waiting += data
                whole = 0
                while message := first_message(waiting, whole):
                    if message == COMMITTED:
                        self.commits += 1
                        if self._takes_a_cut(link):
                            return
                        if self._late is not None and self._late[1] in link.asked:
                            late, self._late = self._late, None
                            await asyncio.sleep(late[0])
                    elif message == IDLE:
                        link.asked = b""
                    whole += len(message)
                await self._pass(link, waiting[:whole], link.to_client)
                waiting = waiting[whole:]

    def _takes_a_cut(self, link: "Link") -> bool:
        wanted = next((text for text in self._cuts if text in link.asked), None)
        if wanted is None or self._frozen:
            return False
        self._cuts.remove(wanted)
        self.commits_cut += 1
        return True

    async def _pass(self, link: "Link", data: bytes, writer: asyncio.StreamWriter) -> None:
        if self._frozen or link.silent:
            link.silent = True
            return
        if self._rate is None:
            writer.write(data)
            await writer.drain()
            return
        step = max(1, int(self._rate / 20))
        for place in range(0, len(data), step):
            piece = data[place : place + step]
            await asyncio.sleep(len(piece) / self._rate if self._rate else 0)
            writer.write(piece)
            await writer.drain()


def first_message(data: bytes, place: int) -> bytes:
    """The server's message that begins at *place*; nothing where it is not whole yet."""
    if len(data) - place < 5:
        return b""
    end = place + 1 + int.from_bytes(data[place + 1 : place + 5], "big")
    return data[place:end] if end <= len(data) else b""


class Link:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.client, self.to_client = client, to_client
        self.server: asyncio.StreamReader | None = None
        self.to_server: asyncio.StreamWriter | None = None
        self.asked = b""  #: what the client has sent since its last transaction ended
        self.silent = False  #: it has lost bytes, so that nothing after them would be understood

    def reset(self) -> None:
        for writer in (self.to_client, self.to_server):
            if writer is not None and not writer.transport.is_closing():
                its_socket = writer.get_extra_info("socket")
                if its_socket.family != socket.AF_UNIX:
                    its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()


async def connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the server that a libpq URL names, over TCP or its socket's directory."""
    facts = conninfo_to_dict(url)
    host, port = str(facts.get("host") or "127.0.0.1"), int(facts.get("port") or 5432)
    if host.startswith("/"):
        return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    return await asyncio.open_connection(host, port)


async def without_encryption(link: Link) -> bytes:
    """The client's first real packet; its offers to encrypt are declined."""
    while True:
        head = await link.client.readexactly(8)
        length, code = struct.unpack("!ii", head)
        if code not in (SSL_REQUEST, GSS_REQUEST):
            return head + await link.client.readexactly(length - 8)
        link.to_client.write(b"N")


def call(proxy: PostgresProxy, line: str) -> None:
    """Do what one line of standard input says."""
    name, *words = line.split()
    rate = float(words[0]) if words else None
    calls: dict[str, Callable[[], None]] = {
        "cut_after_commit": lambda: proxy.cut_after_commit(
            int(words[0]) if words else 1, having=" ".join(words[1:])
        ),
        "freeze": proxy.freeze,
        "thaw": proxy.thaw,
        "reset_all": proxy.reset_all,
        "refuse": proxy.refuse,
        "accept": proxy.accept,
        "spare": proxy.spare,
        "trickle": lambda: proxy.trickle(rate),
        "counters": lambda: None,
    }
    calls[name]()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main(url: str) -> None:
    async with PostgresProxy(url) as proxy:
        say(proxy.url)
        while line := await asyncio.to_thread(sys.stdin.readline):
            call(proxy, line)
            counters = {"connections": proxy.connections, "commits_cut": proxy.commits_cut}
            say(json.dumps({**counters, "commits": proxy.commits}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
