"""Calls through a proxy: httpx's own transport, as few of them are made."""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import httpx

from outbox.destinations import CLOSING_LIMIT
from outbox.destinations.connecting import GuardedTransport
from outbox.destinations.exchange import Heard, Outgoing
from outbox.egress import Egress

NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,  # it opened no tunnel
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)


class NotSentError(Exception):
    """The connection through the proxy came to nothing; says why, and no secret."""


@dataclass(slots=True, kw_only=True)
class ProxiedLine:
    """
    A connection through a proxy, for one request.

    It is not kept: the parser behind it keeps whatever came after an answer, and would take that
    for the answer to the next request.
    """

    base: httpx.URL
    seconds: float  #: that one call may take
    transport: httpx.AsyncHTTPTransport

    async def exchange(
        self,
        outgoing: Outgoing,
        heard: Heard,
        *,
        half_sent: Callable[[], None] | None,
        sent: Callable[[], None] | None,
    ) -> None:
        """
        Send *outgoing* and read what is *heard*.

        Raises NotSentError, BlockedError, ValueError where the address cannot be told to a proxy.
        """
        request = self._request(outgoing, _Traced(half_sent, sent))
        try:
            response = await self.transport.handle_async_request(request)
            heard.headers = tuple(
                (name.lower(), value) for name, value in response.headers.multi_items()
            )
            heard.status = response.status_code
            async for piece in response.aiter_raw():
                if not heard.add(piece):
                    return
            await response.aclose()
            heard.complete = True
        except NEVER_SENT as error:
            # A protocol error of ours quotes the header that is wrong, which may be a secret one.
            said = f": {error}" if isinstance(error, httpx.ConnectError) else ""
            raise NotSentError(f"{type(error).__name__}{said}") from None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            heard.error = type(error).__name__

    async def close(self) -> None:
        """Let go of it."""
        with suppress(httpx.HTTPError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSING_LIMIT):
                await self.transport.aclose()

    def _request(self, outgoing: Outgoing, trace: "_Traced") -> httpx.Request:
        whole = self.base.copy_with(raw_path=outgoing.target)
        if whole.raw_path != outgoing.target:
            raise ValueError("path")  # a proxy is told the address, which cannot say this one
        return httpx.Request(
            outgoing.method,
            whole,
            headers=[
                (name.encode("ascii"), value.encode("latin-1")) for name, value in outgoing.headers
            ],
            content=outgoing.body,
            extensions={
                "timeout": {
                    # Two steps, TCP and TLS: both must have given up by themselves before the
                    # time for the whole call is over. Cut off from outside, a handshake would
                    # leave its socket open, and nobody would know that nothing was sent.
                    "connect": self.seconds / 2.1,
                    "read": self.seconds,
                    "write": self.seconds,
                    "pool": self.seconds,
                },
                "trace": trace,
            },
        )


def proxied(
    base: httpx.URL, proxy: str, *, egress: Egress, tls: ssl.SSLContext, seconds: float
) -> ProxiedLine:
    """A line to *base* through *proxy*, whose own address the guard judges."""
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=0)
    transport = GuardedTransport(egress, tls=tls, proxy=proxy, limits=limits)
    return ProxiedLine(base=base, seconds=seconds, transport=transport)


@dataclass(frozen=True, slots=True)
class _Traced:
    """Names the places within a request, as httpcore tells of them."""

    half_sent: Callable[[], None] | None
    sent: Callable[[], None] | None

    async def __call__(self, event: str, _facts: object) -> None:
        match event:
            case "http11.send_request_body.started" if self.half_sent is not None:
                self.half_sent()
            case "http11.receive_response_headers.started" if self.sent is not None:
                self.sent()
