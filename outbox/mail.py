"""A mail, frozen: one call for each of its recipients, safe from what data may hold."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime

from outbox.mail_headers import address_line, text_line

METHOD = "MAIL"
MAIL_FROM = "mail-from"  #: among an entry's headers: the envelope's sender
SMTPUTF8 = "smtputf8"  #: among an entry's headers: an address holds more than ASCII
SIZE_LIMIT = 10 * 1024 * 1024  # bytes of one message; many servers take no more
RECIPIENTS_LIMIT = 100  # of one mail: each is an entry
SUBJECT_LIMIT = 900  # characters; RFC 5322, 2.1.1 ends a line at 998

#: Headers that are ours: who, when and which message it is, and how it is built.
OURS = frozenset(
    {
        *("from", "sender", "reply-to", "return-path", "to", "cc", "bcc", "subject", "date"),
        *("message-id", "mime-version", "content-type", "content-transfer-encoding", "received"),
    }
)

HEADER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,76}")
# Whatever ends a line anywhere, in ASCII or not, and half characters: no header holds them.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
FORBIDDEN_IN_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# RFC 5321, 4.1.2 (Dot-string) and RFC 6531, 3.3: no quoted local parts, which nobody has
LOCAL = re.compile(r"[\w!#$%&'*+/=?^`{|}~-]+(?:\.[\w!#$%&'*+/=?^`{|}~-]+)*")
DOMAIN = re.compile(
    r"(?=.{1,255}$)[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    r"(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
LITERAL = re.compile(r"\[(?:\d{1,3}(?:\.\d{1,3}){3}|IPv6:[0-9A-Fa-f:.]{2,45})\]")
# Read differently by the two standards of international names: the mail could go to a stranger.
DEVIATIONS = frozenset("\u00df\u1e9e\u03c2\u200c\u200d")

_POLICY = policy.SMTP.clone(cte_type="7bit", max_line_length=78)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """What is to be sent; every address is one address, `a@b` or `Name <a@b>`."""

    sender: str  #: From, and the envelope's sender
    to: Sequence[str] = ()
    cc: Sequence[str] = ()
    bcc: Sequence[str] = ()  #: in no header: nobody sees them
    reply_to: Sequence[str] = ()
    subject: str
    text: str | None = None
    html: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)  #: further ones
    size_limit: int = SIZE_LIMIT  #: bytes of the whole message


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """The call for one recipient, as an entry holds it."""

    part: str  #: "0" for the first recipient, then "1", "2" ...
    method: str
    path: str  #: the recipient's address
    headers: Mapping[str, str]
    body: bytes  #: the message, the same for every recipient


class MailError(ValueError):
    """A mail that cannot be made; says why, without repeating what it was made of."""


def compose(mail: Mail, *, date: datetime) -> list[Letter]:
    """
    Freeze *mail*: one message, and a call for each recipient (RFC 5321 and 5322).

    *date* becomes its Date. Its Message-ID is not in it: that follows from the idempotency key of
    each entry when it is sent. The same address named twice gets one letter. Raises MailError.
    """
    sender = read_address(mail.sender, what="from")
    named = {
        what: [read_address(one, what=what) for one in given]
        for what, given in (
            ("to", mail.to),
            ("cc", mail.cc),
            ("bcc", mail.bcc),
            ("reply_to", mail.reply_to),
        )
    }
    recipients = list(
        dict.fromkeys(one.addr_spec for what in ("to", "cc", "bcc") for one in named[what])
    )
    if not recipients:
        raise MailError("nobody is to receive it")
    if len(recipients) > RECIPIENTS_LIMIT:
        raise MailError(f"more than {RECIPIENTS_LIMIT} recipients: each is an entry of its own")
    every = [sender, *(one for some in named.values() for one in some)]
    wide = any(not one.addr_spec.isascii() for one in every)
    body = _message(mail, sender=sender, named=named, date=date)
    if len(body) > mail.size_limit:
        raise MailError(f"the message has {len(body)} bytes, more than {mail.size_limit}")
    headers = {MAIL_FROM: sender.addr_spec, **({SMTPUTF8: "true"} if wide else {})}
    return [
        Letter(part=str(number), method=METHOD, path=one, headers=headers, body=body)
        for number, one in enumerate(recipients)
    ]


def read_address(text: str, *, what: str) -> Address:
    """
    Read exactly one address: a value that names two would send to somebody that nobody meant.

    A domain with other letters than ASCII is written as DNS has it. Raises MailError.
    """
    if CONTROL.search(text):
        raise MailError(f"{what}: a control character, or the end of a line, in an address")
    display, addr = "", text.strip()
    if addr.endswith(">"):
        display, opened, addr = addr[:-1].rpartition("<")
        display = display.strip()
        if not opened:
            raise MailError(f"{what}: > without <")
        if len(display) >= 2 and display[0] == display[-1] == '"':
            display = display[1:-1]
            if re.search(r'[\\"]', display):
                raise MailError(f"{what}: a quote within a name")
        elif re.search(r'[<>@,;:\\"]', display):
            raise MailError(f"{what}: a name with punctuation must be in quotes")
    local, at, domain = addr.rpartition("@")
    if not at or not LOCAL.fullmatch(local) or len(local.encode("utf-8", "replace")) > 64:
        raise MailError(f'{what}: not one address, like "name@shop.example"')
    return Address(display_name=display, username=local, domain=_domain(domain, what=what))


def message_id(key: str, *, mail_from: str) -> str:
    """
    The Message-ID of the mail under idempotency key *key*: the same for every attempt.

    >>> message_id("evt_1", mail_from="orders@shop.example")
    '<7d4e5a76eae6d8c165410ac19fe67565@shop.example>'
    """
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"<{digest}@{mail_from.rpartition('@')[2] or 'localhost'}>"


def _domain(domain: str, *, what: str) -> str:
    if LITERAL.fullmatch(domain):
        return domain
    if not domain.isascii():
        if DEVIATIONS & set(domain):
            raise MailError(f"{what}: write this domain as DNS has it, xn--...")
        try:
            domain = domain.encode("idna").decode("ascii")
        except UnicodeError:
            raise MailError(f"{what}: not a domain") from None
    if not DOMAIN.fullmatch(domain):
        raise MailError(f"{what}: not a domain")
    return domain


def _message(
    mail: Mail, *, sender: Address, named: Mapping[str, Sequence[Address]], date: datetime
) -> bytes:
    if CONTROL.search(mail.subject):
        raise MailError("subject: a control character, or the end of a line")
    if len(mail.subject) > SUBJECT_LIMIT:
        raise MailError(f"subject: longer than {SUBJECT_LIMIT} characters")
    lines = [address_line("From", [sender])]
    for header, what in (("To", "to"), ("Cc", "cc"), ("Reply-To", "reply_to")):
        if named[what]:
            lines.append(address_line(header, named[what]))
    if not named["to"] and not named["cc"]:
        lines.append(text_line("To", "undisclosed-recipients:;"))
    lines.append(text_line("Subject", mail.subject))
    lines.append(text_line("Date", format_datetime(date)))
    for name, value in mail.headers.items():
        lines.append(text_line(check_header(name), _header_value(name, value)))
    return "".join(lines).encode() + _content(mail)


def check_header(name: str) -> str:
    """Return *name* if an effect may set that header of a mail. Raises MailError."""
    if not HEADER_NAME.fullmatch(name):
        raise MailError(f"{name!r} is not the name of a mail's header")
    if name.lower() in OURS:
        raise MailError(f"{name} is set by other keys, or by us")
    return name


def _header_value(name: str, value: str) -> str:
    if CONTROL.search(value):
        raise MailError(f"header {name}: a control character, or the end of a line")
    return value


def _content(mail: Mail) -> bytes:
    """What the text and the HTML come to, with the headers that say so."""
    if mail.text is None and mail.html is None:
        raise MailError("neither text nor html")
    for what, content in (("text", mail.text), ("html", mail.html)):
        if content is not None and FORBIDDEN_IN_TEXT.search(content):
            raise MailError(f"{what}: a control character")
    message = EmailMessage(policy=_POLICY)
    try:
        if mail.text is not None:
            message.set_content(mail.text, charset="utf-8")
        if mail.html is not None and mail.text is not None:
            message.add_alternative(mail.html, subtype="html", charset="utf-8")
            # by its content, not by chance: the same mail is the same bytes
            mark = hashlib.sha256(f"{mail.text}\0{mail.html}".encode()).hexdigest()[:32]
            message.set_boundary(f"=_{mark}")
        elif mail.html is not None:
            message.set_content(mail.html, subtype="html", charset="utf-8")
        return message.as_bytes()
    except UnicodeError:
        raise MailError("the text holds half a character") from None
