"""Stories of the client: a sender's API may be slow, away, hostile or wrong."""

import asyncio
import gzip
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from reconciler.polling.client import ATTEMPTS, Api, Outside, compile_api
from reconciler.polling.errors import AwayError, PageBrokenError, RefusedError
from reconciler.settings.models import ApiSettings
from reconciler.settings.secrets import Secrets

from .server import Reply, Request, serving

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)


@dataclass
class Sleeper:
    slept: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


HERE = {"allow_private": ("127.0.0.0/8",)}


def api_at(url, *, sleeper=None, headers=None, **settings):
    outside = Outside(sleep=sleeper or Sleeper(), draw=lambda: 0.5, wall_clock=lambda: NOW)
    return Api(ApiSettings(base_url=url, **HERE | settings), headers=headers or {}, outside=outside)


def answering(*replies):
    """Answer with each in turn, with the last one for ever."""
    left = list(replies)

    async def answer(_: Request) -> Reply:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


async def test_an_answer_comes_whole_and_credentials_go_along():
    """A path below the base URL, a query, bearer and static headers, by reference or not."""
    secrets = Secrets({"env:TOKEN": "t0ken", "env:TENANT": "acme"})
    async with serving(answering(Reply(json={"data": []}))) as sender:
        settings = ApiSettings(
            base_url=f"{sender.url}/api/",
            **HERE,
            bearer="env:TOKEN",
            headers={"X-Tenant": "env:TENANT", "X-Version": "2026-01"},
        )
        async with compile_api(settings, secrets) as api:
            response = await api.fetch("/v1/orders", {"since": "2026-01-01T00:00:00+00:00"})

    assert 200 == response.status
    assert b'{"data": []}' == response.body
    request = sender.requests[0]
    assert "/api/v1/orders" == request.path
    assert {"since": "2026-01-01T00:00:00+00:00"} == request.query
    assert "Bearer t0ken" == request.headers["authorization"]
    assert ("acme", "2026-01") == (request.headers["x-tenant"], request.headers["x-version"])


@pytest.mark.parametrize(
    "failure",
    [Reply(status=503), Reply(status=429), Reply(reset=True), Reply(json=[1, 2, 3], cut=True)],
)
async def test_a_failure_that_passes_is_waited_out(failure):
    """Twice nothing or no use, then an answer: growing waits between."""
    sleeper = Sleeper()
    async with (
        serving(answering(failure, failure, Reply(json=[]))) as sender,
        api_at(sender.url, sleeper=sleeper) as api,
    ):
        response = await api.fetch("/")

    assert b"[]" == response.body
    assert [0.25, 0.5] == sleeper.slept


async def test_patience_ends():
    """A sender that is down gets a bounded number of requests."""
    async with serving(answering(Reply(status=500))) as sender, api_at(sender.url) as api:
        with pytest.raises(AwayError, match="500"):
            await api.fetch("/")

    assert ATTEMPTS == len(sender.requests)


async def test_retry_after_is_obeyed():
    """C86: two seconds are waited here, as a date on the sender's own clock too."""
    sleeper = Sleeper()
    date = {"Retry-After": "Tue, 01 Dec 2026 12:00:04 GMT", "Date": "Tue, 01 Dec 2026 12:00:00 GMT"}
    replies = (
        Reply(status=429, headers={"Retry-After": "2"}),
        Reply(status=503, headers=date),
        Reply(json=[]),
    )
    async with serving(answering(*replies)) as sender, api_at(sender.url, sleeper=sleeper) as api:
        await api.fetch("/")

    assert [2.25, 4.5] == sleeper.slept


async def test_a_long_retry_after_ends_the_run():
    """Who asks for an hour is not waited for here: the run ends, and comes back later."""
    sleeper = Sleeper()
    reply = Reply(status=429, headers={"Retry-After": "99999999999"})
    async with serving(answering(reply)) as sender, api_at(sender.url, sleeper=sleeper) as api:
        with pytest.raises(AwayError) as raised:
            await api.fetch("/")

    assert timedelta(hours=1) == raised.value.retry_after
    assert [] == sleeper.slept
    assert 1 == len(sender.requests)


@pytest.mark.parametrize("status", [301, 302, 307])
async def test_redirects_are_not_followed(status):
    """Not even on the same host: the configuration is wrong then."""
    reply = Reply(status=status, headers={"Location": "http://169.254.169.254/"})
    async with serving(answering(reply)) as sender, api_at(sender.url) as api:
        with pytest.raises(RefusedError, match="redirects"):
            await api.fetch("/")

    assert 1 == len(sender.requests)


async def test_4xx_is_the_callers_to_judge():
    """A 404 may mean something; it is not repeated."""
    async with serving(answering(Reply(status=404))) as sender, api_at(sender.url) as api:
        response = await api.fetch("/")

    assert 404 == response.status
    assert 1 == len(sender.requests)


async def test_a_dripping_answer_ends_at_the_timeout():
    """C128: a byte now and then defeats read timeouts; ours is a total one."""
    reply = Reply(json=["x" * 1000], drip=True)
    async with serving(answering(reply)) as sender, api_at(sender.url, timeout="200ms") as api:
        with pytest.raises(AwayError, match=r"within 0\.2s"):
            await api.fetch("/")

    assert ATTEMPTS == len(sender.requests)


async def test_bodies_are_bounded_also_inflated():
    """A page larger than allowed, and a bomb that would become larger, are broken pages."""
    bomb = gzip.compress(b"0" * 50_000_000)
    gzipped = {"Content-Encoding": "gzip"}
    empty = gzip.compress(b"") * 500
    for body, headers in [(b"0" * 5000, {}), (bomb, gzipped), (empty, gzipped)]:
        async with (
            serving(answering(Reply(body=body, headers=headers))) as sender,
            api_at(sender.url, max_response="4KiB") as api,
        ):
            with pytest.raises(PageBrokenError, match="4096"):
                await api.fetch("/")


async def test_gzip_is_understood_and_nothing_else():
    """One or several members; broken off, or another encoding, is no answer."""
    gzipped = {"Content-Encoding": "gzip"}
    whole = gzip.compress(b"[1,") + gzip.compress(b"2]")
    async with (
        serving(answering(Reply(body=whole, headers=gzipped))) as sender,
        api_at(sender.url) as api,
    ):
        assert b"[1,2]" == (await api.fetch("/")).body

    broken = [
        (gzip.compress(b"[]")[:-5], gzipped),
        (b"[]", gzipped),
        (b"", gzipped),
        (zlib.compress(b"[]"), {"Content-Encoding": "br"}),
    ]
    for body, headers in broken:
        async with (
            serving(answering(Reply(body=body, headers=headers))) as sender,
            api_at(sender.url) as api,
        ):
            with pytest.raises(PageBrokenError):
                await api.fetch("/")


async def test_credentials_stay_on_their_origin():
    """A next URL on another host, port or scheme is refused before anything is sent."""
    async with (
        serving(answering(Reply(json=[]))) as sender,
        serving(answering(Reply())) as other,
        api_at(sender.url, headers={"Authorization": "Bearer x"}) as api,
    ):
        for target in [
            other.url,
            sender.url.replace("http:", "https:"),
            "http://[::bad",
            f"{sender.url}\\@{other.url[7:]}",
        ]:
            with pytest.raises(PageBrokenError):
                await api.fetch(target)
        await api.fetch(f"{sender.url}/v1/orders?page=2&a=b")

    assert [] == other.requests
    assert {"page": "2", "a": "b"} == sender.requests[0].query


async def test_cancelled_calls_leave_no_slot_behind():
    """C89: after fifty cancelled calls the client still works."""
    slow, reached = asyncio.Event(), asyncio.Event()

    async def answer(request: Request) -> Reply:
        if request.path == "/slow":
            reached.set()
            await slow.wait()
        return Reply(json=[])

    async with serving(answer) as sender, api_at(sender.url) as api:
        async with asyncio.TaskGroup() as calls:
            tasks = [calls.create_task(api.fetch("/slow")) for _ in range(50)]
            await reached.wait()
            for task in tasks:
                task.cancel()
        slow.set()
        for _ in range(5):
            assert b"[]" == (await api.fetch("/")).body


async def test_cancelling_ends_the_waiting():
    """C136: a stop during back-off ends it; nothing more is asked."""
    waiting = asyncio.Event()

    async def sleep(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with serving(answering(Reply(status=503))) as sender:
        outside = Outside(sleep=sleep)
        settings = ApiSettings(base_url=sender.url, **HERE)
        async with Api(settings, headers={}, outside=outside) as api, asyncio.TaskGroup() as calls:
            call = calls.create_task(api.fetch("/"))
            await waiting.wait()
            call.cancel()

    assert call.cancelled()
    assert 1 == len(sender.requests)


async def test_the_rate_is_shared():
    """Scans and reads of one sender stay within its rate together."""
    sleeper = Sleeper()
    async with serving(answering(Reply(json=[]))) as sender:
        clock = iter(range(10_000)).__next__
        outside = Outside(sleep=sleeper, clock=lambda: clock() / 100)
        settings = ApiSettings(base_url=sender.url, rate="5/s", **HERE)
        async with Api(settings, headers={}, outside=outside) as api, asyncio.TaskGroup() as calls:
            for _ in range(6):
                calls.create_task(api.fetch("/"))

    assert sleeper.slept


async def test_a_sender_on_a_private_address_is_not_asked_unless_that_is_said():
    """The same guard as for destinations: the socket is there, and nobody knocks."""
    async with (
        serving(answering(Reply(json=[]))) as sender,
        api_at(sender.url, allow_private=()) as api,
    ):
        with pytest.raises(AwayError, match=r"loopback.*allow_private"):
            await api.fetch("/")

    assert [] == sender.requests
