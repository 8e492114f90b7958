"""
The pretend mail server: aiosmtpd as a process of its own, with a store of its own.

    python -m tests.provider.mail_server --store FILE --seed 7 [--calm]

prints its port. Who calls is known by the name in EHLO, and a mail by its recipient.
"""

import argparse
import asyncio
import hashlib
import random
import socket
import sqlite3
import struct
import sys
import time
from email import message_from_bytes
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.provider.behaviours import TAKEN, MailBehaviour, drawn_mail
from tests.provider.store import opened

RESET = struct.pack("ii", 1, 0)  #: SO_LINGER: close with a reset
WORK = 0.05  #: seconds at the most that it takes to take a mail over


class Talk(SMTP):
    """One conversation; it knows which mail it is about from RCPT on."""

    number: int = 0
    behaviour: MailBehaviour = TAKEN

    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802
        if self.behaviour.at == "data":
            self.event_handler.note(self)
            await self.push("354 go on")
            await self.hangs_up()
        await super().smtp_DATA(arg)

    async def hangs_up(self) -> None:
        """End the conversation in the way that was drawn, and never go on with it."""
        assert self.transport is not None
        if self.behaviour.way == "resets":
            its_socket = self.transport.get_extra_info("socket")
            its_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if self.behaviour.way != "hangs":
            self.transport.abort()
        await asyncio.Event().wait()


class Keeping:
    """Writes down each mail before anything comes of it, and each that is taken over."""

    def __init__(self, store: sqlite3.Connection, *, seed: int, calm: bool) -> None:
        self.store = store
        self.seed = seed
        self.calm = calm

    async def handle_RCPT(  # noqa: N802
        self, server: Talk, session: Session, envelope: Envelope, address: str, _: list[str]
    ) -> str:
        reference = address.partition("@")[0].replace("-", " ")
        said = "select count(*) from arrivals where reference = ?"
        arrival = self.write(said, reference).fetchone()[0] + 1
        number = self.write(
            "insert into arrivals (destination, reference, key, caller, digest, place, at)"
            " values ('mail', ?, '', ?, '', '', ?)",
            reference,
            session.host_name or "",
            time.time(),
        ).lastrowid
        assert number is not None
        server.number = number
        server.behaviour = TAKEN if self.calm else drawn_mail(self.seed, reference, arrival)
        if server.behaviour.at == "recipient":
            return await self.answered(server)
        envelope.rcpt_tos.append(address)
        return "250 2.1.5 Ok"

    async def handle_DATA(self, server: Talk, _: Session, envelope: Envelope) -> str:  # noqa: N802
        content = bytes(envelope.original_content or b"")
        key = str(message_from_bytes(content)["Message-ID"])
        self.write(
            "update arrivals set key = ?, digest = ? where number = ?",
            key,
            hashlib.sha256(content).hexdigest(),
            server.number,
        )
        await asyncio.sleep(WORK * random.random())  # its sender may die meanwhile
        if server.behaviour.performs:
            self.write(
                "insert into effects (destination, reference, key, arrival, at)"
                " select destination, reference, key, number, ? from arrivals where number = ?",
                time.time(),
                server.number,
            )
        return await self.answered(server)

    async def answered(self, server: Talk) -> str:
        self.note(server)
        if server.behaviour.status is None:
            await server.hangs_up()
        return f"{server.behaviour.status} {server.behaviour.name}"

    def note(self, server: Talk) -> None:
        self.write(
            "update arrivals set behaviour = ?, status = ?, ended = ? where number = ?",
            server.behaviour.name,
            server.behaviour.status,
            time.time(),
            server.number,
        )

    def write(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self.store.execute(statement, values)


async def main(arguments: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    keeping = Keeping(opened(arguments.store), seed=arguments.seed, calm=arguments.calm)
    server = await loop.create_server(
        lambda: Talk(keeping, hostname="mail.example", loop=loop), "127.0.0.1", 0
    )
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--calm", action="store_true")
    asyncio.run(main(parser.parse_args()))
