"""Where calls may connect to: the table of addresses, and real connections that are not made."""

import asyncio
import ipaddress
import socket
from datetime import timedelta

import httpx
import pytest

from outbox.destinations import Request
from outbox.destinations.connecting import GuardedTransport, allowed_addresses, opener
from outbox.destinations.http import HttpDestination
from outbox.egress import BlockedError, Egress, Listener, chosen, read_networks, refusal
from outbox.entry import State
from outbox.verdict import Failure, Sent
from tests.outbox.world import HERE, an_entry

SOON = timedelta(seconds=5)
EVERYWHERE = Egress()
TEN = Egress(allowed=read_networks(["10.0.0.0/8"]))
PUBLIC = ("8.8.8.8", "1.1.1.1", "172.32.0.1", "193.0.14.129", "2606:4700::1111", "2a00:1450::1")
NOT_PUBLIC = (
    *("127.0.0.1", "127.255.255.254", "::1", "0.1.2.3", "::"),
    *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12:3456::1"),
    *("169.254.169.254", "fe80::1", "fe80::1%2", "fec0::1", "100.64.0.1", "100.127.255.255"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "64:ff9b::808:808", "2002:a9fe:a9fe::"),
    *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "192.88.99.1", "192.0.0.1", "192.0.2.1"),
    *("198.18.0.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1", "100::1"),
    *("224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1", "240.0.0.1", "255.255.255.255"),
    *("5f00::1", "4000::1", "not-an-address", ""),
)


def a_request(**changes):
    fields = {
        "method": "POST",
        "path": "/v1/charges",
        "headers": {},
        "body": b"{}",
        "idempotency_key": "key_1",
        "idempotent": True,
    }
    return Request(**fields | changes)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_host_may_be_reached(address):
    assert refusal(address, 443, EVERYWHERE) is None


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_nothing_else_may_be_reached(address):
    """Also what Python's `is_global` lets pass: tunnels, translations, IPv4 inside of IPv6."""
    assert refusal(address, 443, EVERYWHERE) is not None


def test_what_is_named_may_be_reached_and_its_neighbours_may_not():
    """A range means the address that is really connected to: an envelope of it counts as it."""
    assert refusal("10.1.2.3", 80, TEN) is None
    assert refusal("::ffff:10.1.2.3", 80, TEN) is None
    assert refusal("11.0.0.1", 80, TEN) is None
    assert "private" in refusal("192.168.0.1", 80, TEN)
    assert "NAT64" in refusal("64:ff9b::a01:203", 80, TEN)


def test_one_answer_that_is_not_public_spoils_them_all():
    """A name with a public and a private address is not to be trusted with either."""
    assert ["8.8.8.8", "1.1.1.1"] == chosen(["8.8.8.8", "1.1.1.1", "8.8.8.8"], 443, EVERYWHERE)

    for answers in (["8.8.8.8", "10.0.0.7"], ["10.0.0.7", "8.8.8.8"], ["8.8.8.8", "::1"]):
        with pytest.raises(BlockedError, match="may not be reached"):
            chosen(answers, 443, EVERYWHERE)


def test_our_own_listeners_are_never_reached():
    """Not even where their network is allowed: a call to ourselves is nobody's wish."""
    here = read_networks(["127.0.0.0/8"])
    one = Egress(
        allowed=here, listeners=(Listener(host=ipaddress.ip_address("127.0.0.1"), port=3000),)
    )
    all_of_them = Egress(allowed=here, listeners=(Listener(host=None, port=3001),))

    assert "listen ourselves" in refusal("127.0.0.1", 3000, one)
    assert refusal("127.0.0.1", 3001, one) is None
    assert refusal("127.0.0.2", 3000, one) is None
    assert "listen ourselves" in refusal("127.0.0.2", 3001, all_of_them)
    for anywhere in ("0.0.0.0", "::", "::ffff:0.0.0.0"):  # noqa: S104  # they lead to loopback
        assert "listen ourselves" in refusal(anywhere, 3000, one)


@pytest.mark.parametrize(
    "spelling", ["0x7f.1", "2130706433", "127.1", "0177.0.0.1", "localhost", "①②⑦.0.0.1"]
)
@pytest.mark.anyio
async def test_the_spelling_of_an_address_makes_no_difference(spelling):
    """The resolver knows them all; what counts is what it makes of them."""
    with pytest.raises(BlockedError, match="loopback"):
        await allowed_addresses(spelling, 443, EVERYWHERE)


@pytest.mark.parametrize("spelling", ["127.0.0.1", "2130706433", "0x7f.1", "localhost", "[::1]"])
@pytest.mark.anyio
async def test_a_blocked_call_is_not_sent_and_no_connection_is_made(pretend, spelling):
    """The destination's socket is there and listening: nobody knocks."""
    port = pretend.url.rpartition(":")[2]
    channel = HttpDestination(
        base_url=f"http://{spelling}:{port}", key_header="Idempotency-Key", concurrency=1
    )

    said = await channel.send(a_request(), timeout=SOON)

    assert isinstance(said, Failure)
    assert Sent.NOT_SENT is said.kind
    assert said.blocked
    assert "loopback" in said.reason
    assert "allow_private" in said.reason
    assert 0 == pretend.connections


@pytest.mark.anyio
async def test_the_judged_address_is_the_one_that_is_connected_to(pretend):
    """
    DNS rebinding: the name means something else at every question. It is asked once, and what
    was judged is what the connection goes to; the Host header still says the name.
    """
    asked = []

    async def rebinding(host, port):
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.255.255.1"]

    tls = httpx.create_ssl_context(verify=False)
    port = pretend.url.rpartition(":")[2]
    async with GuardedTransport(HERE, tls=tls, limits=httpx.Limits(), resolve=rebinding) as way:
        answer = await way.handle_async_request(
            httpx.Request("POST", f"http://payments.example:{port}/v1", content=b"{}")
        )
        await answer.aread()
        assert 200 == answer.status_code

    assert ["payments.example"] == asked
    assert f"payments.example:{port}" == pretend.calls[0].headers["host"]


@pytest.mark.anyio
async def test_a_dead_first_address_leaves_time_for_the_second(pretend):
    async def two(host, port):
        return ["127.0.0.2", "127.0.0.1"]  # nobody listens at the first

    tls = httpx.create_ssl_context(verify=False)
    port = pretend.url.rpartition(":")[2]
    async with GuardedTransport(HERE, tls=tls, limits=httpx.Limits(), resolve=two) as way:
        answer = await way.handle_async_request(
            httpx.Request("POST", f"http://payments.example:{port}/", content=b"")
        )
        await answer.aread()

    assert 200 == answer.status_code


@pytest.mark.anyio
async def test_no_proxy_comes_from_the_environment(pretend, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    channel = HttpDestination(base_url=pretend.url, key_header=None, concurrency=1, egress=HERE)

    said = await channel.send(a_request(), timeout=SOON)
    await channel.close()

    assert 200 == said.status


@pytest.mark.anyio
async def test_a_configured_proxy_is_what_is_connected_to_and_judged(pretend):
    """The proxy is asked for the whole address; if it may not be reached, nothing is sent."""
    through = {"base_url": "http://payments.example", "key_header": None, "concurrency": 1}
    channel = HttpDestination(**through, proxy=pretend.url, egress=HERE)

    said = await channel.send(a_request(), timeout=SOON)
    await channel.close()
    blocked = await HttpDestination(**through, proxy=pretend.url).send(a_request(), timeout=SOON)

    assert 200 == said.status
    assert ["http://payments.example/v1/charges"] == [call.target for call in pretend.calls]
    assert blocked.blocked


@pytest.mark.anyio
async def test_a_blocked_entry_waits_for_its_configuration(world):
    """Nothing was sent, so nothing is uncertain: it is tried slowly, and goes out when it may."""
    world.set(channel=world.channel(egress=Egress()))
    await world.enqueue(an_entry(idempotent=False))

    await world.relay_once()
    row = await world.entry()
    assert State.PENDING.value == row.state
    assert "allow_private" in row.last_error
    assert row.first_attempt_at is None
    (wait,) = await world.waits()
    assert wait > 1500  # half the cap at the least

    world.set(channel=world.channel())
    await world.time_passes(timedelta(hours=1))
    await world.relay_once()
    assert ["delivered"] == await world.states()


@pytest.mark.anyio
async def test_nothing_small_is_held_back(pretend):
    """A body behind its head would wait for what the other side is in no hurry to say: 40 ms."""
    port = int(pretend.url.rpartition(":")[2])
    its_socket = await opener(HERE)("127.0.0.1", port, 5.0)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=its_socket)
    option = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    transport.close()
    assert option
