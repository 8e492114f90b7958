"""Stories of the HTTP server: what a client may take, and how a stop goes."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from reconciler import http_server, listening
from reconciler.http_server import Limits, Receive, Scope, Send
from reconciler.listening import Listeners

pytestmark = pytest.mark.anyio

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass(slots=True)
class Server:
    """A server with an application that answers `ok`, when it may."""

    port: int = 0
    requests: int = 0
    free: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        while scope["path"] == "/read" and (await receive())["more_body"]:
            pass
        await self.free.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def requested(self, count: int) -> None:
        while self.requests < count:  # noqa: ASYNC110 - a count, not one event
            await asyncio.sleep(0)

    async def talk(self, sent: bytes) -> bytes:
        """Send *sent* and return all that comes until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(sent)
            async with asyncio.timeout(5):
                return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def serving(**limits: object) -> AsyncIterator[Server]:
    server = Server()
    server.free.set()
    listener = listening.bind("127.0.0.1:0")
    server.port = listener.getsockname()[1]
    listeners = Listeners(sockets=[listener])
    ready: list[str] = []

    async def run() -> None:
        settings = Limits(**{"drain": timedelta(seconds=5), "connections": 1000, **limits})
        await http_server.run(
            server, listeners, limits=settings, stop=server.stop, ready=ready.append
        )
        server.done.set()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(run())
        yield server
        server.free.set()
        server.stop.set()
    assert [f"http://127.0.0.1:{server.port}"] == ready


async def test_requests_are_answered_and_connections_reused():
    """The plain case, twice on one connection."""
    async with serving() as server:
        answer = await server.talk(GET + GET.replace(b"Host", b"Connection: close\r\nHost"))

    assert 2 == answer.count(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\r\n", id="an empty line"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nX-A: ", id="half a head"),
        pytest.param(GET + b"POST / HT", id="half a second head"),
    ],
)
async def test_who_sends_no_whole_head_is_not_waited_for(sent: bytes):
    """An idle or stalled client holds a connection for so long and no longer (11.4)."""
    async with serving(head_within=timedelta(milliseconds=100)) as server:
        assert b"HTTP/1.1 408" in await server.talk(sent)


async def test_a_head_that_trickles_is_not_waited_for():
    """A byte now and then does not buy more time."""
    async with serving(head_within=timedelta(milliseconds=200)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        answer = b""
        while not answer:
            writer.write(b"G" if not answer else b"")
            try:
                async with asyncio.timeout(0.02):
                    answer = await reader.read(100)
            except TimeoutError:
                continue
        writer.close()

    assert answer.startswith((b"HTTP/1.1 408", b"HTTP/1.1 400"))


async def test_an_answered_connection_may_be_idle_for_a_while_only():
    """Between two requests there is a limit too."""
    async with serving(keep_alive=timedelta(seconds=1)) as server:
        assert b"HTTP/1.1 200" in await server.talk(GET)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"X-A: " + b"a" * 70_000, id="one long line"),
        pytest.param(b"X-A: " + b"a" * 3_000_000, id="one endless line"),
        pytest.param(b"\r\n".join(b"X-%d: a" % n for n in range(101)), id="many lines"),
        pytest.param(b"\r\n".join(b"X-%d: " % n + b"a" * 8000 for n in range(9)), id="large lines"),
    ],
)
async def test_a_head_has_a_size(head: bytes):
    """httptools itself would take a megabyte (11.4)."""
    async with serving() as server:
        answer = b""
        try:
            answer = await server.talk(b"GET / HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
        except ConnectionResetError:
            assert len(head) > 1_000_000
        else:
            assert answer.startswith(b"HTTP/1.1 431")
        assert 0 == server.requests


async def test_a_line_that_never_ends_is_ended():
    """The parser keeps it to itself until it ends, so it is counted as it comes."""
    async with serving() as server:
        answer = await server.talk(b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 100_000)

        assert answer.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("path", ["/read", "/unread"])
async def test_a_large_body_is_no_large_head(path: str):
    """
    What follows the empty line is not counted, however it is cut into packets. A connection
    whose body was still coming when it had its answer is not kept for ever either.
    """
    body = b"a" * 300_000
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (
        path.encode(),
        len(body),
    )
    limits = {"keep_alive": timedelta(seconds=1), "head_within": timedelta(milliseconds=500)}
    async with serving(**limits) as server:
        assert 2 == (await server.talk((head + body) * 2)).count(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc",
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"GARBAGE\r\n\r\n",
    ],
    ids=["cl-te", "two-cl", "plus", "bare-lf", "space-colon", "nul", "folded", "garbage"],
)
async def test_framing_that_two_servers_could_read_differently_is_refused(head: bytes):
    """The parser refuses these by itself; it must go on doing so (11.4)."""
    async with serving() as server:
        assert b"HTTP/1.1 400" in await server.talk(head)
        assert 0 == server.requests


async def test_connections_have_a_limit():
    """Who comes when all are taken is told to come again, and the others are served."""
    async with serving(connections=1) as server:
        server.free.clear()
        first = asyncio.create_task(server.talk(GET.replace(b"Host", b"Connection: close\r\nHost")))
        await server.requested(1)
        refused = await server.talk(GET)
        server.free.set()

        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 5" in refused
        assert b"HTTP/1.1 200" in await first


async def test_requests_that_wait_on_one_connection_have_a_limit():
    """
    Thousands of requests fit into what is read at once, and each takes a hundred times its bytes.
    Who sends so many before an answer is told to come again; a few are answered in their order.
    """
    async with serving() as server:
        last = GET.replace(b"Host", b"Connection: close\r\nHost")
        assert 10 == (await server.talk(GET * 9 + last)).count(b"HTTP/1.1 200")
        server.free.clear()

        refused = await server.talk(GET * 100)

        assert refused.startswith(b"HTTP/1.1 503")
        assert 11 == server.requests


async def test_a_stop_answers_what_is_under_way_and_closes_what_is_idle():
    """
    One connection is idle, one request is being worked on. On stop the idle one is closed, new
    ones are refused, the answer leaves, and then the server returns (C137).
    """
    async with serving() as server:
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", server.port)
        idle_writer.write(GET)
        await idle_reader.readuntil(b"ok")
        server.free.clear()
        under_way = asyncio.create_task(server.talk(GET))
        await server.requested(2)
        server.stop.set()

        assert b"" == await idle_reader.read()
        with pytest.raises(ConnectionRefusedError):
            await server.talk(GET)
        assert not server.done.is_set()
        server.free.set()
        assert b"HTTP/1.1 200" in await under_way
        await server.done.wait()
        idle_writer.close()


@pytest.mark.parametrize("before", [0, 2], ids=["alone", "the last of three"])
async def test_who_has_said_all_and_closed_his_side_is_answered(before: int):
    """
    A client may close its side of the connection after the last byte of its request (half-closed):
    it waits for the answer, and gets it, with all those that it asked for before; then we close.
    """
    async with serving() as server:
        server.free.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET * (before + 1))
        writer.write_eof()
        await server.requested(1)
        await asyncio.sleep(0.05)
        server.free.set()
        async with asyncio.timeout(5):
            answer = await reader.read()
        assert before + 1 == answer.count(b"HTTP/1.1 200 OK")
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST / HTTP/1.1\r\nHo",
        b"POST /read HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab",
    ],
    ids=["nothing", "half a head", "half a body"],
)
async def test_who_closes_his_side_in_the_middle_is_not_waited_for(sent: bytes):
    """What is not whole cannot become so any more: the connection is closed at once."""
    async with serving(head_within=timedelta(seconds=60)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        writer.write_eof()
        async with asyncio.timeout(5):
            assert b"200" not in await reader.read()
        writer.close()


async def test_signals_stay_ours():
    """uvicorn would take SIGTERM for itself and raise it again at the end."""
    before = signal.getsignal(signal.SIGTERM)
    async with serving() as server:
        await server.talk(GET.replace(b"Host", b"Connection: close\r\nHost"))
        assert before == signal.getsignal(signal.SIGTERM)
    assert before == signal.getsignal(signal.SIGTERM)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_an_address_is_a_host_and_a_port(address: str):
    """Port 0 is a free one, and the URL says which."""
    try:
        listener = listening.bind(address)
    except OSError:
        assert ":" in address.rpartition(":")[0]  # a host without IPv6
        return
    with listener:
        assert str(listener.getsockname()[1]) in listening.url_of(listener)


async def test_no_part_of_an_answer_waits_for_the_client_to_say_that_the_first_came() -> None:
    """Nagle's algorithm and a client's delayed ACK would cost every delivery 40 ms."""
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        option = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        accepted.set_result(option)
        writer.close()

    listener = listening.bind("127.0.0.1:0")
    async with await asyncio.start_server(look, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        async with asyncio.timeout(5):
            assert await accepted
        writer.close()
