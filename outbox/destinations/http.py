"""Calls over HTTP/1.1: one request, one answer read within limits, and how far it came."""

import asyncio
import re
import ssl
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache, partial
from urllib.parse import quote, urlencode

import httpx

from outbox.destinations import Request
from outbox.destinations.connecting import opener
from outbox.destinations.exchange import Connection, Heard, Outgoing, Shared, lines_of, opened
from outbox.destinations.proxied import NotSentError, ProxiedLine, proxied
from outbox.egress import PUBLIC, BlockedError, Egress
from outbox.entry import bounded
from outbox.verdict import Answer, Failure, Sent

Secret = str | Callable[[], str]
"""A value, or what gives it at the moment of the call."""

BODY_LIMIT = 64 * 1024  # bytes of an answer that are read where nobody looks into it
JUDGED_BODY_LIMIT = 1024 * 1024  # bytes where success_when does
IDLE_LIMIT = 4.0  # seconds; servers close idle connections from 5 s on, and a race costs an answer

WITHIN = ("relay-half-sent", "relay-sent")  # crash points inside a request

USER_AGENT = "webhook-reconciler"

# Who sends a message and how it is framed is ours to say, at send time.
OURS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_PATH = re.compile(r"/[!-~]*")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


@dataclass(slots=True, kw_only=True)
class HttpDestination:
    """
    The way to one HTTP destination.

    One connection a call, kept for the next one only if the call before it ended cleanly, and
    only for calls that the destination knows to be the same when they come twice: a kept
    connection may be closed from the other side just as we write, and nobody could say
    whether that call was heard. Never follows a redirect, keeps no cookies, takes no proxy or
    credential from the environment.
    """

    base_url: str
    key_header: str | None
    bearer: Secret | None = None
    basic: tuple[Secret, Secret] | None = None  #: user and password (RFC 7617)
    headers: Mapping[str, Secret] = field(default_factory=dict)
    query: Mapping[str, Secret] = field(default_factory=dict)  #: of every call; never stored
    concurrency: int  #: how many connections are kept at the most
    judges_bodies: bool = False  #: success_when is said: read more of the answer
    egress: Egress = PUBLIC
    proxy: Secret | None = None
    tls: ssl.SSLContext | None = None
    point: Callable[[str], None] | None = None  #: told how far a call is; only for tests of crashes
    _kept: list[Connection] = field(default_factory=list, init=False)

    async def send(self, request: Request, *, timeout: timedelta) -> Answer | Failure:
        """
        Make one call within *timeout* in all, however slowly the other side drips.

        A status that was read counts even if the body never ended. Reasons name what failed,
        never what was sent or received.
        """
        heard = Heard(limit=JUDGED_BODY_LIMIT if self.judges_bodies else BODY_LIMIT)
        try:
            outgoing = self._build(request)
        except (ValueError, TypeError, httpx.InvalidURL) as error:
            return _unsendable(error)

        seconds, reusable = timeout.total_seconds(), request.idempotent
        line: Connection | ProxiedLine | None = await self._fresh() if reusable else None
        try:
            async with asyncio.timeout(seconds):
                if line is None:
                    line = await self._connected(seconds)
                await line.exchange(
                    outgoing, heard, half_sent=self._at(WITHIN[0]), sent=self._at(WITHIN[1])
                )
        except TimeoutError:
            late = f"no answer within {seconds:g} s"
            return _not_sent("ConnectTimeout") if line is None else _ended(heard, late)
        except BlockedError as error:
            return Failure(kind=Sent.NOT_SENT, reason=f"not sent: {error}", blocked=True)
        except NotSentError as error:
            return _not_sent(str(error))
        except ValueError as error:
            return _unsendable(error)
        else:
            return _ended(heard, f"no answer: {heard.error}")
        finally:
            if line is not None and not (reusable and self._keep(line)):
                await line.close()

    async def close(self) -> None:
        """Let go of every connection that was kept."""
        while self._kept:
            await self._kept.pop().close()

    def _keep(self, line: Connection | ProxiedLine) -> bool:
        """Keep *line* for another call, where that is safe and there is room."""
        if not isinstance(line, Connection) or not line.may_be_kept():
            return False
        if len(self._kept) >= self.concurrency:
            return False
        self._kept.append(line)
        return True

    async def _fresh(self) -> Connection | None:
        """A kept connection that can be used; those that cannot are let go of."""
        while self._kept:
            line = self._kept.pop()
            if line.is_fresh(idle_limit=IDLE_LIMIT):
                return line
            await line.close()
        return None

    async def _connected(self, seconds: float) -> Connection | ProxiedLine:
        """A new connection. Raises BlockedError, NotSentError; nothing has been sent by then."""
        base = _place(self.base_url)
        encrypted = base.scheme == "https"
        if self.tls is None:
            # Reading the authorities takes a while: once, and only where they are needed.
            self.tls = httpx.create_ssl_context(verify=encrypted)
            self.tls.set_alpn_protocols(["http/1.1"])
        if self.proxy is not None:
            told = _secret(self.proxy)
            return proxied(base, told, egress=self.egress, tls=self.tls, seconds=seconds)
        host = base.raw_host.decode("ascii")
        port = base.port or (443 if encrypted else 80)
        try:
            return await opened(
                await opener(self.egress)(host, port, seconds),
                tls=self.tls if encrypted else None,
                host=host,
            )
        except TimeoutError:
            raise NotSentError("ConnectTimeout") from None
        except OSError as error:  # a failed handshake is one too
            raise NotSentError(f"ConnectError: {error}") from None

    def _at(self, point: str) -> Callable[[], None] | None:
        return None if self.point is None else partial(self.point, point)

    def _build(self, request: Request) -> Outgoing:
        """*request* with host, key and credentials. Raises ValueError where it cannot be sent."""
        host, prefix = _said_of(self.base_url)
        if not _PATH.fullmatch(request.path) or not _TOKEN.fullmatch(request.method):
            raise ValueError("method or path")
        own = [("host", host)]
        if request.body or request.method in ("POST", "PUT", "PATCH"):
            own.append(("content-length", str(len(request.body))))
        without = None  # whoever else says this header, the key takes its place
        if self.key_header is not None and request.idempotency_key is not None:
            without = self.key_header.lower()
            own += _fit(without, request.idempotency_key)
        return Outgoing(
            method=request.method,
            # The bytes as they were frozen: nothing normalises them once more.
            target=(prefix + self._with_query(request.path)).encode("ascii"),
            own=own,
            shared=_shared(
                tuple((name, _secret(value)) for name, value in self.headers.items()),
                tuple(request.headers.items()),
                self._authorization(),
                without,
            ),
            body=request.body,
        )

    def _authorization(self) -> str | None:
        if self.basic is not None:
            pair = ":".join(map(_secret, self.basic)).encode()
            return f"Basic {b64encode(pair).decode('ascii')}"
        return None if self.bearer is None else f"Bearer {_secret(self.bearer)}"

    def _with_query(self, path: str) -> str:
        if not self.query:
            return path
        values = {name: _secret(value) for name, value in self.query.items()}
        joint = "&" if "?" in path else "?"
        return f"{path}{joint}{urlencode(values, quote_via=quote, safe='')}"


@lru_cache(maxsize=256)
def _place(base_url: str) -> httpx.URL:
    return httpx.URL(base_url)


@lru_cache(maxsize=256)
def _said_of(base_url: str) -> tuple[str, str]:
    """What stands in `Host`, and before every path. Raises httpx.InvalidURL."""
    base = _place(base_url)
    prefix = base.raw_path.decode("ascii").partition("?")[0].rstrip("/")
    return base.netloc.decode("ascii"), prefix


@lru_cache(maxsize=256)
def _shared(
    destination: tuple[tuple[str, str], ...],
    request: tuple[tuple[str, str], ...],
    authorization: str | None,
    without: str | None,
) -> Shared:
    """
    What the headers of a destination and those of a request come to, which go before.

    Those of one effect are mostly the same. Raises ValueError, TypeError where one cannot be sent.
    """
    said = {"user-agent": USER_AGENT, "accept-encoding": "identity", "accept": "*/*"}
    said |= {name.lower(): value for name, value in (*destination, *request)}
    if authorization is not None:
        said["authorization"] = authorization
    if without is not None:
        said.pop(without, None)
    headers = [one for name, value in said.items() for one in _fit(name, value)]
    return Shared(headers=headers, lines=lines_of(headers))


def _fit(name: str, value: str) -> list[tuple[str, str]]:
    """The header, unless it is not theirs to say. Raises ValueError, TypeError: it is none."""
    if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise ValueError("header")
    return [] if name in OURS else [(name, value.strip(" \t"))]


def _ended(heard: Heard, without_answer: str) -> Answer | Failure:
    """What came of a call; *without_answer* says what ended it if nothing was answered."""
    if heard.status is None:
        return Failure(kind=Sent.MAYBE_SENT, reason=without_answer)
    body = _inflated(bytes(heard.body), heard.headers, limit=heard.limit)
    return Answer(
        status=heard.status,
        headers=heard.headers,
        body=body or b"",
        complete=heard.complete and body is not None,
    )


def _not_sent(why: str) -> Failure:
    return Failure(kind=Sent.NOT_SENT, reason=bounded(f"not sent: {why}"))


def _unsendable(error: Exception) -> Failure:
    kind = type(error).__name__
    return Failure(kind=Sent.NOT_SENT, reason=f"no request can be made: {kind}")


def _secret(value: Secret) -> str:
    return value if isinstance(value, str) else value()


def _inflated(body: bytes, headers: tuple[tuple[str, str], ...], *, limit: int) -> bytes | None:
    """*body* without the compression that we did not ask for; None if broken or too large."""
    coding = ",".join(value for name, value in headers if name == "content-encoding").lower()
    if coding.strip() in {"", "identity"}:
        return body
    if coding.strip() not in {"gzip", "x-gzip", "deflate"}:
        return None
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        inflated = inflater.decompress(body, limit)
    except zlib.error:
        return None
    return inflated if inflater.eof else None
