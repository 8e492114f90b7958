"""
One HTTP/1.1 exchange over a connection of our own: what was written, and what was read of it.

The parser is llhttp (httptools); connections are asyncio's. Of the client libraries that are fast
none says for certain whether anything was sent, repeats nothing by itself, and sends the very
bytes that were frozen: `docs/dependencies.md` has what was measured.
"""

import asyncio
import select
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from socket import socket
from typing import NamedTuple

import httptools

HEAD_LIMIT = 100 * 1024  # bytes of an answer before its body, announcements (1xx) among them


async def opened(its_socket: socket, *, tls: ssl.SSLContext | None, host: str) -> "Connection":
    """
    A connection over *its_socket*, which is connected; with *tls*, to who proves to be *host*.

    Takes the socket over, and closes it where this raises: OSError (ssl.SSLError is one) where
    the handshake fails. Nothing of any request has been sent by then.
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


class Outgoing(NamedTuple):
    """A request as it is sent, to the byte; every part is fit for that."""

    method: str
    target: bytes
    own: Sequence[tuple[str, str]]  #: headers of this request alone
    shared: "Shared"
    body: bytes

    @property
    def headers(self) -> list[tuple[str, str]]:
        return [*self.own, *self.shared.headers]

    def head(self) -> bytes:
        first = self.method.encode("ascii") + b" " + self.target + b" HTTP/1.1\r\n"
        return first + lines_of(self.own) + self.shared.lines + b"\r\n"


class Shared(NamedTuple):
    """Headers that many requests have alike, and how they are written."""

    headers: Sequence[tuple[str, str]]
    lines: bytes


def lines_of(headers: Iterable[tuple[str, str]]) -> bytes:
    """*headers* as they are written, each in a line of its own."""
    return "".join([f"{name}: {value}\r\n" for name, value in headers]).encode("latin-1")


@dataclass(slots=True, kw_only=True)
class Heard:
    """What has been read of an answer so far."""

    limit: int  #: bytes of its body that are wanted
    status: int | None = None  #: once its head is whole
    headers: tuple[tuple[str, str], ...] = ()
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False  #: it came to its own end
    error: str | None = None  #: what ended it, by its kind

    def add(self, piece: bytes) -> bool:
        """Take a piece of the body; whether there is room for more."""
        self.body += piece[: self.limit + 1 - len(self.body)]
        return len(self.body) <= self.limit


class Connection(asyncio.Protocol):
    """A connection on which requests go out one after the other, never two at once."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reading: _Reading | None = None
        self._spoilt = False
        self._idle_since = 0.0
        self._news = select.poll()

    async def exchange(
        self,
        outgoing: Outgoing,
        heard: Heard,
        *,
        half_sent: Callable[[], None] | None,
        sent: Callable[[], None] | None,
    ) -> None:
        """
        Write *outgoing* and read what is *heard*, until that is over, broken off or too much.

        Never raises for what the other side does. *half_sent* is called before the body is
        written, *sent* when all is.
        """
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._reading = reading = _Reading(heard, ended=loop.create_future())
        if self._transport.is_closing():
            reading.over()
        if half_sent is None:
            self._transport.write(outgoing.head() + outgoing.body)
        else:
            self._transport.write(outgoing.head())
            half_sent()
            self._transport.write(outgoing.body)
        if sent is not None:
            sent()
        await reading.ended
        self._idle_since = loop.time()

    def may_be_kept(self) -> bool:
        """Whether another request may follow on this connection."""
        over = self._reading is None or (self._reading.ended.done() and self._reading.keeps_alive)
        return over and not self._spoilt and not self._is_closing()

    def is_fresh(self, *, idle_limit: float) -> bool:
        """Whether it can be used now: it is as it was left, and that is not long ago."""
        idle = asyncio.get_running_loop().time() - self._idle_since
        return self.may_be_kept() and idle < idle_limit and not self._has_news()

    async def close(self) -> None:
        """Let go of it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _has_news(self) -> bool:
        """Whether something came that the loop has not got round to: its end, most likely."""
        return bool(self._news.poll(0))

    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._news.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        reading = self._reading
        if reading is not None and not reading.ended.done():
            reading.feed(data)
            if not reading.spoilt:
                return
        # Who speaks unasked would answer the next request; and nobody wants the rest of a flood.
        self._spoilt = True
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool:
        if self._reading is not None:
            self._reading.over()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._spoilt = True
        if self._reading is not None:
            self._reading.over(error=exc)


class _Reading:
    """One answer as it is read; the callbacks are httptools'."""

    def __init__(self, heard: Heard, *, ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self.keeps_alive = False
        self.spoilt = False  #: more came than the answer, too much, or what makes no sense
        self._heard = heard
        self._head_size = 0
        self._fields: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        # As tolerant as other clients: that it was done should not be overlooked for a line end.
        self._parser.set_dangerous_leniencies(
            lenient_chunked_length=True, lenient_optional_cr_before_lf=True
        )

    def feed(self, data: bytes) -> None:
        """Read on; `ended` is done when nothing more is wanted."""
        if self._heard.status is None:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._spoil("Upgraded")
        except httptools.HttpParserError as error:
            self._spoil(type(error).__name__)
        if self._heard.status is None and self._head_size > HEAD_LIMIT:
            self._spoil("HeadTooLarge")

    def over(self, *, error: Exception | None = None) -> None:
        """The other side says no more."""
        if self.ended.done():
            return
        heard = self._heard
        if heard.status is not None and error is None and not self._is_delimited():
            heard.complete = True  # such a body ends with its connection (RFC 9112, 6.3)
        else:
            heard.error = "the connection was closed" if error is None else type(error).__name__
        self._end()

    def on_message_begin(self) -> None:
        if self._heard.complete:
            self.spoilt = True  # one answer too many

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._heard.status is None:  # else a trailer, which nobody looks at
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._fields.clear()  # an announcement, no answer (RFC 9110, 15.2)
            return
        if self._heard.status is None:
            fields = self._fields
            self._heard.headers = tuple((_text(one).lower(), _text(value)) for one, value in fields)
            self._heard.status = status

    def on_body(self, body: bytes) -> None:
        if not self._heard.complete and not self._heard.add(body):
            self._spoil("BodyTooLarge")

    def on_message_complete(self) -> None:
        if self._heard.status is None or self.ended.done():
            return
        self._heard.complete = True
        framings = {name for name, _ in self._heard.headers if name in _FRAMING}
        self.keeps_alive = self._parser.should_keep_alive() and len(framings) < len(_FRAMING)
        self._end()

    def _is_delimited(self) -> bool:
        return any(name in _FRAMING for name, _ in self._heard.headers)

    def _spoil(self, why: str) -> None:
        self.spoilt = True
        if not self._heard.complete:
            self._heard.error = why
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


_FRAMING = frozenset({"content-length", "transfer-encoding"})


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
