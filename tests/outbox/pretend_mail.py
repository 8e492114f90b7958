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
class Talk:
    """What one client has said so far."""

    sender: str = ""
    recipients: list[str] = field(default_factory=list)


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
        talk = Talk()
        going = await self._say(writer, "greeting", "220 mail.example ESMTP")
        while going and (line := await reader.readline()):
            said = line.decode().rstrip("\r\n")
            self.heard.append(said)
            if self._is_tls(writer):
                self.encrypted.append(said)
            going = await self._react(said, talk, reader, writer)

    async def _react(
        self, said: str, talk: Talk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one line; whether the conversation goes on."""
        word = said.partition(" ")[0].upper()
        taken = await self._say(writer, word, self._usual(word, writer))
        match word:
            case "STARTTLS" if taken:
                assert self.certificate is not None
                await writer.start_tls(self.certificate)
            case "MAIL":
                talk.sender = said.partition("<")[2].partition(">")[0]
            case "RCPT":
                talk.recipients = [said.partition("<")[2].partition(">")[0]]
            case "DATA" if taken:
                return await self._take(talk, reader, writer)
        return word != "QUIT" and not self._is_over(word)

    async def _take(
        self, talk: Talk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if self.says.get("body") == [DROP]:
            await reader.readexactly(10)
            return False
        raw = await reader.readuntil(b"\r\n.\r\n")
        if not self.says.get("end", [OK])[0].startswith(("4", "5")):
            mail = Mail(sender=talk.sender, recipients=talk.recipients, raw=raw[:-3])
            self.taken.append(mail)
        await self._say(writer, "end", OK)
        return not self._is_over("end")

    def _usual(self, word: str, writer: asyncio.StreamWriter) -> str:
        if word != "EHLO":
            return {"DATA": "354 go on", "STARTTLS": "220 go on", "QUIT": "221 bye"}.get(word, OK)
        offers = [one for one in self.offers if one != "STARTTLS" or not self._is_tls(writer)]
        return "".join(f"250-{one}\r\n" for one in ("mail.example", *offers)) + "250 HELP"

    def _is_over(self, step: str) -> bool:
        return self.says.get(step, [""])[0] == DROP

    def _is_tls(self, writer: asyncio.StreamWriter) -> bool:
        return writer.get_extra_info("sslcontext") is not None
