"""Mails as they are frozen: one letter a recipient, and nothing that data could add to them."""

import email
import re
from datetime import UTC, datetime
from email import policy
from email.header import decode_header, make_header
from email.utils import getaddresses

import pytest

from outbox.mail import Mail, MailError, compose, message_id, read_address

DATE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def a_mail(**changes) -> Mail:
    given = {
        "sender": "Shop <orders@shop.example>",
        "to": ["jo@customer.example"],
        "subject": "Your refund",
        "text": "We sent you 42.",
    }
    return Mail(**{**given, **changes})


def read(mail: Mail):
    return email.message_from_bytes(compose(mail, date=DATE)[0].body, policy=policy.SMTP)


def test_each_recipient_is_a_letter_and_nobody_sees_who_had_a_blind_copy():
    """
    To, Cc and Bcc get a letter each with the same bytes; one address named twice gets one, and
    what was blind stands in no header.
    """
    mail = a_mail(
        to=["jo@customer.example", "Jo <jo@customer.example>"],
        cc=["desk@shop.example"],
        bcc=["audit@shop.example"],
    )
    letters = compose(mail, date=DATE)

    assert ["0", "1", "2"] == [one.part for one in letters]
    assert ["jo@customer.example", "desk@shop.example", "audit@shop.example"] == [
        one.path for one in letters
    ]
    assert 1 == len({one.body for one in letters})
    assert b"audit" not in letters[0].body
    assert {"mail-from": "orders@shop.example"} == letters[0].headers
    assert "desk@shop.example" == read(mail)["Cc"]


def test_the_same_mail_is_the_same_bytes():
    """Nothing is left to chance, not even what separates text from HTML."""
    mail = a_mail(html="<p>We sent you 42.</p>")

    assert compose(mail, date=DATE) == compose(mail, date=DATE)
    message = read(mail)
    assert "multipart/alternative" == message.get_content_type()
    assert ["text/plain", "text/html"] == [part.get_content_type() for part in message.iter_parts()]
    assert "Fri, 02 Jan 2026 03:04:05 +0000" == message["Date"]
    assert message["Message-ID"] is None


def test_letters_of_the_world():
    """A subject and a text in any script arrive as they were written; domains as DNS has them."""
    mail = a_mail(
        to=["Jörg <joerg@bücher.example>"],
        subject="Erstattung für 絵本, " * 8 + "bald",
        text="Grüße\n.\nEnde",
    )
    message = read(mail)

    assert "Erstattung für 絵本, " * 8 + "bald" == message["Subject"]
    assert "Jörg" == message["To"].addresses[0].display_name
    assert "joerg@xn--bcher-kva.example" == compose(mail, date=DATE)[0].path
    assert "Grüße\r\n.\r\nEnde\r\n" == message.get_content()
    assert max(map(len, compose(mail, date=DATE)[0].body.split(b"\r\n"))) <= 998


ENCODED = "=?utf-8?q?Hello=0D=0ABcc:_eve=40evil.example?="
HOSTILE = [
    ENCODED,
    f"Re: {ENCODED} and so on",
    "=?utf-8?b?SGVsbG8NCkJjYzogZXZlQGV2aWwuZXhhbXBsZQ==?=",
    "=?utf-8?q?a?==?utf-8?q?=0D=0ABcc:_eve=40evil.example?=",
    "=?us-ascii?q?=00?=",
    "=?unknown?q?=FF?= =?utf-8?q?half",
    "Jörg, eve@evil.example",
    "Jörg <eve@evil.example>, " * 8,
    "Doe, Jo (Sales) " * 20,
    " two  spaces ",
    "J. Doe",
    "x" * 300,
    "<https://shop.example/" + "u" * 300 + "> <mailto:stop@shop.example>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_that_looks_encoded_stays_the_text_that_it_is(text):
    """
    A customer is called by an encoded word with the end of a line in it, or by a name with a
    comma. As subject, as name and as a header of its own it arrives as it was written: no header
    is there that was not asked for, nobody is named who was not, and no line is too long.
    """
    name = text.strip()
    mail = a_mail(
        sender=f'"{name}" <orders@shop.example>',
        to=["ann@customer.example", f'"{name}" <jo@customer.example>'],
        reply_to=[f'"{name}" <desk@shop.example>'],
        subject=text,
        headers={"X-Order": text, "Resent-To": text, "Content-Disposition": text},
    )
    (letter, _) = compose(mail, date=DATE)
    head = letter.body.partition(b"\r\n\r\n")[0]

    ours = {b"From", b"To", b"Reply-To", b"Subject", b"Date", b"MIME-Version"}
    ours |= {b"X-Order", b"Resent-To", b"Content-Disposition", b"Content-Type"}
    ours |= {b"Content-Transfer-Encoding"}
    assert max(map(len, head.split(b"\r\n"))) <= 998
    unfolded = re.sub(rb"\r\n(?=[ \t])", b"", head)
    assert ours == {line.partition(b":")[0] for line in unfolded.split(b"\r\n")}
    message = email.message_from_bytes(unfolded)
    for header in ("Subject", "X-Order", "Resent-To", "Content-Disposition"):
        assert text == str(make_header(decode_header(message[header])))
    for header, expected in (
        ("From", ["orders@shop.example"]),
        ("To", ["ann@customer.example", "jo@customer.example"]),
        ("Reply-To", ["desk@shop.example"]),
    ):
        found = getaddresses([message[header]])
        assert expected == [address for _, address in found]
        assert name == str(make_header(decode_header(found[-1][0])))


def test_an_address_outside_ascii_is_marked_for_servers_that_take_it():
    """SMTPUTF8 is asked of the server only for a mail that needs it."""
    (letter,) = compose(a_mail(to=["用户@例え.example"]), date=DATE)

    assert "true" == letter.headers["smtputf8"]
    assert "用户@xn--r8jz45g.example" == letter.path


@pytest.mark.parametrize(
    "address",
    [
        "jo@customer.example, eve@evil.example",
        "jo@customer.example\r\nBcc: eve@evil.example",
        "jo@customer.example\nBcc: eve@evil.example",
        "jo@customer.example\u2028Bcc: eve@evil.example",
        "jo@customer.example\x00",
        "jo@customer.example;eve@evil.example",
        "eve@evil.example, Jo <jo@customer.example>",
        "<jo@customer.example> <eve@evil.example",
        "jo @customer.example",
        '"jo eve"@customer.example',
        "jo@customer.example>",
        "jo@straße.example",
        "jo@-customer.example",
        "jo@customer..example",
        ".jo@customer.example",
        f"{'j' * 65}@customer.example",
        "jo",
        "@customer.example",
        "jo@",
        "",
    ],
)
def test_a_value_that_is_not_exactly_one_address_makes_no_mail(address):
    """Data that names a second recipient, or ends the line, is refused and never repeated."""
    with pytest.raises(MailError) as refused:
        compose(a_mail(to=[address]), date=DATE)
    assert "evil" not in str(refused.value)
    assert "customer" not in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"subject": "Hello\r\nBcc: eve@evil.example"},
        {"subject": "Hello\nBcc: eve@evil.example"},
        {"subject": "Hello\x85Bcc: eve@evil.example"},
        {"subject": "x" * 1000},
        {"headers": {"X-Order": "1\r\nBcc: eve@evil.example"}},
        {"headers": {"Bcc": "eve@evil.example"}},
        {"headers": {"Message-ID": "<1@evil.example>"}},
        {"headers": {"X-Order: 1\r\nBcc": "eve@evil.example"}},
        {"text": "a\x00b"},
        {"text": "half \ud800 character"},
        {"subject": "half \ud800 character"},
        {"text": "x" * 2000, "size_limit": 1000},
        {"text": None},
        {"to": []},
        {"to": [f"a{number}@customer.example" for number in range(101)]},
        {"sender": "no address"},
        {"reply_to": ["a@b.example, c@d.example"]},
    ],
)
def test_what_would_add_a_header_or_break_a_message_makes_none(changes):
    """Refused before anything is sent; the entry is `unrendered` then."""
    with pytest.raises(MailError):
        compose(a_mail(**changes), date=DATE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jo@customer.example", ("", "jo@customer.example")),
        (" jo@customer.example ", ("", "jo@customer.example")),
        ("Jo Doe <jo@customer.example>", ("Jo Doe", "jo@customer.example")),
        ('"Doe, Jo" <jo@customer.example>', ("Doe, Jo", "jo@customer.example")),
        ("jo+tag@localhost", ("", "jo+tag@localhost")),
        ("reconciler@[127.0.0.1]", ("", "reconciler@[127.0.0.1]")),
    ],
)
def test_addresses_as_people_write_them(text, expected):
    address = read_address(text, what="to")
    assert expected == (address.display_name, address.addr_spec)


def test_the_message_id_follows_from_the_key_alone():
    """Every attempt of an entry has the same one; no other entry has it."""
    ids = {message_id(key, mail_from="orders@shop.example") for key in ("evt_1", "evt_1:p1", "e")}

    assert 3 == len(ids)
    assert message_id("evt_1", mail_from="a@b.example") == message_id(
        "evt_1", mail_from="c@b.example"
    )
