"""A load balancer in front of replicas: in turn, and on to the next where one refuses."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Balancer:
    """
    Spreads connections over what is behind it.

    Like every load balancer it goes on to the next one only when a connection is refused:
    once a byte may have been sent, a delivery is its sender's to repeat.
    """

    def __init__(self) -> None:
        self.behind: dict[str, tuple[str, int]] = {}  #: name of a replica -> where it listens
        self.connections: Counter[str] = Counter()
        self.url = ""
        self._turn = 0

    def put(self, name: str, url: str) -> None:
        """Send connections to *name* at *url* from now on."""
        place = urlsplit(url)
        assert place.hostname is not None
        assert place.port is not None
        self.behind[name] = (place.hostname, place.port)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            found = await self.choose()
            if found is None:
                return
            theirs, ours = found
            with contextlib.closing(ours):
                # when the answer has ended there is nothing more to carry into either direction
                back = asyncio.create_task(carry(theirs, writer))
                there = asyncio.create_task(carry(reader, ours))
                await asyncio.wait({back, there}, return_when=asyncio.FIRST_COMPLETED)
                for one in (back, there):
                    one.cancel()
                await asyncio.wait({back, there})

    async def choose(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to whose turn it is, or to the next that does not refuse."""
        self._turn += 1
        first = self._turn % len(self.behind)
        names = list(self.behind)
        for name in names[first:] + names[:first]:
            try:
                pair = await asyncio.open_connection(*self.behind[name])
            except ConnectionRefusedError:
                continue
            self.connections[name] += 1
            return pair
        return None


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def balancing() -> AsyncIterator[Balancer]:
    balancer = Balancer()
    server = await asyncio.start_server(balancer.connected, "127.0.0.1", 0, backlog=1024)
    host, port = server.sockets[0].getsockname()
    balancer.url = f"http://{host}:{port}"
    try:
        yield balancer
    finally:
        server.close()
