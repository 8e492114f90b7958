"""A pretend sender's API on a real socket, which can misbehave in every way."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, kw_only=True)
class Request:
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    target: str


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int = 200
    json: object = None
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    drip: bool = False  #: the head, then nothing but a byte now and then, for ever
    cut: bool = False  #: the connection ends in the middle of the body
    reset: bool = False  #: no answer at all

    def encoded(self) -> tuple[bytes, bytes]:
        body = self.body if self.body is not None else json.dumps(self.json).encode()
        lines = [f"HTTP/1.1 {self.status} X", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n", body


Answering = Callable[[Request], Awaitable[Reply]]


@dataclass(kw_only=True)
class Served:
    url: str
    requests: list[Request] = field(default_factory=list)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def note(self, request: Request) -> None:
        async with self.came:
            self.requests.append(request)
            self.came.notify_all()

    async def reached(self, count: int) -> None:
        """Wait until there have been *count* requests."""
        async with asyncio.timeout(10), self.came:
            await self.came.wait_for(lambda: len(self.requests) >= count)


@contextlib.asynccontextmanager
async def serving(answering: Answering) -> AsyncIterator[Served]:
    served = Served(url="")
    over = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = _request(head)
                await served.note(request)
                reply = await answering(request)
                if reply.reset:
                    writer.transport.abort()
                    return
                first, body = reply.encoded()
                writer.write(first)
                if reply.drip:
                    await _drip(writer, over)
                    return
                if reply.cut:
                    writer.write(body[: len(body) // 2])
                    await writer.drain()
                    return
                writer.write(body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**20)
    host, port = server.sockets[0].getsockname()[:2]
    served.url = f"http://{host}:{port}"
    try:
        yield served
    finally:
        over.set()
        server.close()


async def _drip(writer: asyncio.StreamWriter, over: asyncio.Event) -> None:
    while not over.is_set():
        writer.write(b" ")
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), 0.02)


def _request(head: bytes) -> Request:
    first, *lines = head.decode().split("\r\n")
    target = first.split(" ")[1]
    url = urlsplit(target)
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    return Request(path=url.path, query=dict(parse_qsl(url.query)), headers=headers, target=target)
