"""Calls over real sockets: how far they came, and that nothing on the other side raises."""

import asyncio
import gc
import gzip
import socket
from datetime import timedelta

import pytest

from outbox.destinations import Request
from outbox.destinations.http import BODY_LIMIT, JUDGED_BODY_LIMIT, HttpDestination
from outbox.verdict import Answer, Failure, Sent
from tests.outbox.pretend import Answers, Misbehaves, in_turn
from tests.outbox.world import HERE

pytestmark = pytest.mark.anyio

SOON = timedelta(seconds=5)
AT_ONCE = timedelta(milliseconds=150)


def a_request(**changes):
    fields = {
        "method": "POST",
        "path": "/v1/charges",
        "headers": {},
        "body": b"{}",
        "idempotency_key": "key_1",
        "idempotent": True,
        **changes,
    }
    return Request(**fields)


async def test_the_frozen_request_goes_out_with_host_key_and_credentials_added(pretend, world):
    channel = world.channel(
        pretend.url + "/api/v2/",
        bearer=lambda: "t0ken",
        headers={"X-Static": "s", "X-Secret": lambda: "hush"},
    )
    path = "/v1/charges/a%2Fb%20c/..%2e/x?q=%C3%A9&&a=//b"
    body = b"\x00\xff" + b'{"b": 1,  "a": 2}'
    answer = await channel.send(
        a_request(path=path, body=body, headers={"Content-Type": "application/json"}),
        timeout=SOON,
    )

    assert isinstance(answer, Answer)
    (call,) = pretend.calls
    assert ("POST", "/api/v2" + path, body) == (call.method, call.target, call.body)
    expected = {
        "host": pretend.url.removeprefix("http://"),
        "authorization": "Bearer t0ken",
        "x-static": "s",
        "x-secret": "hush",
        "idempotency-key": "key_1",
        "content-type": "application/json",
        "accept-encoding": "identity",
    }
    assert expected.items() <= call.headers.items()


async def test_an_entry_cannot_replace_key_credentials_or_framing(pretend, world):
    channel = world.channel(bearer="t0ken")
    headers = {
        "IDEMPOTENCY-KEY": "mine",
        "Authorization": "Bearer mine",
        "Host": "elsewhere",
        "Content-Length": "1",
        "Transfer-Encoding": "chunked",
        "Connection": "close",
    }
    await channel.send(a_request(headers=headers), timeout=SOON)

    (call,) = pretend.calls
    assert ("key_1", "Bearer t0ken") == (call.key, call.headers["authorization"])
    assert "elsewhere" != call.headers["host"]
    assert ("2", b"{}") == (call.headers["content-length"], call.body)
    assert not {"transfer-encoding", "connection"} & call.headers.keys()


async def test_methods_without_a_body_go_out_without_one(pretend, world):
    await world.channel().send(a_request(method="DELETE", body=b""), timeout=SOON)
    (call,) = pretend.calls
    assert ("DELETE", b"") == (call.method, call.body)


@pytest.mark.parametrize(
    "changes",
    [
        {"path": ""},
        {"path": "v1"},
        {"path": "/a b"},
        {"path": "/a\r\nX: y"},
        {"path": "/é"},
        {"method": ""},
        {"method": "PO ST"},
        {"headers": {"X-A": "a\r\nX-B: b"}},
        {"headers": {"X-A": "\u20ac"}},
        {"headers": {"X A": "a"}},
        {"headers": {"": "a"}},
        {"headers": {"": "a"}, "idempotency_key": None},
        {"idempotency_key": "a\nb"},
    ],
    ids=str,
)
async def test_what_cannot_be_written_as_a_request_is_never_sent(pretend, world, changes):
    result = await world.channel(bearer="hush").send(a_request(**changes), timeout=SOON)
    assert isinstance(result, Failure)
    assert Sent.NOT_SENT == result.kind
    assert "hush" not in result.reason
    assert [] == pretend.calls


async def test_a_secret_that_is_no_header_value_is_not_told(pretend, world):
    result = await world.channel(bearer="hu\nsh").send(a_request(), timeout=SOON)
    assert isinstance(result, Failure)
    assert "sh" not in result.reason


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_never_followed(pretend, world, status):
    """C75: no second request, neither as GET nor with the body."""
    pretend.behave = in_turn(Answers(status=status, headers=(("Location", "/login"),)), Answers())
    answer = await world.channel().send(a_request(), timeout=SOON)
    assert isinstance(answer, Answer)
    assert (status, ("location", "/login")) == (answer.status, answer.headers[1])
    assert 1 == len(pretend.calls)


async def test_cookies_are_not_kept(pretend, world):
    pretend.behave = in_turn(Answers(headers=(("Set-Cookie", "a=b"),)))
    channel = world.channel()
    await channel.send(a_request(), timeout=SOON)
    await channel.send(a_request(), timeout=SOON)
    assert "cookie" not in pretend.calls[1].headers


async def test_proxies_and_credentials_of_the_environment_are_not_taken(
    pretend, world, monkeypatch
):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert isinstance(await world.channel().send(a_request(), timeout=SOON), Answer)


@pytest.mark.parametrize("where", ["nobody listens", "no such name"])
async def test_a_failure_to_connect_is_certainly_not_sent(world, where):
    with socket.create_server(("127.0.0.1", 0)) as unheard:
        port = unheard.getsockname()[1]
    url = "http://nowhere.invalid" if where == "no such name" else f"http://127.0.0.1:{port}"
    result = await world.channel(url).send(a_request(), timeout=SOON)
    assert isinstance(result, Failure)
    assert Sent.NOT_SENT == result.kind
    assert result.reason.startswith("not sent: ConnectError")


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_handshake_that_fails_or_hangs_is_certainly_not_sent(world, hangs):
    """TCP is accepted, TLS is not spoken: the request had not begun. No socket stays open."""

    async def no_tls(reader, writer):
        await reader.read(1 if not hangs else -1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(no_tls, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        result = await world.channel(url).send(a_request(), timeout=AT_ONCE if hangs else SOON)
    assert isinstance(result, Failure)
    assert Sent.NOT_SENT == result.kind
    gc.collect()


@pytest.mark.parametrize("how", ["resets", "closes", "garbage", "hangs", "drips_head"])
async def test_once_the_request_has_begun_nobody_knows(pretend, world, how):
    pretend.behave = in_turn(Misbehaves(how))
    result = await world.channel().send(a_request(), timeout=AT_ONCE)
    assert isinstance(result, Failure)
    assert Sent.MAYBE_SENT == result.kind
    assert 1 == len(pretend.calls)


@pytest.mark.parametrize("how", ["breaks_off", "drips", "floods"])
async def test_a_status_that_was_read_counts_without_its_body(pretend, world, how):
    """The time for one call is one time, however often a byte comes; memory is bounded."""
    pretend.behave = in_turn(Misbehaves(how))
    async with asyncio.timeout(20):
        within = timedelta(seconds=1) if how == "drips" else SOON
        answer = await world.channel().send(a_request(), timeout=within)
    assert isinstance(answer, Answer)
    assert (200, False) == (answer.status, answer.complete)
    assert len(answer.body) <= BODY_LIMIT + 1


async def test_more_of_a_body_is_read_where_success_depends_on_it(pretend, world):
    pretend.behave = in_turn(Answers(body=b"x" * (BODY_LIMIT + 1)))
    unread = await world.channel().send(a_request(), timeout=SOON)
    read = await world.channel(judges_bodies=True).send(a_request(), timeout=SOON)
    assert isinstance(unread, Answer)
    assert isinstance(read, Answer)
    assert (False, True) == (unread.complete, read.complete)
    assert b"x" * (BODY_LIMIT + 1) == read.body


async def test_compression_that_we_did_not_ask_for_is_bounded_too(pretend, world):
    gzipped = (("Content-Encoding", "gzip"),)
    pretend.behave = in_turn(
        Answers(headers=gzipped, body=gzip.compress(b'{"ok": true}')),
        Answers(headers=gzipped, body=gzip.compress(b"0" * 100_000_000)),
        Answers(headers=gzipped, body=b"not gzip"),
        Answers(headers=(("Content-Encoding", "br"),), body=b"x"),
    )
    channel = world.channel(judges_bodies=True)
    answers = [await channel.send(a_request(), timeout=SOON) for _ in range(4)]
    assert b'{"ok": true}' == answers[0].body
    assert [True, False, False, False] == [answer.complete for answer in answers]
    assert all(len(answer.body) <= JUDGED_BODY_LIMIT for answer in answers)


async def test_connections_are_kept_for_idempotent_calls_only(pretend, world):
    """
    C90: a kept connection may be closed just as we write, and nobody could tell whether
    the call was heard. Where the key counts that costs a retry, elsewhere it would cost a person.
    """
    channel = world.channel()
    for _ in range(3):
        await channel.send(a_request(), timeout=SOON)
    assert 1 == pretend.connections
    for _ in range(3):
        await channel.send(a_request(idempotent=False), timeout=SOON)
    assert 4 == pretend.connections


async def test_a_connection_that_was_closed_meanwhile_is_replaced(pretend, world):
    pretend.behave = in_turn(Misbehaves("closes_after"))
    channel = world.channel()
    for _ in range(3):
        assert isinstance(await channel.send(a_request(), timeout=SOON), Answer)
    assert 3 == pretend.connections


async def test_calls_that_are_cut_off_leave_no_slot_behind(pretend, world):
    """C89: fifty calls run out of time or are cancelled; five ordinary ones follow."""
    pretend.behave = in_turn(Misbehaves("hangs"))
    channel = world.channel()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(channel.send(a_request(), timeout=timedelta(milliseconds=n)))
            for n in range(1, 51)
        ]
        for task in tasks[::2]:
            asyncio.get_running_loop().call_later(0.01, task.cancel)

    pretend.behave = in_turn(Answers())
    for _ in range(5):
        assert isinstance(await channel.send(a_request(), timeout=SOON), Answer)


@pytest.mark.parametrize("how", ["breaks_off", "floods", "drips", "hangs", "resets"])
async def test_a_call_that_ended_badly_does_not_spoil_the_next(pretend, world, how):
    pretend.behave = in_turn(Answers(), Misbehaves(how), Answers())
    channel = world.channel()
    await channel.send(a_request(), timeout=SOON)
    await channel.send(a_request(), timeout=timedelta(milliseconds=500))
    answer = await channel.send(a_request(), timeout=SOON)
    assert isinstance(answer, Answer)
    assert (200, b"{}", True) == (answer.status, answer.body, answer.complete)


async def test_spaces_around_a_header_value_are_not_part_of_it(pretend, world):
    await world.channel().send(a_request(headers={"X-A": "\t a b "}), timeout=SOON)
    assert "a b" == pretend.calls[0].headers["x-a"]


async def test_closing_lets_go_of_what_was_kept(pretend):
    channel = HttpDestination(base_url=pretend.url, key_header=None, concurrency=1, egress=HERE)
    await channel.send(a_request(), timeout=SOON)
    assert "idempotency-key" not in pretend.calls[0].headers
    await channel.close()
    await channel.send(a_request(), timeout=SOON)
    assert 2 == pretend.connections
    await channel.close()
