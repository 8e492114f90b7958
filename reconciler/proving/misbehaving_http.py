"""A small HTTP/1.1 server that can do what real peers do and servers forbid: lose its answer."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

MAX_BODY = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, read whole."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  #: lower-case names
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to answer; *lost* closes the connection instead, after the work was done."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    lost: bool = False
    delay: float = 0.0  #: seconds before the answer leaves


Answering = Callable[[Request], Awaitable[Answer]]


class Listener:
    """A listening server and the connections that it has."""

    def __init__(self, answering: Answering) -> None:
        self.answering = answering
        self.server: asyncio.Server | None = None
        self.open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def url(self) -> str:
        assert self.server is not None
        host, port = self.server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def close(self) -> None:
        """Close the listener and cut every connection, so that nothing of it is left."""
        assert self.server is not None
        self.server.close()
        for writer in self.open.values():
            writer.transport.abort()
        for connection in tuple(self.open):
            connection.cancel()
        if self.open:
            await asyncio.wait(tuple(self.open))
        await self.server.wait_closed()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        self.open[this] = writer
        try:
            await converse(self.answering, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass  # the peer went away, or spoke something else than HTTP
        except asyncio.CancelledError:
            return  # only `close` does this, and asyncio would report it as an error
        finally:
            del self.open[this]
            writer.close()


async def listen(answering: Answering, *, host: str = "127.0.0.1", port: int = 0) -> Listener:
    """Serve *answering* on *host*; port 0 takes a free one, told by `url`."""
    listener = Listener(answering)
    listener.server = await asyncio.start_server(listener.connected, host, port, limit=64 * 1024)
    return listener


async def converse(
    answering: Answering, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one connection, one after the other, until one side has enough."""
    while (request := await read_request(reader)) is not None:
        answer = await answering(request)
        if answer.delay:
            await asyncio.sleep(answer.delay)
        if answer.lost:
            writer.transport.abort()
            return
        writer.write(encode(answer))
        await writer.drain()


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """Read one request; None when the peer has closed. ValueError: not HTTP as we speak it."""
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines if line)
    }
    length = int(headers.get("content-length", "0"))
    if length > MAX_BODY:
        raise ValueError("body too large")
    url = urlsplit(target)
    return Request(
        method=method,
        path=url.path,
        query=dict(parse_qsl(url.query)),
        headers=headers,
        body=await reader.readexactly(length),
    )


def encode(answer: Answer) -> bytes:
    body = b"" if answer.body is None else json.dumps(answer.body).encode()
    lines = [
        f"HTTP/1.1 {answer.status} X",
        f"Content-Length: {len(body)}",
        "Content-Type: application/json",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
