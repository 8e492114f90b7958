"""Connections that are only made where the egress guard lets them: to the judged address itself."""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable

import httpcore
import httpx

from outbox.egress import Egress, chosen

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""From a host and a port to its addresses, as text; OSError where there are none."""


_asked: dict[tuple[asyncio.AbstractEventLoop, str, int], asyncio.Task[list[str]]] = {}


async def resolved(host: str, port: int) -> list[str]:
    """
    What the system's resolver says, whatever the spelling: `0x7f.1` is 127.0.0.1 as well.

    A question takes a thread until it is answered, also when nobody waits for that any more, and
    there are few. So who asks the same meanwhile gets the same answer: a name whose servers are
    silent takes one thread, and not those of all other names.
    """
    try:
        return [str(ipaddress.ip_address(host))]  # nothing to ask, and no thread to ask it in
    except ValueError:
        pass
    at = (asyncio.get_running_loop(), host, port)
    if (question := _asked.get(at)) is None:
        question = _asked[at] = asyncio.create_task(_addresses(host, port))
        question.add_done_callback(lambda done: _forget(at, done))
    return await asyncio.shield(question)


async def _addresses(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _forget(at: tuple[asyncio.AbstractEventLoop, str, int], done: asyncio.Task[list[str]]) -> None:
    _asked.pop(at, None)
    if not done.cancelled():
        done.exception()  # looked at, though nobody may wait for it any more


async def allowed_addresses(
    host: str, port: int, egress: Egress, *, resolve: Resolve = resolved
) -> list[str]:
    """
    The addresses of *host* that may be connected to, all judged.

    Connect to one of these and never to the name: what it means may change in between. Raises
    BlockedError, and OSError where the name has no address.
    """
    try:
        answers = await resolve(host, port)
    except UnicodeError as error:  # a label that no DNS can hold
        raise OSError(f"no host name: {type(error).__name__}") from None
    return chosen(answers, port, egress)


def opener(
    egress: Egress, *, resolve: Resolve = resolved
) -> Callable[[str, int, float], Awaitable[socket.socket]]:
    """
    What opens guarded connections, from a host, a port and the seconds that it may take.

    It raises BlockedError, and OSError (TimeoutError is one) where no address of the host can be
    connected to. Nothing has been sent by then.
    """

    async def connected(host: str, port: int, seconds: float) -> socket.socket:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        async with asyncio.timeout_at(until):
            addresses = await allowed_addresses(host, port, egress, resolve=resolve)
        failed = OSError("the name has no address")
        for number, address in enumerate(addresses):
            # a first address that is dead leaves time for the others
            share = max(0.001, until - loop.time()) / (len(addresses) - number)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            # the protocol by name: by it asyncio knows that nothing small is to be held back
            opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            opened.setblocking(False)
            try:
                async with asyncio.timeout(share):
                    await loop.sock_connect(opened, (address, port))
            except OSError as error:  # TimeoutError is one
                opened.close()
                failed = error
            except BaseException:
                opened.close()
                raise
            else:
                return opened
        raise failed

    return connected


class GuardedTransport(httpx.AsyncHTTPTransport):
    """
    httpx's own transport, over connections that the guard has judged.

    Host header, SNI and the certificate's name stay those of the URL. Nothing comes from the
    environment, HTTP/1.1 only. `handle_async_request` raises BlockedError as it is. Through a
    *proxy* it is the proxy's address that is judged; where that one goes is its own to say.
    """

    def __init__(
        self,
        egress: Egress,
        *,
        tls: ssl.SSLContext,
        limits: httpx.Limits,
        proxy: str | None = None,
        resolve: Resolve = resolved,
    ) -> None:
        super().__init__(verify=tls, trust_env=False, http2=False, limits=limits)
        guarded = _GuardedBackend(egress, resolve=resolve)
        if proxy is None:
            self._pool = httpcore.AsyncConnectionPool(
                ssl_context=tls,
                max_connections=limits.max_connections,
                max_keepalive_connections=limits.max_keepalive_connections,
                keepalive_expiry=limits.keepalive_expiry,
                network_backend=guarded,
            )
            return
        through = httpx.Proxy(proxy)
        self._pool = httpcore.AsyncHTTPProxy(
            proxy_url=str(through.url),
            proxy_auth=through.raw_auth,
            proxy_ssl_context=tls if through.url.scheme == "https" else None,
            ssl_context=tls,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=guarded,
        )


class _GuardedBackend(httpcore.AsyncNetworkBackend):
    """The one place where a connection to a destination or a sender's API begins."""

    def __init__(self, egress: Egress, *, resolve: Resolve) -> None:
        self._egress = egress
        self._resolve = resolve
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            async with asyncio.timeout(timeout):
                addresses = await allowed_addresses(host, port, self._egress, resolve=self._resolve)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout("no address within the time") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        failed: Exception = httpcore.ConnectError("the name has no address")
        for number, address in enumerate(addresses):
            share = timeout
            if timeout is not None:  # a first address that is dead leaves time for the others
                share = max(0.001, timeout - (loop.time() - start)) / (len(addresses) - number)
            try:
                return await self._network.connect_tcp(
                    address, port, share, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)
