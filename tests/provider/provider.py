"""
The pretend provider: a process of its own, killed and started again like everybody else.

    python -m tests.provider.provider --store FILE --seed 7 [--port P] [--calm]

prints its port. `POST /DESTINATION/...` is a call; `POST /_/NAME/VALUE` says how to be from now
on: `/_/gate/shut` keeps every answer back, `/_/blocked/yes` refuses what is marked as blocked.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import socket
import sqlite3
import struct
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.provider.behaviours import (
    DONE,
    FLOOD,
    MANNERS,
    Behaviour,
    drawn,
    is_foreign,
)
from tests.provider.store import opened

LATE = 30.0  #: seconds; longer than any caller waits
RESET = struct.pack("ii", 1, 0)  #: SO_LINGER: close with a reset
SAME_TIME = 0.25  #: seconds for which two callers of one key must both have been there
BLOCK = b"x" * 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as it came in."""

    number: int
    destination: str
    reference: str
    key: str
    digest: str
    blocked: bool
    arrival: int  #: how many calls under this key there were, this one included
    reader: asyncio.StreamReader


@dataclass(slots=True, kw_only=True)
class Provider:
    """Answers calls, and writes down each before anything comes of it."""

    store: sqlite3.Connection
    seed: int
    calm: bool
    worker: str  #: this process: what another one had in hand died with it
    open_: dict[tuple[str, str], list[Call]] = field(default_factory=lambda: defaultdict(list))
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self.one(reader, writer):
                    pass
        finally:
            writer.close()

    async def one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Take one request; whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if target.startswith("/_/"):
            self.told(*target.split("/")[2:])
            await self.answered(writer, 200, ())
            return True
        call = self.arrived(method, target, headers, body, reader)
        mates = self.open_[call.destination, call.key]
        self.watch_for_overlap(call, mates)
        mates.append(call)
        try:
            return await self.react(call, writer)
        finally:
            mates.remove(call)
            if not mates:
                del self.open_[call.destination, call.key]
            self.write("update arrivals set ended = ? where number = ?", time.time(), call.number)

    def arrived(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        body: bytes,
        reader: asyncio.StreamReader,
    ) -> Call:
        destination = target.split("/")[1]
        key = headers.get("idempotency-key", "")
        told = json.loads(body)
        digest = hashlib.sha256(f"{method} {target} ".encode() + body).hexdigest()
        number = self.write(
            "insert into arrivals (destination, reference, key, caller, digest, place, at)"
            " values (?, ?, ?, ?, ?, ?, ?)",
            destination,
            told["reference"],
            key,
            headers.get("authorization", "").removeprefix("Bearer "),
            digest,
            told.get("place", ""),
            time.time(),
        ).lastrowid
        assert number is not None
        counted = self.write(
            "select count(*) from arrivals where destination = ? and key = ?", destination, key
        ).fetchone()
        return Call(
            number=number,
            destination=destination,
            reference=told["reference"],
            key=key,
            digest=digest,
            blocked=told.get("blocked", False),
            arrival=counted[0],
            reader=reader,
        )

    def watch_for_overlap(self, call: Call, mates: list[Call]) -> None:
        """Note where an older call under the same key is still being waited for by its caller."""
        for mate in mates:
            if is_there(mate):
                task = asyncio.create_task(self.overlap(call, mate))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def overlap(self, call: Call, mate: Call) -> None:
        await asyncio.sleep(SAME_TIME)
        if mate in self.open_.get((mate.destination, mate.key), ()) and is_there(mate):
            self.write(
                "update arrivals set overlaps = ? where number = ?", mate.number, call.number
            )

    async def react(self, call: Call, writer: asyncio.StreamWriter) -> bool:
        if call.blocked and self.says("blocked") == "yes":
            return await self.gives(
                call, Behaviour(name="blocked", performs=False, status=503), writer
            )
        manner = MANNERS[call.destination]
        if manner.knows_keys and (known := self.known(call, remembers=manner.remembers)):
            return await self.gives(call, known, writer)
        behaviour = self.drawn(call)
        if manner.knows_keys and (behaviour.performs or behaviour.stored):
            self.write(
                "insert into keys (destination, key, digest, at, worker) values (?, ?, ?, ?, ?)",
                call.destination,
                call.key,
                call.digest,
                time.time(),
                self.worker,
            )
        await self.perform(call, behaviour)
        return await self.gives(call, behaviour, writer)

    def drawn(self, call: Call) -> Behaviour:
        if self.calm:
            return DONE
        return drawn(self.seed, call.destination, call.key, call.arrival)

    def known(self, call: Call, *, remembers: float) -> Behaviour | None:
        """What a call under a key that was used before is answered; None: it is new."""
        held = self.write(
            "select * from keys where destination = ? and key = ?", call.destination, call.key
        ).fetchone()
        if held is not None:
            gone = held["stored"] is None and held["worker"] != self.worker
            if gone or time.time() - held["at"] > remembers:
                self.forget(call)
                held = None
        if held is None:
            return self.of_somebody_else(call)
        if held["digest"] != call.digest:
            return Behaviour(name="422, another body", performs=False, status=422)
        if held["stored"] is None:
            return Behaviour(name="409, in flight", performs=False, status=409)
        lost = self.drawn(call)
        if lost.status is None and lost.way in ("closes", "resets", "hangs"):
            return lost  # like any other answer, on its way
        replayed = (("Idempotent-Replayed", "true"),)
        return Behaviour(name="replayed", performs=False, status=held["status"], headers=replayed)

    def of_somebody_else(self, call: Call) -> Behaviour | None:
        """What a key meets that somebody else has used for something else; None: nobody has."""
        if self.calm or not is_foreign(self.seed, call.destination, call.key):
            return None
        if call.arrival == 1 and call.number % 2:  # nobody can tell what that one did
            return Behaviour(
                name="lost before the effect", performs=False, status=None, way="closes"
            )
        return Behaviour(name="422, another body", performs=False, status=422)

    def forget(self, call: Call) -> None:
        self.write("delete from keys where destination = ? and key = ?", call.destination, call.key)

    async def perform(self, call: Call, behaviour: Behaviour) -> None:
        """The work: it takes its time, and is done to the end whoever has hung up."""
        if behaviour.takes:
            await asyncio.sleep(behaviour.takes)
        status = behaviour.status if behaviour.stored else 200
        self.write("begin immediate")
        if behaviour.performs:
            self.write(
                "insert into effects (destination, reference, key, arrival, at)"
                " values (?, ?, ?, ?, ?)",
                call.destination,
                call.reference,
                call.key,
                call.number,
                time.time(),
            )
        self.write(
            "update keys set status = ?, stored = 1 where destination = ? and key = ?",
            status,
            call.destination,
            call.key,
        )
        self.write("commit")

    async def gives(self, call: Call, behaviour: Behaviour, writer: asyncio.StreamWriter) -> bool:
        """Answer as *behaviour* says; whether the connection goes on."""
        self.write(
            "update arrivals set behaviour = ?, status = ? where number = ?",
            behaviour.name,
            behaviour.status,
            call.number,
        )
        await self.gate.wait()
        match behaviour.way:
            case "whole":
                assert behaviour.status is not None
                await self.answered(writer, behaviour.status, behaviour.headers)
                return True
            case "resets":
                its_socket = writer.get_extra_info("socket")
                its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()
            case "hangs" | "late":
                await self.gone(call)
            case "garbage":
                writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
            case "drips head":
                writer.write(b"HTTP/1.1 200 OK\r\n")
                await self.drip(call, writer, b"X-Drip: 1\r\n")
            case "drips":
                writer.write(head_of(behaviour.status, ()) + b"Transfer-Encoding: chunked\r\n\r\n")
                await self.drip(call, writer, b"1\r\n \r\n")
            case "breaks off":
                writer.write(head_of(behaviour.status, ()) + b'Content-Length: 99\r\n\r\n{"ok"')
            case "floods":
                writer.write(head_of(behaviour.status, ()) + b"Content-Length: %d\r\n\r\n" % FLOOD)
                for _ in range(FLOOD // len(BLOCK) + 1):
                    writer.write(BLOCK)
                    await writer.drain()
        return False

    async def answered(
        self, writer: asyncio.StreamWriter, status: int, headers: tuple[tuple[str, str], ...]
    ) -> None:
        body = b'{"status": %d}' % status
        writer.write(head_of(status, headers) + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async def gone(self, call: Call) -> None:
        """Wait until the caller has hung up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE):
                await call.reader.read()

    async def drip(self, call: Call, writer: asyncio.StreamWriter, drop: bytes) -> None:
        until = time.monotonic() + LATE
        while is_there(call) and time.monotonic() < until:
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.05)

    def told(self, name: str, value: str) -> None:
        self.write("insert or replace into said values (?, ?)", name, value)
        self.mind()

    def mind(self) -> None:
        """Be as was said last, also after a restart."""
        (self.gate.clear if self.says("gate") == "shut" else self.gate.set)()

    def says(self, name: str) -> str:
        found = self.write("select value from said where name = ?", name).fetchone()
        return str(found[0]) if found else ""

    def write(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self.store.execute(statement, values)


def is_there(call: Call) -> bool:
    """Whether its caller has not hung up."""
    return not call.reader.at_eof() and call.reader.exception() is None


def head_of(status: int | None, headers: tuple[tuple[str, str], ...]) -> bytes:
    assert status is not None
    phrase = HTTPStatus(status).phrase
    lines = [f"{name}: {spelled(value)}" for name, value in headers]
    return "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status} {phrase}", *lines)).encode()


def spelled(value: str) -> str:
    """*value*, or a second from now in one of the three forms that RFC 9110, 5.6.7 knows."""
    then = time.gmtime(time.time() + 1)
    match value:
        case "@imf":
            return time.strftime("%a, %d %b %Y %H:%M:%S GMT", then)
        case "@rfc850":
            return time.strftime("%A, %d-%b-%y %H:%M:%S GMT", then)
        case "@asctime":
            return time.strftime("%a %b %d %H:%M:%S %Y", then)
        case _:
            return value


async def main(arguments: argparse.Namespace) -> None:
    provider = Provider(
        store=opened(arguments.store),
        seed=arguments.seed,
        calm=arguments.calm,
        worker=f"{os.getpid()}",
    )
    provider.mind()
    server = await asyncio.start_server(
        provider.connected, "127.0.0.1", arguments.port, limit=2**20, backlog=512
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--calm", action="store_true")
    asyncio.run(main(parser.parse_args()))
