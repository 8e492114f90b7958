"""An HTTP server inside our own event loop: signals are ours, and everything has a limit."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = structlog.get_logger()

BACKLOG = 1024  #: connections that may wait to be accepted

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a client may take, and how long a stop may."""

    drain: timedelta
    """How long requests under way may take once we stop."""
    connections: int = 1000
    """How many connections may be open; further ones are answered 503 and closed."""
    pipelined: int = 16
    """How many requests may wait on one connection for the answer before theirs."""
    head_bytes: int = 64 * 1024
    """How large request line and headers may be together."""
    head_lines: int = 100
    """How many headers a request may have."""
    head_within: timedelta = timedelta(seconds=10)
    """How long request line and headers may take to arrive, however much trickles."""
    keep_alive: timedelta = timedelta(seconds=30)
    """How long a connection may be idle between two requests."""


async def run(
    app: App,
    listener: socket.socket,
    *,
    limits: Limits,
    stop: asyncio.Event,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """
    Serve *app* on *listener* until *stop* is set, then let requests under way finish.

    *ready* is called with our URL as soon as connections are accepted. New connections are
    refused from *stop* on, idle ones closed; what is not finished after `drain` is cancelled.
    """
    _report_through_our_log()
    server = _Server(
        uvicorn.Config(
            app,
            http=type("Protocol", (_BoundedProtocol,), {"limits": limits}),
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=round(limits.keep_alive.total_seconds()),
            timeout_graceful_shutdown=max(1, round(limits.drain.total_seconds())),
        )
    )
    server.on_started = lambda: ready(url_of(listener))
    async with asyncio.TaskGroup() as running:
        watch = running.create_task(_exit_on(stop, server))
        with contextlib.closing(listener):
            await server.serve(sockets=[listener])
        watch.cancel()


def bind(address: str) -> socket.socket:
    """
    Return a socket that listens on *address*, `host:port` or `[host]:port`.

    Raises OSError where that is impossible.
    """
    written, _, port = address.rpartition(":")
    host = written.removeprefix("[").removesuffix("]")
    family, _, _, _, place = socket.getaddrinfo(
        host or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # The protocol by name: only then does asyncio switch off Nagle's algorithm on what is accepted,
    # which makes the second part of an answer wait for the client's delayed ACK, 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """
    Return where *listener* can be reached from this host.

    >>> with bind("127.0.0.1:0") as listener:
    ...     url_of(listener).startswith("http://127.0.0.1:")
    True
    """
    name = listener.getsockname()
    if not isinstance(name, tuple):
        return f"http+unix://{name}"
    host, port = str(name[0]), int(name[1])
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - where, not what
    return f"http://[{here}]:{port}" if ":" in here else f"http://{here}:{port}"


def framing_fault(scope: Scope) -> str | None:
    """
    Say what is wrong with how a request is framed, or None.

    A proxy before us may read such a request otherwise than we do, and let somebody smuggle
    a second one (RFC 9112, 3.2 and 6.1).
    """
    names = [name for name, _ in scope["headers"]]
    if b"content-length" in names and b"transfer-encoding" in names:
        return "both Content-Length and Transfer-Encoding"
    if b"transfer-encoding" in names and scope["http_version"] == "1.0":
        return "Transfer-Encoding in HTTP/1.0"
    if b"upgrade" in names and (b"content-length" in names or b"transfer-encoding" in names):
        return "a body behind an Upgrade"  # the parser reads on in the other protocol
    if names.count(b"host") > 1 or (b"host" not in names and scope["http_version"] == "1.1"):
        return "not exactly one Host"
    return None


async def _exit_on(stop: asyncio.Event, server: "_Server") -> None:
    await stop.wait()
    server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn's server, which otherwise takes the process's signals and raises them again."""

    on_started: Callable[[], None]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_started()


class _BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits on what comes before the application."""

    limits: ClassVar[Limits]

    late: asyncio.TimerHandle | None = None  #: runs while a head is awaited
    in_head = True  #: what arrives next belongs to a head
    ended = False  #: a message ended within the bytes at hand
    head_bytes = 0  #: of an unfinished head, as they came
    lines_bytes = 0  #: of the lines that the parser has told of

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.limits.connections:
            log.warning("http_server.connection_refused", connections=self.limits.connections)
            self.transport = transport
            self.refuse(503, b"retry-after: 5\r\n")
            return
        super().connection_made(transport)
        self.expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.ended = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.in_head and not self.ended:
            self.expect_head()
            self.head_bytes += len(data)  # the parser keeps a line that has no end to itself
            if self.head_bytes > self.limits.head_bytes:
                self.refuse(431)
        elif self.cycle.response_complete and self.timeout_keep_alive_task is None:
            self.expect_head()  # it sends what nobody reads, and has stopped uvicorn's own clock

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.await_head()
        self.lines_bytes = 0
        self.expect_head()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self.count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:  # a trailer is no header (RFC 9110, 6.5.1)
            super().on_header(name, value)
        self.count(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        self.in_head = False
        self.head_arrived()
        if len(self.pipeline) >= self.limits.pipelined:  # each takes far more than its bytes
            self.refuse(503, b"retry-after: 5\r\n")
            raise _TooMuchError
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.await_head()
        self.ended = True

    def await_head(self) -> None:
        self.in_head = True
        self.head_bytes = 0

    def count(self, size: int) -> None:
        self.lines_bytes += size
        if self.lines_bytes > self.limits.head_bytes or len(self.headers) > self.limits.head_lines:
            self.refuse(431)
            raise _TooMuchError

    def expect_head(self) -> None:
        if self.late is None:
            seconds = self.limits.head_within.total_seconds()
            self.late = self.loop.call_later(seconds, self.head_is_late)

    def head_arrived(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None

    def head_is_late(self) -> None:
        self.late = None
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.expect_head()  # the one before it is still being answered
        else:
            self.refuse(408)

    def refuse(self, status: int, headers: bytes = b"") -> None:
        """Answer where no application can, and close."""
        line = b"HTTP/1.1 %d \r\n" % status
        self.transport.write(line + headers + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()


class _TooMuchError(Exception):
    """Ends the parser's work on a connection that has been refused."""


class _ToOurLog(logging.Handler):
    """Carries what uvicorn has to say into the one log."""

    def emit(self, record: logging.LogRecord) -> None:
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        say = log.error if record.levelno >= logging.ERROR else log.warning
        say("http_server.reported", message=record.getMessage(), exc_info=exc_info)


def _report_through_our_log() -> None:
    logger = logging.getLogger("uvicorn.error")
    if not any(isinstance(handler, _ToOurLog) for handler in logger.handlers):
        logger.addHandler(_ToOurLog(level=logging.WARNING))
        logger.setLevel(logging.WARNING)
        logger.propagate = False
