"""The least that posts a webhook over kept connections: cheaper than what it loads."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

PATIENCE = 15.0  #: seconds
IDLE_AT_MOST = 20


@dataclass
class Poster:
    """Connections to one place, each used for one request after the other."""

    target: str
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def post(self, body: bytes, headers: Mapping[str, str]) -> int:
        """The status of the answer; 0 where there was none."""
        try:
            async with asyncio.timeout(PATIENCE):
                reader, writer = self.idle.pop() if self.idle else await self.connect()
                try:
                    writer.write(request(self.target, body, headers))
                    status, stays = await answer(reader)
                except BaseException:
                    writer.transport.abort()
                    raise
        except (OSError, EOFError, ValueError):  # TimeoutError is an OSError
            return 0
        if stays and len(self.idle) < IDLE_AT_MOST:
            self.idle.append((reader, writer))
        else:
            writer.close()
        return status

    async def break_off(self, body: bytes, headers: Mapping[str, str], *, whole: bool) -> None:
        """Send *whole* or half of a request, and hang up instead of hearing the answer."""
        try:
            async with asyncio.timeout(PATIENCE):
                _, writer = await self.connect()
                bytes_ = request(self.target, body, headers)
                writer.write(bytes_ if whole else bytes_[: -len(body) // 2])
                await writer.drain()
                writer.transport.abort()
        except OSError:
            return

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = urlsplit(self.target)
        return await asyncio.open_connection(place.hostname, place.port)

    def close(self) -> None:
        for _, writer in self.idle:
            writer.close()


def request(target: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    place = urlsplit(target)
    named = {"Host": place.netloc, "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"POST {place.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Status, and whether the connection may be used again."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    first, *lines = head.split("\r\n")
    named = dict(line.split(": ", 1) for line in lines if line)
    await reader.readexactly(int(named.get("content-length", "0")))
    return int(first.split(" ")[1]), named.get("connection") != "close"
