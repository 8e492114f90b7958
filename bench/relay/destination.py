"""The destination that everybody calls: says yes at once, and keeps when each key came first."""

import asyncio
import json
import sys
import time
from typing import Any

DONE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
KEY = b"\r\nidempotency-key: "
LENGTH = b"\r\ncontent-length: "


class Calls:
    """Everything that came."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.came: dict[bytes, float] = {}
        self.count = 0
        self.open = 0
        self.most_open = 0

    def answer(self, target: bytes) -> dict[str, Any]:
        match target:
            case b"/forget":
                self.forget()
            case b"/times":
                return {key.decode(): at for key, at in self.came.items()}
        times = self.came.values()
        return {
            "calls": self.count,
            "keys": len(self.came),
            "first": min(times, default=0.0),
            "last": max(times, default=0.0),
            "connections": self.most_open,
        }


class Connection(asyncio.Protocol):
    """One connection: requests one after the other, as clients without pipelining send them."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.calls.open += 1
        self.calls.most_open = max(self.calls.most_open, self.calls.open)

    def connection_lost(self, _: Exception | None) -> None:
        self.calls.open -= 1

    def data_received(self, data: bytes) -> None:
        self.waiting += data
        end = self.waiting.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.waiting[: end + 2]
        if head.startswith(b"GET"):
            self.waiting = b""
            self.told(head)
            return
        lowered = head.lower()
        place = lowered.find(LENGTH)
        length = int(lowered[place + len(LENGTH) : lowered.find(b"\r", place + 2)])
        if len(self.waiting) < end + 4 + length:
            return
        self.waiting = b""
        place = lowered.find(KEY)
        key = head[place + len(KEY) : lowered.find(b"\r", place + 2)]
        self.calls.count += 1
        self.calls.came.setdefault(key, time.time())
        self.transport.write(DONE)

    def told(self, head: bytes) -> None:
        body = json.dumps(self.calls.answer(head.split(b" ")[1])).encode()
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def main() -> None:
    calls = Calls()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(calls), "127.0.0.1", 0, backlog=512)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
