"""Mail over real sockets: what may be repeated, what may not, and what goes over the wire."""

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outbox.destinations import Request
from outbox.destinations.smtp import SmtpDestination
from outbox.entry import NewEntry, outgoing_key
from outbox.mail import Mail, compose
from outbox.verdict import Failure, Reply, Sent
from tests.outbox.pretend_mail import DROP, SILENCE, MailServer

pytestmark = pytest.mark.anyio

DATE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECONDS = timedelta(seconds=20)
PEM = Path(__file__).with_name("mail_server.pem")  # of 127.0.0.1, signed by itself


def letters(number: int = 1, **changes) -> list[NewEntry]:
    given = {"to": ["jo@customer.example"], "subject": "Your refund", "text": "Hi.\n.\n..bye"}
    mail = Mail(sender="orders@shop.example", **{**given, **changes})
    return [
        NewEntry(
            sender="shop",
            event_id=f"evt_{number}",
            effect="receipt",
            destination="payments",
            idempotency_key=outgoing_key(f"evt_{number}", part=one.part),
            idempotent=False,
            part=one.part,
            method=one.method,
            path=one.path,
            headers=one.headers,
            body=one.body,
        )
        for one in compose(mail, date=DATE)
    ]


def a_request(**changes) -> Request:
    (entry,) = letters(**changes)
    return Request(
        method=entry.method,
        path=entry.path,
        headers=entry.headers,
        body=entry.body,
        idempotency_key=entry.idempotency_key,
        idempotent=False,
    )


def to(server: MailServer, **changes) -> SmtpDestination:
    given = {"host": "127.0.0.1", "port": server.port, "tls": "starttls"}
    return SmtpDestination(**{**given, **changes})


def certificates() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What the server shows, and what makes a client believe it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(PEM)
    return server, ssl.create_default_context(cafile=str(PEM))


@pytest.fixture
async def mail_server() -> AsyncIterator[MailServer]:
    async with MailServer() as server:
        yield server


@pytest.mark.parametrize(
    ("says", "state", "taken"),
    [
        ({"greeting": [DROP, "220 hi"]}, "pending", 0),
        ({"greeting": ["421 4.3.2 too busy"]}, "pending", 0),
        ({"EHLO": [DROP]}, "pending", 0),
        ({"MAIL": [DROP]}, "pending", 0),
        ({"MAIL": ["451 4.3.0 later"]}, "pending", 0),
        ({"RCPT": ["450 4.2.1 greylisted"]}, "pending", 0),
        ({"RCPT": ["550 5.1.1 nobody of that name"]}, "dead", 0),
        ({"DATA": [DROP]}, "pending", 0),
        ({"DATA": ["554 5.7.1 no"]}, "dead", 0),
        ({"DATA": ["354 go\r\n250 2.0.0 taken"], "end": ["554 5.6.0 spam"]}, "pending", 0),
        ({"end": ["452 4.3.1 full"]}, "pending", 0),
        ({"end": ["554 5.6.0 spam"]}, "dead", 0),
        ({"end": [DROP]}, "uncertain", 1),
        ({"end": ["what?"]}, "uncertain", 1),
        ({"QUIT": [DROP]}, "delivered", 1),
    ],
)
async def test_only_silence_after_the_end_of_the_data_leaves_it_open(
    world, mail_server, says, state, taken
):
    """
    Whatever breaks before the message has ended is repeated: the server cannot have taken it. An
    answer is an answer, 4xx to be tried again, 5xx for good. Only where the message had ended and
    nothing was answered may it be in somebody's inbox.
    """
    mail_server.says = says
    world.set(channel=to(mail_server))
    await world.enqueue(*letters())
    await world.relay_once()

    entry = await world.entry()
    assert (state, taken) == (entry.state, len(mail_server.taken)), entry.last_error
    assert "customer" not in (entry.last_error or "")
    assert "nobody" not in (entry.last_error or "")
    assert (state == "uncertain") == (entry.first_attempt_at is not None and state != "delivered")


async def test_a_connection_that_breaks_within_the_message_is_no_unknown_outcome(
    world, mail_server
):
    """A message without its end is no message: what breaks while it is written is repeated."""
    mail_server.says = {"body": [DROP]}
    world.set(channel=to(mail_server))
    await world.enqueue(*letters(text="a line that fills buffers\n" * 300_000))
    await world.relay_once()

    entry = await world.entry()
    assert ("pending", None) == (entry.state, entry.first_attempt_at)
    assert entry.last_error.startswith("not sent: at the message: ")
    assert [] == mail_server.taken


async def test_a_mail_that_failed_before_its_end_goes_again_as_the_same_mail(world, mail_server):
    """Three attempts, the third succeeds: one mail, under the Message-ID of its key (C93)."""
    mail_server.says = {"RCPT": ["450 4.2.1 greylisted", "451 4.3.0 later", "250 Ok"]}
    world.set(channel=to(mail_server))
    await world.enqueue(*letters())
    for _ in range(3):
        await world.relay_once()
        await world.time_passes(timedelta(hours=1))

    assert ["delivered"] == await world.states()
    (mail,) = mail_server.taken
    assert ["jo@customer.example"] == mail.recipients
    assert "orders@shop.example" == mail.sender
    assert 3 == len([line for line in mail_server.heard if line.startswith("MAIL FROM")])
    assert [1, 2, 3] == [attempt.attempt for attempt in await world.attempts()]
    assert [450, 451, 250] == [attempt.status for attempt in await world.attempts()]


async def test_an_uncertain_mail_is_not_sent_again(world, mail_server):
    """The answer to the end of the data is lost; days go by: it stays with a person (C93)."""
    mail_server.says = {"end": [SILENCE]}
    world.set(channel=to(mail_server), timeout=timedelta(seconds=0.6))
    await world.enqueue(*letters())
    await world.relay_once()
    for _ in range(3):
        await world.time_passes(timedelta(days=1))
        assert 0 == await world.relay_once()

    assert ["uncertain"] == await world.states()
    assert 1 == len(mail_server.taken)
    assert "after the end of the data: no answer within 0.6 s" == (await world.entry()).last_error


async def test_each_recipient_stands_for_itself(world, mail_server):
    """One of three does not exist: the other two have their mail, and only hers is dead."""
    mail_server.says = {"RCPT": ["250 Ok", "550 5.1.1 no", "250 Ok"]}
    world.set(channel=to(mail_server), concurrency=1)
    await world.enqueue(*letters(to=["a@c.example", "b@c.example"], bcc=["z@c.example"]))
    for _ in range(3):
        await world.relay_once()

    assert ["delivered", "dead", "delivered"] == await world.states()
    assert [["a@c.example"], ["z@c.example"]] == [mail.recipients for mail in mail_server.taken]
    assert 2 == len(set(mail_server.ids))


async def test_lines_that_begin_with_a_dot_arrive_as_they_were_written(mail_server):
    """Dots are doubled on the way, and a lone one does not end the message."""
    said = await to(mail_server).send(a_request(), timeout=SECONDS)

    assert isinstance(said, Reply), said
    (mail,) = mail_server.taken
    assert ["Hi.", "..", "...bye", ""] == mail.lines[-4:]


async def test_nothing_of_the_mail_goes_out_unencrypted_where_encryption_is_offered():
    """STARTTLS before anything but EHLO, with a certificate that is checked."""
    server_context, client_context = certificates()
    async with MailServer(offers=("STARTTLS",), certificate=server_context) as server:
        said = await to(server, context=client_context).send(a_request(), timeout=SECONDS)
        assert isinstance(said, Reply), said
        unencrypted = server.heard[: len(server.heard) - len(server.encrypted)]
        assert ["EHLO", "STARTTLS"] == [line.split(" ")[0] for line in unencrypted]

        stranger = ssl.create_default_context()
        said = await to(server, context=stranger).send(a_request(), timeout=SECONDS)
        assert isinstance(said, Failure)
        assert Sent.NOT_SENT is said.kind
        assert "certificate" in said.reason.lower()
        assert 1 == len(server.taken)


async def test_a_server_elsewhere_that_offers_no_encryption_gets_no_mail(mail_server, monkeypatch):
    """Only on loopback is it let pass; elsewhere somebody may have cut the offer out."""
    monkeypatch.setattr("outbox.destinations.smtp._is_loopback", lambda _: False)
    said = await to(mail_server).send(a_request(), timeout=SECONDS)
    assert isinstance(said, Failure)
    assert "not sent: the server offers no STARTTLS" == said.reason

    said = await to(mail_server, tls="none", user="shop", password=lambda: "hush").send(
        a_request(), timeout=SECONDS
    )
    assert isinstance(said, Failure)
    assert "password" in said.reason
    assert not any("AUTH" in line for line in mail_server.heard)

    said = await to(mail_server, tls="none").send(a_request(), timeout=SECONDS)
    assert isinstance(said, Reply)


async def test_a_password_that_is_refused_is_a_matter_of_configuration(world):
    """No mail dies of it, and it is tried slowly; nothing tells the password."""
    server_context, client_context = certificates()
    async with MailServer(
        offers=("STARTTLS", "AUTH PLAIN"),
        certificate=server_context,
        says={"AUTH": ["535 5.7.8 hush is not your password", "235 welcome"]},
    ) as server:
        channel = to(server, user="shop", password=lambda: "hush", context=client_context)
        world.set(channel=channel)
        await world.enqueue(*letters())
        await world.relay_once()
        entry = await world.entry()
        assert ("pending", 1) == (entry.state, entry.refusals)
        assert "AUTH was answered 535 5.7.8" == entry.last_error
        await world.time_passes(timedelta(hours=2))
        server.says["AUTH"] = ["235 welcome"]
        await world.relay_once()
        assert ["delivered"] == await world.states()
        assert all("AUTH" not in line for line in server.heard if line not in server.encrypted)


async def test_a_server_that_lets_nobody_say_who_he_is_is_told_as_one(world, mail_server):
    """By what is missing, which is a matter of its port or of our encryption."""
    world.set(channel=to(mail_server, user="shop", password=lambda: "hush"))
    await world.enqueue(*letters())
    await world.relay_once()
    entry = await world.entry()
    said = "not sent: the server offers no AUTH, and a user is configured"
    assert ("pending", said) == (entry.state, entry.last_error)


async def test_time_is_spent_where_it_does_no_harm(mail_server):
    """A server that is slow before the end is given up in time to be tried again safely."""
    mail_server.says = {"RCPT": [SILENCE]}
    said = await to(mail_server).send(a_request(), timeout=timedelta(seconds=0.4))

    assert isinstance(said, Failure)
    assert Sent.NOT_SENT is said.kind
    assert "not sent: at RCPT TO: no answer within 0.4 s" == said.reason


async def test_an_entry_of_another_kind_is_no_mail(mail_server):
    """A destination that was HTTP when its entries were frozen sends none of them as a mail."""
    request = a_request()._replace(method="POST", path="/v1/charges")
    said = await to(mail_server).send(request, timeout=SECONDS)
    assert isinstance(said, Failure)
    assert Sent.NOT_SENT is said.kind
    assert [] == mail_server.heard


async def test_a_real_server_that_loses_its_answer_has_one_mail(world, tmp_path):
    """
    aiosmtpd, a process of its own: of two mails one is answered and one is not. The first is
    delivered, the other uncertain, and a relay that goes on for days sends neither again.
    """
    async with a_real_server(tmp_path / "mails") as port:
        world.set(channel=SmtpDestination(host="127.0.0.1", port=port, tls="starttls"))
        await world.enqueue(*letters(1), *letters(2, to=["lost@customer.example"]))
        for _ in range(4):
            await world.relay_once()
            await world.time_passes(timedelta(days=1))

    assert ["delivered", "uncertain"] == await world.states()
    mails = [json.loads(line) for line in (tmp_path / "mails").read_text().splitlines()]
    assert [["jo@customer.example"], ["lost@customer.example"]] == sorted(m["to"] for m in mails)
    assert all("Message-ID: <" in mail["content"] for mail in mails)


@contextlib.asynccontextmanager
async def a_real_server(store: Path) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.outbox.mail_server", str(store)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 20)
