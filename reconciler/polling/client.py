"""The client of a sender's API: bounded in time, size, rate and patience; one origin only."""

import asyncio
import random
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

import httpx
import structlog
import tenacity
from tenacity.stop import stop_base

from outbox.destinations.connecting import GuardedTransport
from outbox.egress import BlockedError, Listener
from reconciler.egress import egress_of
from reconciler.polling.addresses import same_origin
from reconciler.polling.errors import AwayError, PageBrokenError, RefusedError
from reconciler.polling.rate import Rate, parse_rate
from reconciler.polling.retry_after import parse_retry_after
from reconciler.settings.models import ApiSettings
from reconciler.settings.secrets import Secrets

ATTEMPTS = 4
BACKOFF_BASE = 0.5  #: seconds; the first wait is up to this long, each further one up to twice
PATIENCE = 15.0  #: seconds; a longer Retry-After ends the run, which comes back when it is over
CONNECTIONS = 16

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A whole answer: its body read to the end and inflated."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str
    link_next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What the client takes from the world: time, sleep, chance and the wire."""

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random
    transport: httpx.AsyncBaseTransport | None = None


class _TryAgainError(Exception):
    """One attempt failed in a way that another may not."""

    def __init__(self, reason: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Api:
    """
    One sender's API. All that read it in this process share its rate.

    `fetch` answers or raises: AwayError after bounded attempts, PageBrokenError for an answer
    that is too large or broken off. Statuses below 500 but 429 are the caller's to judge.
    """

    def __init__(
        self,
        settings: ApiSettings,
        *,
        headers: Mapping[str, str],
        proxy: str | None = None,
        listeners: tuple[Listener, ...] = (),
        outside: Outside | None = None,
    ) -> None:
        self._settings = settings
        self._headers = {"Accept": "application/json", "Accept-Encoding": "gzip", **headers}
        self._proxy = proxy
        self._egress = egress_of(settings.allow_private, listeners)
        self._outside = outside or Outside()
        self._client: httpx.AsyncClient | None = None
        self._rate: Rate | None = None
        if settings.rate is not None:
            count, period = parse_rate(settings.rate)
            self._rate = Rate(
                count=count,
                period=period,
                clock=self._outside.clock,
                sleep=self._outside.sleep,
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def fetch(self, target: str, query: Mapping[str, str] | None = None) -> Response:
        """
        GET *target*: a path below `base_url`, or a whole URL of the same origin.

        Raises RefusedError for redirects, which are never followed.
        """
        url = self._url(target)
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_TryAgainError),
            stop=tenacity.stop_any(tenacity.stop_after_attempt(ATTEMPTS), _AskedForTooLong()),
            wait=self._wait,
            sleep=self._outside.sleep,
            reraise=True,
        )
        try:
            return await attempts(self._attempt, url, query)
        except _TryAgainError as error:
            raise AwayError(str(error), retry_after=error.retry_after) from error

    def _url(self, target: str) -> httpx.URL:
        """Judge the address with the very parser that will connect to it."""
        base = self._settings.base_url
        try:
            if "://" not in target:
                return httpx.URL(f"{base.rstrip('/')}/{target.lstrip('/')}")
            url = httpx.URL(same_origin(base, target))
        except httpx.InvalidURL as error:
            raise PageBrokenError("the address is no URL") from error
        if _origin(url) != _origin(httpx.URL(base)):
            raise PageBrokenError("the address is on another origin; credentials stay here")
        return url

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Wait as long as the sender asks, else exponentially with full jitter."""
        jitter = self._outside.draw() * BACKOFF_BASE * 2.0 ** (state.attempt_number - 1)
        asked = _asked_for(state)
        return jitter if asked is None else asked.total_seconds() + jitter

    async def _attempt(self, url: httpx.URL, query: Mapping[str, str] | None) -> Response:
        if self._rate is not None:
            await self._rate.take()
        try:
            async with asyncio.timeout(self._settings.timeout.total_seconds()):
                response = await self._send(url, query)
        except TimeoutError as error:
            seconds = self._settings.timeout.total_seconds()
            raise _TryAgainError(f"no whole answer within {seconds:g}s") from error
        except httpx.PoolTimeout as error:  # slots leak where calls are cancelled: start afresh
            await self.aclose()
            raise _TryAgainError("no connection was free") from error
        except BlockedError as error:  # until somebody changes the configuration, or the DNS
            raise AwayError(f"not asked: {error}") from error
        except httpx.TransportError as error:
            raise _TryAgainError(f"no answer: {type(error).__name__}") from error
        if response.status == 429 or response.status >= 500:
            asked = parse_retry_after(response.headers, now=self._outside.wall_clock())
            raise _TryAgainError(f"the sender answered {response.status}", retry_after=asked)
        if 300 <= response.status < 400:
            raise RefusedError(
                f"the sender answered {response.status}; redirects are not followed",
                status=response.status,
            )
        return response

    def _transport(self) -> httpx.AsyncBaseTransport:
        """Connections that only lead where the guard lets them."""
        return GuardedTransport(
            self._egress,
            tls=httpx.create_ssl_context(
                verify=self._settings.base_url.startswith("https:"), trust_env=False
            ),
            proxy=self._proxy,
            limits=httpx.Limits(max_connections=CONNECTIONS),
        )

    async def _send(self, url: httpx.URL, query: Mapping[str, str] | None) -> Response:
        if self._client is None:
            self._client = httpx.AsyncClient(
                transport=self._outside.transport or self._transport(),
                timeout=self._settings.timeout.total_seconds(),
                trust_env=False,
                follow_redirects=False,
                http2=False,
            )
        # not `params=`: that would cut off a query that the address has already
        whole = url.copy_merge_params(dict(query)) if query else url
        request = self._client.build_request("GET", whole, headers=self._headers)
        response = await self._client.send(request, stream=True)
        try:
            body = await _read(response, limit=self._settings.max_response)
        finally:
            await response.aclose()
        return Response(
            status=response.status_code,
            headers={name.lower(): value for name, value in response.headers.items()},
            body=body,
            url=str(response.url),
            link_next=response.links.get("next", {}).get("url"),
        )


def compile_api(
    settings: ApiSettings,
    secrets: Secrets,
    *,
    listeners: tuple[Listener, ...] = (),
    outside: Outside | None = None,
) -> Api:
    """Build the client that the configuration describes; secrets live in its headers only."""
    headers = {name: secrets.header(value) for name, value in settings.headers.items()}
    if settings.bearer is not None:
        headers["Authorization"] = f"Bearer {secrets.resolve(settings.bearer)}"
    proxy = secrets.header(settings.proxy) if settings.proxy else None
    return Api(settings, headers=headers, proxy=proxy, listeners=listeners, outside=outside)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _asked_for(state: tenacity.RetryCallState) -> timedelta | None:
    error = state.outcome.exception() if state.outcome else None
    return error.retry_after if isinstance(error, _TryAgainError) else None


class _AskedForTooLong(stop_base):
    """Whether the sender asks for more than this process waits: the schedule does, then."""

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        asked = _asked_for(retry_state)
        return asked is not None and asked.total_seconds() > PATIENCE


async def _read(response: httpx.Response, *, limit: int) -> bytes:
    """
    Read and inflate the body; neither what is sent nor what it becomes exceeds *limit* bytes.

    Inflating is done here, piece by piece: httpx would hand over whatever a bomb becomes.
    """
    if response.status_code == 429 or response.status_code >= 300:
        return b""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        pieces = response.aiter_raw()
    elif encoding in ("gzip", "x-gzip"):
        pieces = _inflated(response.aiter_raw(), limit=limit)
    else:
        raise PageBrokenError("the answer has an encoding that was not asked for")
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > limit:
            raise PageBrokenError(f"the answer is larger than {limit} bytes")
    return bytes(body)


async def _inflated(pieces: AsyncIterator[bytes], *, limit: int) -> AsyncIterator[bytes]:
    inflate = zlib.decompressobj(wbits=31)
    sent = 0
    try:
        async for piece in pieces:
            sent += len(piece)
            if sent > limit:  # members that hold nothing make a body of any length
                raise PageBrokenError(f"the answer is larger than {limit} bytes")
            left = piece
            while left:
                if inflate.eof:  # gzip may have several members (RFC 1952 section 2.2)
                    inflate = zlib.decompressobj(wbits=31)
                yield inflate.decompress(left, limit + 1)
                left = inflate.unconsumed_tail or inflate.unused_data
    except zlib.error as error:
        raise PageBrokenError("the answer is no whole gzip") from error
    if not inflate.eof:
        raise PageBrokenError("the answer is no whole gzip")
