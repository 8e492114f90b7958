"""Answers as they come from strangers: announced, in pieces, badly framed, too long, or twice."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from outbox.verdict import Answer, Failure, Sent
from tests.outbox.pretend import Misbehaves, in_turn
from tests.outbox.test_http import SOON, a_request
from tests.outbox.world import until

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKS = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
ANSWERS = {
    "announced": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + OK,
    "trailers": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n"
    b"0\r\nX-Trailer: 1\r\n\r\n",
    "until its end": b"HTTP/1.0 200 OK\r\n\r\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + CHUNKS,
    "bare line ends": b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
}


@pytest.fixture
def said(monkeypatch):
    """What the destination writes, before it closes."""
    raw = {}
    monkeypatch.setattr("tests.outbox.pretend.RAW", raw)
    return raw


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_understood_however_it_is_framed(pretend, world, said, name):
    """An announcement is no answer, a trailer no header, and what was done is not overlooked."""
    said["so"] = ANSWERS[name]
    pretend.behave = in_turn(Misbehaves("so"))
    answer = await world.channel().send(a_request(), timeout=SOON)
    assert isinstance(answer, Answer)
    assert (200, b"{}", True) == (answer.status, answer.body, answer.complete)
    assert not {"link", "x-trailer"} & {name for name, _ in answer.headers}


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Half: 1\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Endless: 1\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 20x OK\r\n\r\n",
    ],
    ids=["only announced", "half a head", "endless head", "two lengths", "no status"],
)
async def test_what_is_no_answer_leaves_it_open(pretend, world, said, raw):
    said["so"] = raw
    pretend.behave = in_turn(Misbehaves("so"))
    result = await world.channel().send(a_request(), timeout=SOON)
    assert isinstance(result, Failure)
    assert Sent.MAYBE_SENT == result.kind


@pytest.mark.parametrize("more", [OK, b"HTTP/1.1 408 Request Timeout\r\n\r\n", b"?"])
@pytest.mark.parametrize("by_proxy", [False, True])
async def test_one_answer_too_many_is_nobodys(world, more, by_proxy):
    """What comes unasked, by a proxy or not, is not taken for the answer to the next call."""
    connections = 0

    async def twice(reader, writer):
        nonlocal connections
        connections += 1
        await reader.readuntil(b"{}")
        writer.write(OK + more)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(twice, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        through = {"url": "http://payments.example", "proxy": url} if by_proxy else {"url": url}
        channel = world.channel(**through)
        for _ in range(2):
            answer = await channel.send(a_request(), timeout=SOON)
            assert isinstance(answer, Answer)
            assert (200, b"{}") == (answer.status, answer.body)
        assert 2 == connections
        await channel.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_over_tls_only_who_proves_to_be_the_host_is_told_anything(world, host):
    """The same server, once with its authority known and once without."""
    pem = Path(__file__).with_name("mail_server.pem")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(pem)
    connections, heard = [], []

    async def speaks(reader, writer):
        connections.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                heard.append(await reader.readuntil(b"{}"))
                writer.write(OK)
        writer.close()

    async with await asyncio.start_server(speaks, "127.0.0.1", 0, ssl=serving) as server:
        url = f"https://{host}:{server.sockets[0].getsockname()[1]}"
        known = world.channel(url, tls=ssl.create_default_context(cafile=pem))
        for _ in range(2):
            assert isinstance(await known.send(a_request(), timeout=SOON), Answer)
        refused = await world.channel(url).send(a_request(), timeout=SOON)
        await known.close()
    assert isinstance(refused, Failure)
    assert Sent.NOT_SENT == refused.kind
    assert (1, 2) == (len(connections), len(heard))


async def test_a_connection_that_lay_idle_for_too_long_is_closed(pretend, world, monkeypatch):
    """The other side may keep its end for hours; ours counts against the process's files."""
    monkeypatch.setattr("outbox.destinations.http.IDLE_LIMIT", 0.0)
    channel = world.channel()
    await channel.send(a_request(), timeout=SOON)
    before = files()
    for _ in range(10):
        await channel.send(a_request(), timeout=SOON)
    assert 11 == pretend.connections
    with contextlib.suppress(TimeoutError):
        await until(lambda: files() <= before, seconds=5)
    assert files() <= before


def files() -> int:
    """How many this process has open, sockets among them."""
    return len(list(Path("/proc/self/fd").iterdir()))
