"""Calls over HTTP/1.1: one request, one answer read within limits, and how far it came."""

import asyncio
import re
import ssl
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import quote, urlencode

import httpx

from outbox.destinations import Request
from outbox.destinations.connecting import GuardedTransport
from outbox.egress import PUBLIC, BlockedError, Egress
from outbox.entry import bounded
from outbox.verdict import Answer, Failure, Sent

Secret = str | Callable[[], str]
"""A value, or what gives it at the moment of the call."""

BODY_LIMIT = 64 * 1024  # bytes of an answer that are read where nobody looks into it
JUDGED_BODY_LIMIT = 1024 * 1024  # bytes where success_when does
IDLE_LIMIT = 4.0  # seconds; servers close idle connections from 5 s on, and a race costs an answer
CLOSING_LIMIT = 1.0  # seconds

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
NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,  # it opened no tunnel
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
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
    _kept: list[httpx.AsyncHTTPTransport] = field(default_factory=list, init=False)

    async def send(self, request: Request, *, timeout: timedelta) -> Answer | Failure:
        """
        Make one call within *timeout* in all, however slowly the other side drips.

        A status that was read counts even if the body never ended. Reasons name what failed,
        never what was sent or received.
        """
        call = _Call(limit=JUDGED_BODY_LIMIT if self.judges_bodies else BODY_LIMIT)
        try:
            outgoing = self._build(request, timeout=timeout)
        except (ValueError, TypeError, httpx.InvalidURL) as error:
            return Failure(
                kind=Sent.NOT_SENT, reason=f"no request can be made: {type(error).__name__}"
            )

        reusable = request.idempotent
        transport = self._kept.pop() if reusable and self._kept else self._connectable()
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await call.make(transport, outgoing)
        except TimeoutError:
            return call.ended(f"no answer within {timeout.total_seconds():g} s")
        except BlockedError as error:
            return Failure(kind=Sent.NOT_SENT, reason=f"not sent: {error}", blocked=True)
        except NEVER_SENT as error:
            return call.never_sent(error)
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            return call.ended(f"no answer: {type(error).__name__}")
        else:
            return call.ended("no answer")
        finally:
            if reusable and call.complete and len(self._kept) < self.concurrency:
                self._kept.append(transport)
            else:
                await _close(transport)

    async def close(self) -> None:
        """Let go of every connection that was kept."""
        while self._kept:
            await _close(self._kept.pop())

    def _connectable(self) -> httpx.AsyncHTTPTransport:
        if self.tls is None:
            # Reading the authorities takes a while: once, and only where they are needed.
            encrypted = self.base_url.startswith("https:")
            self.tls = httpx.create_ssl_context(verify=encrypted)
        return GuardedTransport(
            self.egress,
            tls=self.tls,
            proxy=None if self.proxy is None else _secret(self.proxy),
            limits=httpx.Limits(
                max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_LIMIT
            ),
        )

    def _build(self, request: Request, *, timeout: timedelta) -> httpx.Request:
        """*request* with host, key and credentials. Raises ValueError where it cannot be sent."""
        base = httpx.URL(self.base_url)
        prefix = base.raw_path.decode("ascii").partition("?")[0].rstrip("/")
        if not _PATH.fullmatch(request.path) or not _TOKEN.fullmatch(request.method):
            raise ValueError("method or path")
        headers = {"user-agent": USER_AGENT, "accept-encoding": "identity", "accept": "*/*"}
        headers |= {name.lower(): _secret(value) for name, value in self.headers.items()}
        headers |= {name.lower(): value for name, value in request.headers.items()}
        if self.bearer is not None:
            headers["authorization"] = f"Bearer {_secret(self.bearer)}"
        if self.basic is not None:
            pair = ":".join(map(_secret, self.basic)).encode()
            headers["authorization"] = f"Basic {b64encode(pair).decode('ascii')}"
        if self.key_header is not None and request.idempotency_key is not None:
            headers[self.key_header.lower()] = request.idempotency_key
        for name, value in headers.items():
            if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
                raise ValueError("header")
        seconds = timeout.total_seconds()
        target = (prefix + self._with_query(request.path)).encode("ascii")
        whole = base if self.proxy is None else base.copy_with(raw_path=target)
        if self.proxy is not None and whole.raw_path != target:
            raise ValueError("path")  # a proxy is told the address, which cannot say this one
        return httpx.Request(
            request.method,
            whole,
            headers=[
                (name.encode("ascii"), value.strip(" \t").encode("latin-1"))
                for name, value in headers.items()
                if name not in OURS
            ],
            content=request.body,
            extensions={
                # The bytes as they were frozen: nothing normalises them once more.
                **({} if self.proxy is not None else {"target": target}),
                "timeout": {
                    # Two steps, TCP and TLS: both must have given up by themselves before the
                    # time for the whole call is over. Cut off from outside, a handshake would
                    # leave its socket open, and nobody would know that nothing was sent.
                    "connect": seconds / 2.1,
                    "read": seconds,
                    "write": seconds,
                    "pool": seconds,
                },
                **({} if self.point is None else {"trace": _Traced(self.point)}),
            },
        )

    def _with_query(self, path: str) -> str:
        if not self.query:
            return path
        values = {name: _secret(value) for name, value in self.query.items()}
        joint = "&" if "?" in path else "?"
        return f"{path}{joint}{urlencode(values, quote_via=quote, safe='')}"


@dataclass(frozen=True, slots=True)
class _Traced:
    """Names the places within a request, as httpcore tells of them."""

    point: Callable[[str], None]

    async def __call__(self, event: str, _facts: Mapping[str, object]) -> None:
        match event:
            case "http11.send_request_body.started":
                self.point(WITHIN[0])
            case "http11.receive_response_headers.started":
                self.point(WITHIN[1])


@dataclass(slots=True, kw_only=True)
class _Call:
    """How far one call has come."""

    limit: int
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytearray = field(default_factory=bytearray)
    complete: bool = False

    async def make(self, transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> None:
        response = await transport.handle_async_request(request)
        self.headers = tuple(
            (name.lower(), value) for name, value in response.headers.multi_items()
        )
        self.status = response.status_code
        with suppress(httpx.HTTPError, httpx.StreamError, OSError):  # broken off: not complete
            async for chunk in response.aiter_raw():
                self.body += chunk[: self.limit + 1 - len(self.body)]
                if len(self.body) > self.limit:
                    return
            await response.aclose()
            self.complete = True

    def ended(self, without_answer: str) -> Answer | Failure:
        """What came of the call; *without_answer* says what ended it if nothing was answered."""
        if self.status is None:
            return Failure(kind=Sent.MAYBE_SENT, reason=without_answer)
        body = _inflated(bytes(self.body), self.headers, limit=self.limit)
        return Answer(
            status=self.status,
            headers=self.headers,
            body=body or b"",
            complete=self.complete and body is not None,
        )

    def never_sent(self, error: Exception) -> Failure:
        # A protocol error of ours quotes the header that is wrong, which may be a secret one.
        said = str(error) if isinstance(error, httpx.ConnectError) else ""
        what = f"not sent: {type(error).__name__}"
        return Failure(kind=Sent.NOT_SENT, reason=bounded(f"{what}: {said}" if said else what))


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


async def _close(transport: httpx.AsyncHTTPTransport) -> None:
    with suppress(httpx.HTTPError, OSError, TimeoutError):
        async with asyncio.timeout(CLOSING_LIMIT):
            await transport.aclose()
