"""A destination on a real socket that answers as it is told, and remembers what it was asked."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers.get("idempotency-key", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """An ordinary answer."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"{}"


@dataclass(frozen=True, slots=True)
class Misbehaves:
    """Hangs, answers_late (both until `release`), resets, drips, drips_head, or one of RAW."""

    how: str


Behaviour = Answers | Misbehaves


@dataclass(slots=True)
class Pretend:
    """
    The destination. *behave* says what it does with the n-th call (from 1) it was ever sent.

    What it took for done is in *performed*, by key: once however often a key comes.
    """

    behave: Callable[[int, Call], Behaviour] = lambda _number, _call: Answers()
    calls: list[Call] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    most_per_key: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    certificate: ssl.SSLContext | None = None
    release: asyncio.Event = field(default_factory=asyncio.Event)
    _open: dict[str, int] = field(default_factory=dict)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def keys(self) -> list[str]:
        return [call.key for call in self.calls]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.certificate)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                while await self._answer_one(reader, writer):
                    pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort() if task.cancelling() else writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        call = await self._read(reader)
        self.calls.append(call)
        self._open[call.key] = self._open.get(call.key, 0) + 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.most_per_key[call.key] = max(self.most_per_key.get(call.key, 0), self._open[call.key])
        try:
            return await self._react(self.behave(len(self.calls), call), writer)
        finally:
            self.in_flight -= 1
            self._open[call.key] -= 1

    async def _read(self, reader: asyncio.StreamReader) -> Call:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Call(method=method, target=target, headers=headers, body=body)

    async def _react(self, behaviour: Behaviour, writer: asyncio.StreamWriter) -> bool:
        if isinstance(behaviour, Answers):
            writer.write(_head(behaviour) + behaviour.body)
            await writer.drain()
            return True
        match behaviour.how:
            case "hangs":
                await self.release.wait()
            case "answers_late":
                await self.release.wait()
                return await self._react(Answers(), writer)
            case "resets":
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            case "drips":
                await self._drip(writer, b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n")
            case "drips_head":
                await self._drip(writer, b"X-First: 1\r\n", b"X-Drip: 1\r\n")
            case how:
                writer.write(RAW[how])
                await writer.drain()
        return False

    async def _drip(self, writer: asyncio.StreamWriter, first: bytes, drop: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + first)
        while not self.release.is_set() and not writer.is_closing():
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.01)


RAW = {
    "closes": b"",
    "closes_after": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "garbage": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "breaks_off": b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"ok":',
    "floods": b"HTTP/1.1 200 OK\r\nContent-Length: 30000000\r\n\r\n" + b"x" * 30_000_000,
}


def _head(answer: Answers) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {_phrase(answer.status)}",
        f"Content-Length: {len(answer.body)}",
        *(f"{name}: {value}" for name, value in answer.headers),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in list(HTTPStatus) else "Odd"


def in_turn(*behaviours: Behaviour) -> Callable[[int, Call], Behaviour]:
    """The n-th call gets the n-th behaviour; the last one stays."""
    return lambda number, _: behaviours[min(number, len(behaviours)) - 1]
