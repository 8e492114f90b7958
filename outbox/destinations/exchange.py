"""
One HTTP/1.1 exchange over a connection of our own: what was written, and what was read of it.

The parser is llhttp (httptools); connections are asyncio's. No client library lies between: none
that is fast says for certain whether anything was sent, repeats nothing by itself, and sends the
very bytes that were frozen. docs/dependencies.md has what was measured.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from socket import socket
from typing import Any

import httptools

HEAD_LIMIT = 100 * 1024  # bytes of an answer before its body, 1xx answers among them
PIECE = 64 * 1024  # bytes of a request that are written at once

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request as it is written, to the byte."""

    head: bytes  #: request line and headers, with the empty line
    body: bytes
    body_limit: int  #: bytes of the answer's body that are read


async def opened(its_socket: socket, *, tls: ssl.SSLContext | None, host: str) -> "Connection":
    """
    A connection over *its_socket*, which is connected; with *tls*, to who proves to be *host*.

    Takes the socket over: it is closed if this raises, as it does with OSError (ssl.SSLError
    among them) where the handshake fails. Nothing of any request has been sent by then.
    """
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(
            Connection,
            sock=its_socket,
            ssl=tls,
            server_hostname=host if tls is not None else None,
        )
    except BaseException:
        its_socket.close()
        raise
    return connection


class Connection(asyncio.Protocol):
    """A connection on which requests go out one after the other, never two at once."""

    def __init__(self) -> None:
        self.began = False  #: whether any byte of the current request may have been written
        self._transport: asyncio.Transport | None = None
        self._exchange: _Exchange | None = None
        self._spoilt = False
        self._idle_since = 0.0

    async def exchange(
        self, outgoing: Outgoing, *, point: Callable[[str], None], points: tuple[str, str]
    ) -> "_Exchange":
        """
        Write *outgoing* and read until its answer is over, broken off, or larger than is read.

        Never raises for what the other side does. Cancelled, what was read so far is still in
        `current`. *point* is told the first of *points* before the body is written, and the
        second when all is.
        """
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._exchange = current = _Exchange(ended=loop.create_future(), limit=outgoing.body_limit)
        self.began = True
        if outgoing.body:
            self._transport.write(outgoing.head)
            point(points[0])
            self._transport.write(outgoing.body)
        else:
            self._transport.write(outgoing.head)
            point(points[0])
        point(points[1])
        await current.ended
        self._idle_since = loop.time()
        return current

    @property
    def current(self) -> "_Exchange | None":
        """The exchange that was begun last."""
        return self._exchange

    def may_be_kept(self) -> bool:
        """Whether another request may follow on this connection."""
        current = self._exchange
        return (
            not self._spoilt
            and not self._is_closing()
            and (current is None or (current.complete and current.keeps_alive))
        )

    def is_fresh(self, *, idle_limit: float) -> bool:
        """Whether it can be used again now: nothing has come, and it was not idle for long."""
        idle = asyncio.get_running_loop().time() - self._idle_since
        return self.may_be_kept() and idle < idle_limit

    def close(self) -> None:
        """Let go of it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        current = self._exchange
        if current is None or current.ended.done():
            self._spoilt = True  # nobody has asked: whoever speaks now would answer the next
            self.close()
            return
        current.feed(data)
        if current.ended.done() and current.spoilt:
            self._spoilt = True
            self.close()

    def eof_received(self) -> bool:
        if self._exchange is not None:
            self._exchange.over()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._spoilt = True
        if self._exchange is not None:
            self._exchange.over(error=exc)


class _Exchange:
    """One answer as it is read; the callbacks are httptools'."""

    def __init__(self, *, ended: asyncio.Future[None], limit: int) -> None:
        self.ended = ended
        self.status: int | None = None  #: of the final answer, once its head is whole
        self.headers: Headers = ()
        self.body = bytearray()
        self.complete = False  #: the answer has come to its end
        self.keeps_alive = False
        self.spoilt = False  #: more came than the answer, or what cannot be understood
        self.error: str | None = None  #: what was wrong, by its kind
        self._limit = limit
        self._head_size = 0
        self._fields: list[tuple[bytes, bytes]] = []
        self._in_head = True
        self._parser = httptools.HttpResponseParser(self)
        # What is told is worth more than how well: the connection is not used again for it.
        self._parser.set_dangerous_leniencies(
            lenient_chunked_length=True, lenient_optional_cr_before_lf=True
        )

    def feed(self, data: bytes) -> None:
        """Read on; `ended` is done when nothing more is wanted."""
        if self._in_head:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._spoil("Upgraded")
        except httptools.HttpParserError as error:
            self._spoil(type(error).__name__)
        if self._in_head and self._head_size > HEAD_LIMIT:
            self._spoil("HeadTooLarge")

    def over(self, *, error: Exception | None = None) -> None:
        """The other side says no more."""
        if self.ended.done():
            return
        if self.status is not None and not self._is_delimited() and error is None:
            self.complete = True  # such a body ends with its connection (RFC 9112, 6.3)
        elif self.error is None:
            self.error = type(error).__name__ if error is not None else "Closed"
        self._end()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a trailer, which nobody looks at
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._fields.clear()  # only an announcement (RFC 9110, 15.2)
            return
        self._in_head = False
        self.headers = tuple((_text(name).lower(), _text(value)) for name, value in self._fields)
        self.status = status

    def on_body(self, body: bytes) -> None:
        self.body += body[: self._limit + 1 - len(self.body)]
        if len(self.body) > self._limit:
            self._spoil("BodyTooLarge")

    def on_message_begin(self) -> None:
        if self.complete:
            self.spoilt = True  # one answer too many

    def on_message_complete(self) -> None:
        if self.status is None or self.complete:
            return
        self.complete = True
        names = [name for name, _ in self.headers]
        doubtful = "transfer-encoding" in names and "content-length" in names
        self.keeps_alive = self._parser.should_keep_alive() and not doubtful
        self._end()

    def _is_delimited(self) -> bool:
        return any(name in ("content-length", "transfer-encoding") for name, _ in self.headers)

    def _spoil(self, why: str) -> None:
        self.spoilt = True
        if not self.complete:
            self.error = self.error or why
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def as_sent(method: str, target: bytes, headers: list[tuple[str, str]]) -> bytes:
    """The head of a request. Every part has been found to be fit to be sent."""
    lines: list[Any] = [method.encode("ascii") + b" " + target + b" HTTP/1.1"]
    lines += [f"{name}: {value}".encode("latin-1") for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"
