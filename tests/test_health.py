"""P19: health is progress, told by the loops themselves and not by an open port."""

import asyncio
from datetime import timedelta

import httpx
import pytest

from reconciler.lifecycle import Progress, wait_bounded
from reconciler.web.app import admin_app
from reconciler.web.metrics import Metrics

pytestmark = pytest.mark.anyio


class Clock:
    """A monotonic clock that a story moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_p19_a_loop_that_stands_still_is_named_and_comes_back():
    """
    The relay hangs while the listener goes on answering. After its bound `/livez` says so and
    names it, and says ok again as soon as it has moved.
    """
    clock = Clock()
    progress = Progress(clock=clock)
    relay = progress.loop("relay", bound=timedelta(seconds=30))
    scans = progress.loop("scans", bound=timedelta(seconds=30))

    clock.now += 29
    assert (200, "ok\n") == await asked(progress, "/livez")

    scans()
    clock.now += 2
    assert (503, "stalled: relay\n") == await asked(progress, "/livez")
    assert 'reconciler_loop_stalled{loop="relay"} 1.0' in (await asked(progress, "/metrics"))[1]

    relay()
    assert (200, "ok\n") == await asked(progress, "/livez")


async def test_p19_a_loop_inside_a_wait_that_it_has_bounded_is_making_progress():
    """
    A statement may take its ten seconds although the loop usually moves every five. It is given
    that time and no more, and the loop beside it none at all.
    """
    clock = Clock()
    progress = Progress(clock=clock)
    begun = asyncio.Event()

    async def waits() -> None:
        beat = progress.loop("relay", bound=timedelta(seconds=5))
        wait_bounded(timedelta(seconds=10))
        begun.set()
        await asyncio.Event().wait()
        beat()

    wait_bounded(timedelta(seconds=10))  # nobody's loop: nothing to do with it
    async with asyncio.TaskGroup() as loops:
        running = loops.create_task(waits())
        await begun.wait()
        progress.loop("scans", bound=timedelta(seconds=5))

        clock.now += 6
        assert ["scans"] == progress.stalled()
        clock.now += 8
        assert ["scans"] == progress.stalled()
        clock.now += 2
        assert ["relay", "scans"] == progress.stalled()
        running.cancel()


async def test_p19_liveness_does_not_ask_the_database_and_readiness_does():
    """The database is away: nobody gains from a restart, but no webhook should come here now."""
    progress = Progress()

    assert (200, "ok\n") == await asked(progress, "/livez", away="the database is away")
    assert (503, "the database is away\n") == await asked(
        progress, "/readyz", away="the database is away"
    )
    assert (200, "ok\n") == await asked(progress, "/readyz")


async def test_p19_the_admin_listener_knows_nothing_else():
    """No page but the three, nothing cached, and no method but GET."""
    assert 404 == (await asked(Progress(), "/"))[0]
    assert 404 == (await asked(Progress(), "/api/v1/events"))[0]


async def asked(progress: Progress, path: str, *, away: str | None = None) -> tuple[int, str]:
    """One request to the admin listener's application."""

    async def ready() -> str | None:
        return away

    app = admin_app(progress=progress, metrics=Metrics(senders=()), ready=ready)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
        answer = await client.get(path)
    return answer.status_code, answer.text
