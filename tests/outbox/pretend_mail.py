"""A mail server on a real socket that says what it is told to, and may fall silent anywhere."""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field
from typing import Self

DROP = "drop"  #: resets the connection
SILENCE = "silence"  #: says nothing more
OK = "250 2.0.0 Ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """One message that the server took for its own."""

    sender: str
    recipients: list[str]
    raw: bytes  #: as it came, dots still doubled

    @property
    def lines(self) -> list[str]:
        return self.raw.decode("utf-8").split("\r\n")

    def header(self, name: str) -> str:
        head = self.raw.partition(b"\r\n\r\n")[0].decode()
        (value,) = [
            line.partition(": ")[2] for line in head.split("\r\n") if line.startswith(name + ":")
        ]
        return value


@dataclass(slots=True, kw_only=True)
class MailServer:
    """*says* replaces what it answers, by step: greeting, EHLO, MAIL, RCPT, DATA, body, end ..."""

    says: dict[str, list[str]] = field(default_factory=dict)
    offers: tuple[str, ...] = ("8BITMIME", "PIPELINING")
    certificate: ssl.SSLContext | None = None
    taken: list[Mail] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    encrypted: list[str] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def ids(self) -> list[str]:
        return [mail.header("Message-ID") for mail in self.taken]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError
            ):
                await self._talk(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _say(self, writer: asyncio.StreamWriter, step: str, usual: str) -> bool:
        told = self.says.get(step, [])
        line = (told.pop(0) if len(told) > 1 else told[0]) if told else usual
        if line == DROP:
            return False
        if line == SILENCE:
            await asyncio.Event().wait()
        writer.write(line.encode() + b"\r\n")
        await writer.drain()
        return line[:3] == usual[:3]

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not await self._say(writer, "greeting", "220 mail.example ESMTP"):
            return
        sender, recipients = "", []
        while line := await reader.readline():
            said = line.decode().rstrip("\r\n")
            self.heard.append(said)
            if writer.get_extra_info("sslcontext"):
                self.encrypted.append(said)
            word = said.split(" ")[0].upper()
            match word:
                case "EHLO":
                    names = [
                        one
                        for one in self.offers
                        if not (one == "STARTTLS" and self._is_tls(writer))
                    ]
                    lines = ["mail.example", *names]
                    text = "\r\n".join(
                        f"250{' ' if at == len(lines) - 1 else '-'}{one}"
                        for at, one in enumerate(lines)
                    )
                    if not await self._say(writer, "EHLO", text):
                        return
                case "STARTTLS":
                    if await self._say(writer, "STARTTLS", "220 go on"):
                        assert self.certificate is not None
                        await writer.start_tls(self.certificate)
                case "MAIL":
                    sender = said.partition("<")[2].partition(">")[0]
                    if not await self._say(writer, "MAIL", OK) and self._is_over("MAIL"):
                        return
                case "RCPT":
                    recipients = [said.partition("<")[2].partition(">")[0]]
                    if not await self._say(writer, "RCPT", OK) and self._is_over("RCPT"):
                        return
                case "DATA":
                    if not await self._say(writer, "DATA", "354 go on"):
                        if self._is_over("DATA"):
                            return
                        continue
                    if self.says.get("body") == [DROP]:
                        await reader.readexactly(10)
                        return
                    raw = await reader.readuntil(b"\r\n.\r\n")
                    mail = Mail(sender=sender, recipients=recipients, raw=raw[:-3])
                    told = self.says.get("end", [OK])[0]
                    if not told.startswith(("4", "5")):
                        self.taken.append(mail)
                    if not await self._say(writer, "end", OK) and self._is_over("end"):
                        return
                case "QUIT":
                    await self._say(writer, "QUIT", "221 bye")
                    return
                case _:
                    if not await self._say(writer, word, OK) and self._is_over(word):
                        return

    def _is_over(self, step: str) -> bool:
        return self.says.get(step, [""])[0] == DROP

    def _is_tls(self, writer: asyncio.StreamWriter) -> bool:
        return writer.get_extra_info("sslcontext") is not None
