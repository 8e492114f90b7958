"""The guard and the names of hosts: what a name means is judged, and who answers must be it."""

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from outbox.destinations.connecting import opener
from outbox.destinations.http import HttpDestination
from outbox.destinations.smtp import SmtpDestination
from outbox.egress import Egress, read_networks
from outbox.verdict import Answer, Failure, Reply, Sent
from reconciler.polling.errors import AwayError
from tests.outbox.pretend import Answers, Pretend
from tests.outbox.pretend_mail import MailServer
from tests.outbox.test_egress import a_request
from tests.outbox.test_looking_up import LOOK_UP, THERE, a_looker, an_unknown
from tests.outbox.test_smtp import a_request as a_mail
from tests.outbox.test_smtp import certificates
from tests.outbox.world import HERE
from tests.polling.test_client import api_at

pytestmark = pytest.mark.anyio

SOON = timedelta(seconds=5)
PUBLIC_ONLY = Egress()

Names = Callable[..., list[str]]


@pytest.fixture
def means(monkeypatch: pytest.MonkeyPatch) -> Names:
    """A pretend resolver: `means(name, answers, ...)`, one list a question, the last one stays."""
    real = socket.getaddrinfo

    def known(name: str, *answers: list[str]) -> list[str]:
        left, asked = list(answers), []

        def resolver(host, port, *rest, **how):
            if (host.decode() if isinstance(host, bytes) else host) != name:
                return real(host, port, *rest, **how)
            asked.append(name)
            found = left.pop(0) if len(left) > 1 else left[0]
            return [
                (
                    socket.AF_INET6 if ":" in one else socket.AF_INET,
                    socket.SOCK_STREAM,
                    6,
                    "",
                    (one, port),
                )
                for one in found
            ]

        monkeypatch.setattr(socket, "getaddrinfo", resolver)
        return asked

    return known


def port_of(pretend: Pretend) -> str:
    return pretend.url.rpartition(":")[2]


def to(pretend: Pretend, name: str, *, scheme: str = "http", **changes) -> HttpDestination:
    given = {"key_header": "Idempotency-Key", "concurrency": 1, "egress": HERE}
    return HttpDestination(base_url=f"{scheme}://{name}:{port_of(pretend)}", **given | changes)


async def test_what_was_judged_is_what_is_connected_to(pretend, means):
    """The name means another host at every question: a call asks once, and goes to the answer."""
    asked = means("pay.example", ["127.0.0.1"], ["10.255.255.1"])
    channel = to(pretend, "pay.example")
    said = await channel.send(a_request(), timeout=SOON)
    await channel.close()
    assert isinstance(said, Answer)
    assert ["pay.example"] == asked
    assert f"pay.example:{port_of(pretend)}" == pretend.calls[0].headers["host"]


async def test_a_name_is_judged_anew_with_every_connection(pretend, means):
    """It was a public host yesterday, and means this machine today."""
    means("pay.example", ["192.88.99.1"], ["127.0.0.1"])
    guarded = to(pretend, "pay.example", egress=PUBLIC_ONLY)
    for kind in ("tunnel", "loopback"):
        said = await guarded.send(a_request(), timeout=SOON)
        assert isinstance(said, Failure)
        assert said.blocked
        assert kind in said.reason
    assert 0 == pretend.connections


@pytest.mark.parametrize(
    "answers",
    [
        ["127.0.0.1", "10.0.0.7"],
        ["10.0.0.7", "127.0.0.1"],
        ["127.0.0.1", "::ffff:169.254.169.254"],
        ["127.0.0.1", "fd00::1"],
        ["127.0.0.1", "64:ff9b::a9fe:a9fe"],
        ["127.0.0.1", "2002:a00:1::"],
    ],
)
async def test_all_that_a_name_means_is_judged(pretend, means, answers):
    """One address that may not be reached, first or last, spoils the name: nobody is called."""
    means("pay.example", answers)
    said = await to(pretend, "pay.example").send(a_request(), timeout=SOON)
    assert isinstance(said, Failure)
    assert said.blocked
    assert Sent.NOT_SENT is said.kind
    assert 0 == pretend.connections


async def test_an_ipv4_address_in_an_envelope_is_that_address(pretend, means):
    """`::ffff:127.0.0.1` is reached where 127.0.0.0/8 is allowed, and nowhere else."""
    means("pay.example", ["::ffff:127.0.0.1"])
    allowed = to(pretend, "pay.example")
    assert isinstance(await allowed.send(a_request(), timeout=SOON), Answer)
    await allowed.close()
    only_six = Egress(allowed=read_networks(["::1/128"]))
    said = await to(pretend, "pay.example", egress=only_six).send(a_request(), timeout=SOON)
    assert isinstance(said, Failure)
    assert "loopback" in said.reason
    assert 1 == len(pretend.calls)


@pytest.fixture
async def secure() -> AsyncIterator[tuple[Pretend, ssl.SSLContext, list[str | None]]]:
    """A destination whose certificate is for `localhost`, what believes it, and names it heard."""
    server, client = certificates()
    heard: list[str | None] = []
    server.sni_callback = lambda _, name, __: heard.append(name)
    async with Pretend(certificate=server) as pretend:
        yield pretend, client, heard


async def test_the_certificate_is_judged_by_the_name_and_the_guard_by_the_address(secure, means):
    """The name is in the handshake and in the certificate; where it leads is the guard's."""
    pretend, believing, heard = secure
    means("localhost", ["127.0.0.1"])
    channel = to(pretend, "localhost", scheme="https", tls=believing)
    assert isinstance(await channel.send(a_request(), timeout=SOON), Answer)
    await channel.close()
    assert ["localhost"] == heard
    guarded = to(pretend, "localhost", scheme="https", tls=believing, egress=PUBLIC_ONLY)
    said = await guarded.send(a_request(), timeout=SOON)
    assert isinstance(said, Failure)
    assert said.blocked
    assert 1 == pretend.connections


@pytest.mark.parametrize("name", ["pay.example", "mail.example", "localhost.pay.example"])
async def test_who_shows_a_certificate_for_another_name_is_sent_nothing(secure, means, name):
    """The address is allowed, and somebody else answers there: no key, no token, no body."""
    pretend, believing, heard = secure
    means(name, ["127.0.0.1"])
    channel = to(pretend, name, scheme="https", tls=believing, bearer="hush")
    said = await channel.send(a_request(), timeout=SOON)
    assert isinstance(said, Failure)
    assert Sent.NOT_SENT is said.kind
    assert not said.blocked
    assert "certificate" in said.reason
    assert [name] == heard
    assert [] == pretend.calls


async def test_who_shows_a_certificate_of_nobodys_is_sent_nothing(secure, means):
    """The right name, signed by whoever: the system's authorities do not know it."""
    pretend, _, _ = secure
    means("localhost", ["127.0.0.1"])
    channel = to(pretend, "localhost", scheme="https")
    said = await channel.send(a_request(), timeout=SOON)
    assert isinstance(said, Failure)
    assert Sent.NOT_SENT is said.kind
    assert [] == pretend.calls


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_leads_nowhere(pretend, status):
    """Not to another host, not to a private one, not even where that one is allowed."""
    async with Pretend() as elsewhere:
        away = (("Location", f"{elsewhere.url}/v1/charges"),)
        pretend.behave = lambda _, __: Answers(status=status, headers=away)
        channel = HttpDestination(
            base_url=pretend.url, key_header="Idempotency-Key", concurrency=1, egress=HERE
        )
        said = await channel.send(a_request(), timeout=SOON)
        await channel.close()
        assert isinstance(said, Answer)
        assert status == said.status
        assert (1, 0) == (len(pretend.calls), elsewhere.connections)


async def test_a_look_up_goes_past_the_same_guard(world, pretend):
    """The name means something private by now: nobody is asked, and nothing is concluded."""
    await an_unknown(world, pretend, THERE)
    before = pretend.connections
    world.set(channel=world.channel(egress=PUBLIC_ONLY), look_up=replace(LOOK_UP, looks=1))
    assert 1 == await a_looker(world).once()
    assert before == pretend.connections
    assert ["uncertain"] == await world.states()
    assert "allow_private" in (await world.entry()).last_error


async def test_a_polled_api_goes_past_the_same_guard(pretend, means, monkeypatch):
    """Judged once and connected to that, all answers, no proxy of the environment."""
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    address = f"http://shop.example:{port_of(pretend)}"
    asked = means("shop.example", ["127.0.0.1"], ["127.0.0.1", "10.0.0.7"])
    async with api_at(address) as api:
        assert 200 == (await api.fetch("/v1/orders", {})).status
    assert ["shop.example"] == asked
    async with api_at(address) as api:
        with pytest.raises(AwayError, match=r"10\.0\.0\.7 may not be reached"):
            await api.fetch("/v1/orders", {})
    async with api_at(address, allow_private=()) as api:
        with pytest.raises(AwayError, match="may not be reached"):
            await api.fetch("/v1/orders", {})
    assert 1 == pretend.connections


async def test_a_mail_server_is_found_past_the_same_guard(means):
    """Its name is judged once, all of it, and is what its certificate must be for."""
    server, believing = certificates()
    async with MailServer(offers=("STARTTLS",), certificate=server) as mails:

        def by_name(name: str, egress: Egress = HERE) -> SmtpDestination:
            return SmtpDestination(
                host=name, port=mails.port, tls="starttls", context=believing, open=opener(egress)
            )

        asked = means("localhost", ["127.0.0.1"], ["10.255.255.1"])
        assert isinstance(await by_name("localhost").send(a_mail(), timeout=SOON), Reply)
        assert ["localhost"] == asked

        means("smtp.example", ["127.0.0.1"])
        said = await by_name("smtp.example").send(a_mail(), timeout=SOON)
        assert isinstance(said, Failure)
        assert Sent.NOT_SENT is said.kind
        assert "certificate" in said.reason.lower()

        heard = len(mails.heard)
        for answers, egress in ((["127.0.0.1", "10.0.0.7"], HERE), (["127.0.0.1"], PUBLIC_ONLY)):
            means("smtp.example", answers)
            said = await by_name("smtp.example", egress).send(a_mail(), timeout=SOON)
            assert isinstance(said, Failure)
            assert said.blocked
        assert heard == len(mails.heard)
        assert 1 == len(mails.taken)


@contextmanager
def dead(address: str, port: int) -> Iterator[None]:
    """Nothing answers there, as where the way is broken: a queue that is full, and stays so."""
    with ExitStack() as kept:
        listener = kept.enter_context(socket.socket())
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(4):
            waiting = kept.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        yield


async def test_a_first_address_that_is_dead_leaves_time_for_the_next(pretend, means):
    """A name with two addresses, of which the first is silent: calls and mails go to the second."""
    means("two.example", ["127.0.0.2", "127.0.0.1"])
    channel = to(pretend, "two.example")
    with dead("127.0.0.2", int(port_of(pretend))):
        said = await channel.send(a_request(), timeout=timedelta(seconds=1))
    await channel.close()
    assert isinstance(said, Answer)
    async with MailServer() as mails:
        there = SmtpDestination(host="two.example", port=mails.port, tls="none", open=opener(HERE))
        with dead("127.0.0.2", mails.port):
            said = await there.send(a_mail(), timeout=timedelta(seconds=4))
    assert isinstance(said, Reply)
    assert 1 == len(mails.taken)


async def test_a_name_whose_servers_are_silent_holds_up_no_other_name(
    pretend, monkeypatch: pytest.MonkeyPatch
):
    """
    Forty calls ask for a name and wait in vain. That takes one thread of the few that there are,
    and the calls to another name are made meanwhile; once the servers answer, so are theirs.
    """
    answers, real, asked = threading.Event(), socket.getaddrinfo, []

    def resolver(host, port, *rest, **how):
        if host == "silent.example":
            asked.append(host)
            answers.wait()
        return real("127.0.0.1", port, *rest, **how)

    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    silent, other = to(pretend, "silent.example"), to(pretend, "other.example")
    try:
        async with asyncio.TaskGroup() as calls:
            vain = [
                calls.create_task(silent.send(a_request(), timeout=timedelta(milliseconds=200)))
                for _ in range(40)
            ]
            assert isinstance(await other.send(a_request(), timeout=SOON), Answer)
        assert {Sent.NOT_SENT} == {failure.kind for task in vain if (failure := task.result())}
        assert ["silent.example"] == asked
    finally:
        answers.set()
    assert isinstance(await silent.send(a_request(), timeout=SOON), Answer)
    for channel in (silent, other):
        await channel.close()
