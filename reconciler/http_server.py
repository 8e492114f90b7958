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

from reconciler.accepting import Acceptor
from reconciler.lifecycle import pause
from reconciler.listening import Listeners

log = structlog.get_logger()

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
    connections: int
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
    last_words: timedelta = timedelta(seconds=1)
    """How long a quiet connection may still send a request once we stop."""


async def run(
    app: App,
    listeners: Listeners,
    *,
    limits: Limits,
    stop: asyncio.Event,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """
    Serve *app* on *listeners* until *stop* is set, then let requests under way finish.

    *ready* is called with our URL as soon as connections are accepted. From *stop* on no more are
    accepted; each open one gets the answers to what it has asked, or asks within `last_words`, and
    is closed. What is not finished after `drain` is cancelled.
    """
    _report_through_our_log()
    config = uvicorn.Config(
        app,
        http=type("Protocol", (_BoundedProtocol,), {"limits": limits}),
        ws="none",
        lifespan="off",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=round(limits.keep_alive.total_seconds()),
        timeout_graceful_shutdown=max(1, round(limits.drain.total_seconds())),
    )
    with contextlib.closing(listeners):
        await _Server(config, listeners, stop, ready).serve()


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


class _Server(uvicorn.Server):
    """uvicorn's server, but for signals, accepting and stopping, which are ours."""

    def __init__(
        self,
        config: uvicorn.Config,
        listeners: Listeners,
        stop: asyncio.Event,
        ready: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self.servers = []  # asyncio's, which drop what they have accepted when they are closed
        self._listeners = listeners
        self._stop = stop
        self._ready = ready
        self._acceptor = Acceptor(listeners, self._protocol)

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state={}
        )
        return made

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        del sockets
        self._acceptor.start()
        self.started = True
        self._ready(self._listeners.url)

    async def main_loop(self) -> None:
        while not self._stop.is_set():
            await self.on_tick(0)  # renews the Date header
            await pause(self._stop, timedelta(seconds=1))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._acceptor.stop()
        await super().shutdown(sockets)


class _BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits on what comes before the application."""

    limits: ClassVar[Limits]

    late: asyncio.TimerHandle | None = None  #: runs while a head is awaited
    in_head = True  #: what arrives next belongs to a head
    ended = False  #: a message ended within the bytes at hand
    head_bytes = 0  #: of an unfinished head, as they came
    lines_bytes = 0  #: of the lines that the parser has told of
    stopping = False  #: the next answer is the last

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

    def eof_received(self) -> bool:  # type: ignore[override]
        """
        Whether the way back stays open: a client that has sent its whole request and closed its
        side of the connection gets its answer.
        """
        if not self.in_head or self.cycle is None or self.cycle.response_complete:
            return False
        self.cycle.keep_alive = False
        return True

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
        if self.stopping:
            self.cycle.keep_alive = False

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

    def shutdown(self) -> None:
        """
        Make the answer under way, or the next, the last.

        A request that its client has sent while we stopped would meet a reset if we closed
        at once, and no client may repeat a POST by itself.
        """
        self.stopping = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(self.limits.last_words.total_seconds(), self.close_if_quiet)
        else:
            self.cycle.keep_alive = False

    def close_if_quiet(self) -> None:
        """Close, unless a head has begun, which has its own time, or is being answered."""
        if self.head_bytes == 0 and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

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
