"""Mails over SMTP: one connection a mail, and at every moment known how far it has come."""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import ip_address
from typing import Literal

import aiosmtplib

from outbox.destinations import CLOSING_LIMIT, Request
from outbox.destinations.connecting import opener
from outbox.destinations.http import WITHIN, Secret
from outbox.egress import BlockedError, Egress, read_networks
from outbox.entry import bounded
from outbox.mail import MAIL_FROM, METHOD, SMTPUTF8, message_id
from outbox.verdict import Failure, Reply, Sent

Tls = Literal["starttls", "implicit", "none"]
Open = Callable[[str, int, float], Awaitable[socket.socket]]
"""
Connects to a host and port within so many seconds.

OSError (TimeoutError is one) where that fails, BlockedError where it may not be.
"""

ANYWHERE = Egress(allowed=read_networks(["0.0.0.0/0", "::/0"]))

# Of the time for one mail: what is slow before the end of the data is safe to repeat, and what is
# slow after it is not. The answer to that end gets at least half.
CONNECTING = 0.25
BEFORE_THE_END = 0.5

_ENHANCED = re.compile(r"[245]\.\d{1,3}\.\d{1,3}(?=\s|$)")  # RFC 2034
_EHLO_NAME = re.compile(r"(?=.{1,255}$)[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_HAS_ID = re.compile(rb"^message-id:", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpDestination:
    """
    The way to one mail server (RFC 5321).

    An entry is one message to one recipient: its path is the address, its headers hold the
    envelope's sender, its body is the message. Until the message has ended nothing was taken over,
    whatever breaks; afterwards only an answer says whether it was (RFC 1047).
    """

    host: str
    port: int
    tls: Tls  #: `starttls` must be offered, but by a server on loopback
    user: str | None = None
    password: Secret | None = None
    ehlo_name: str | None = None  #: None: this host's name, or the address that we connect from
    context: ssl.SSLContext | None = None  #: None: the system's authorities
    open: Open | None = None  #: None: a plain connection to whatever the name resolves to
    point: Callable[[str], None] | None = None  #: told how far a mail is; only for tests of crashes
    _contexts: list[ssl.SSLContext] = field(default_factory=list, init=False)

    async def send(self, request: Request, *, timeout: timedelta) -> Reply | Failure:
        """
        Hand one mail over within *timeout* in all.

        Reasons hold the server's numbers and none of its words, which may quote an address.
        """
        sender = request.headers.get(MAIL_FROM)
        if request.method != METHOD or not sender or not request.path:
            return Failure(kind=Sent.NOT_SENT, reason="no mail: this was frozen for another kind")
        talk = _Talk(destination=self, seconds=timeout.total_seconds())
        try:
            async with asyncio.timeout(talk.seconds):
                return await talk.deliver(request, sender=sender)
        except TimeoutError:
            return talk.broke(f"no answer within {talk.seconds:g} s")
        except BlockedError as error:
            return Failure(kind=Sent.NOT_SENT, reason=f"not sent: {error}", blocked=True)
        except aiosmtplib.SMTPResponseException as error:
            return talk.answered(error.code, error.message)
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            return talk.broke(_told(error))
        finally:
            await talk.close()

    async def close(self) -> None:
        """Nothing is kept open between two mails."""

    def encryption(self) -> ssl.SSLContext:
        if self.context is not None:
            return self.context
        if not self._contexts:  # reading the authorities takes a while: once
            self._contexts.append(ssl.create_default_context())
        return self._contexts[0]


@dataclass(slots=True, kw_only=True)
class _Talk:
    """One conversation with the server, and how far it has come."""

    destination: SmtpDestination
    seconds: float
    step: str = "connecting"
    ended: bool = False  #: the end of the data may have gone out: it may have been taken over
    client: aiosmtplib.SMTP | None = None
    connection: socket.socket | None = None
    writer: asyncio.StreamWriter | None = None

    async def deliver(self, request: Request, *, sender: str) -> Reply | Failure:
        message = _on_the_wire(request, sender=sender)
        async with asyncio.timeout(self.seconds * BEFORE_THE_END):
            client = await self.connect()
            if refusal := await self.secure(client):
                return refusal
            if refusal := await self.envelope(client, request, sender=sender):
                return refusal
            self.step = "DATA"
            started = await client.execute_command(b"DATA")
            if started.code != 354:
                return self.answered(started.code, started.message)
            await self.write(client, message)
        self.tell(WITHIN[0])
        return await self.end(client)

    async def connect(self) -> aiosmtplib.SMTP:
        there = self.destination
        open_ = there.open or opener(ANYWHERE)
        opened = await open_(there.host, there.port, self.seconds * CONNECTING)
        self.connection = opened
        self.client = client = aiosmtplib.SMTP(
            hostname=there.host,
            local_hostname=there.ehlo_name or _own_name(opened),
            sock=opened,
            use_tls=there.tls == "implicit",
            start_tls=False,
            tls_context=there.encryption() if there.tls == "implicit" else None,
            timeout=self.seconds,
        )
        self.step = "the greeting"
        await client.connect()
        self.step = "EHLO"
        await client.ehlo()
        return client

    async def secure(self, client: aiosmtplib.SMTP) -> Failure | None:
        """Encrypt, then say who we are; never the second without the first, but on loopback."""
        there = self.destination
        encrypted = there.tls == "implicit"
        offered = client.supports_extension("starttls")
        if there.tls == "starttls" and not offered and not self.is_local():
            return self.not_sent("the server offers no STARTTLS")
        if there.tls == "starttls" and offered:
            self.step = "STARTTLS"
            await client.starttls(tls_context=there.encryption(), server_hostname=there.host)
            await client.ehlo()
            encrypted = True
        if there.user is not None:
            if not encrypted and not self.is_local():
                return self.not_sent("no password goes over a connection that is not encrypted")
            if not client.supports_extension("auth"):
                return self.not_sent("the server offers no AUTH, and a user is configured")
            self.step = "AUTH"
            await client.login(there.user, _secret(there.password))
        return None

    async def envelope(
        self, client: aiosmtplib.SMTP, request: Request, *, sender: str
    ) -> Failure | None:
        options = []
        encoding = "ascii"
        if SMTPUTF8 in request.headers:
            if not client.supports_extension("smtputf8"):
                return self.not_sent("the server takes no address with other letters than ASCII")
            options, encoding = ["SMTPUTF8", "BODY=8BITMIME"], "utf-8"
        self.step = "MAIL FROM"
        await client.mail(sender, options=options, encoding=encoding)
        self.step = "RCPT TO"
        await client.rcpt(request.path, encoding=encoding)
        return None

    async def write(self, client: aiosmtplib.SMTP, message: bytes) -> None:
        """Write the message without its end, until the system has taken all of it."""
        self.step = "the message"
        transport, protocol = client.transport, client.protocol
        if not isinstance(transport, asyncio.WriteTransport) or protocol is None:
            raise aiosmtplib.SMTPServerDisconnected("Connection lost")
        transport.set_write_buffer_limits(high=0)
        writer = asyncio.StreamWriter(transport, protocol, None, asyncio.get_running_loop())
        self.writer = writer
        writer.write(message)
        await writer.drain()

    async def end(self, client: aiosmtplib.SMTP) -> Reply | Failure:
        assert self.writer is not None
        if client.protocol is None or self.writer.is_closing():
            return self.broke("the connection was closed")
        if getattr(client.protocol, "_buffer", b""):
            # What was said too early would be taken for the answer to the end of the message.
            return self.broke("more answers than there were commands")
        self.step = "the end of the data"
        self.ended = True
        self.writer.write(b".\r\n")
        self.tell(WITHIN[1])
        answer = await client.protocol.read_response()
        return self.answered(answer.code, answer.message)

    def answered(self, code: int, text: str) -> Reply | Failure:
        """What the server said, at the step at which it said it."""
        if not 200 <= code < 600 or (300 <= code < 400) or (code < 400 and not self.ended):
            return self.broke("an answer that SMTP does not know")
        found = _ENHANCED.match(text)
        enhanced = f" {found[0]}" if found else ""
        return Reply(
            status=code,
            step=self.step,
            said=f"{code}{enhanced}",
            text=text,
            about_us=self.step in {"the greeting", "EHLO", "STARTTLS", "AUTH"} or code == 530,
        )

    def broke(self, reason: str) -> Failure:
        kind = Sent.MAYBE_SENT if self.ended else Sent.NOT_SENT
        where = "after the end of the data" if self.ended else f"not sent: at {self.step}"
        return Failure(kind=kind, reason=bounded(f"{where}: {reason}"))

    def not_sent(self, reason: str) -> Failure:
        return Failure(kind=Sent.NOT_SENT, reason=bounded(f"not sent: {reason}"))

    def is_local(self) -> bool:
        assert self.connection is not None
        return _is_loopback(self.connection)

    def tell(self, point: str) -> None:
        if self.destination.point is not None:
            self.destination.point(point)

    async def close(self) -> None:
        client = self.client
        if client is not None and client.is_connected:
            if self.ended:  # what was said is said: how the conversation ends changes nothing
                with suppress(aiosmtplib.SMTPException, OSError, TimeoutError):
                    async with asyncio.timeout(CLOSING_LIMIT):
                        await client.quit()
            client.close()
        elif self.connection is not None:
            self.connection.close()


def _on_the_wire(request: Request, *, sender: str) -> bytes:
    """The frozen message with its Message-ID, dots doubled (RFC 5321, 4.5.2), without its end."""
    message = request.body
    head = message.partition(b"\r\n\r\n")[0]
    if request.idempotency_key is not None and not _HAS_ID.search(head):
        own = message_id(request.idempotency_key, mail_from=sender)
        message = b"Message-ID: " + own.encode("utf-8") + b"\r\n" + message
    message = _LINE_END.sub(b"\r\n", message)
    if not message.endswith(b"\r\n"):
        message += b"\r\n"
    return re.sub(rb"(?m)^\.", b"..", message)


def _own_name(connection: socket.socket) -> str:
    """The name to introduce ourselves by (RFC 5321, 4.1.4): the host's, or else its address."""
    name = socket.gethostname()
    if _EHLO_NAME.fullmatch(name):
        return name
    address = ip_address(connection.getsockname()[0].partition("%")[0])
    return f"[IPv6:{address}]" if address.version == 6 else f"[{address}]"


def _is_loopback(connection: socket.socket) -> bool:
    address = ip_address(connection.getpeername()[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _secret(value: Secret | None) -> str:
    return "" if value is None else value if isinstance(value, str) else value()


def _told(error: Exception) -> str:
    """What broke; the words of an error may be the server's, and are left out."""
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"{type(cause).__name__}: {cause.verify_message}"
    if isinstance(cause, OSError) and cause.strerror:
        return f"{type(cause).__name__}: {cause.strerror}"
    return type(cause).__name__
