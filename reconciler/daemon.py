"""The composition root: every part in one group, started together and stopped together."""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from functools import partial

import structlog

from reconciler import embedded, faults, listening, migrate
from reconciler.daemon_parts import Parts
from reconciler.database import connect
from reconciler.lifecycle import on_signal, run_parts
from reconciler.listening import Listeners
from reconciler.operations.assembly import Assembly, assemble
from reconciler.operations.opening import uses_private
from reconciler.settings import Loaded
from reconciler.systemd import Condition, notify, report

log = structlog.get_logger()

CLOSED_WITHIN = 3.0  #: seconds for connections to say goodbye
YOUNG = 10_000  #: new objects after which the collector looks for cycles; few of ours make any
SLACK = timedelta(seconds=5)  #: beyond `server.drain`, for what was cancelled to clean up


def main(loaded: Loaded, *, roles: Sequence[str]) -> None:
    """
    Run until SIGTERM or SIGINT, then drain; a second signal drops what is left.

    Raises what a part raised: systemd starts us afresh, which beats limping on without, say,
    a relay.
    """
    passed = listening.taken(os.environ)  # before anything that could have children
    assembly = assemble(loaded.path)
    private = (
        embedded.start(embedded.state_directory(loaded.settings)) if uses_private(loaded) else None
    )
    try:
        with listening.opened(loaded, passed, receives="receiver" in roles) as (webhooks, admin):
            asyncio.run(
                serve(assembly, roles=roles, private=private, webhooks=webhooks, admin=admin)
            )
    finally:
        if private is not None:
            private.stop()
    log.info("daemon.stopped")


async def serve(
    assembly: Assembly,
    *,
    roles: Sequence[str],
    private: embedded.Embedded | None,
    webhooks: Listeners | None,
    admin: Listeners,
) -> None:
    """Run every part that *roles* ask for, until a signal; then drain within a deadline."""
    settings = assembly.loaded.settings
    url = private.url if private is not None else None
    engine = await connect(settings, assembly.loaded.secrets, url=url)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    main_task = asyncio.current_task()
    assert main_task is not None
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, on_signal, stop, main_task)
    try:
        if private is not None:
            await migrate.upgrade(engine)
        parts = Parts(assembly=assembly, engine=engine, roles=roles, private=private)
        await parts.database.first_look()
        faults.point("database-prepared")
        running = parts.of(webhooks=webhooks, admin=admin)
        # What was made until now stays; to look at it again and again takes a tenth of the time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG)
        async with reporting(lambda: parts.condition(draining=stop.is_set())):
            await run_parts(running, stop, drain=partial(draining, parts))
    except TimeoutError:
        if not stop.is_set():
            raise
        log.warning("daemon.drain_ended", reason="what was left comes back by its lease")
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        log.warning("daemon.drain_broken_off", reason="a second signal")
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSED_WITHIN):
                await assembly.aclose()
                await engine.dispose()


def draining(parts: Parts) -> float:
    """We stop: say so; the seconds that it may take, with some for what will be cancelled."""
    drain = parts.assembly.loaded.settings.server.drain
    log.info("daemon.draining", seconds=drain.total_seconds())
    notify("STOPPING=1", f"STATUS={parts.condition(draining=True).told}")
    faults.point("draining")
    return (drain + SLACK).total_seconds()


@contextlib.asynccontextmanager
async def reporting(condition: Callable[[], Condition]) -> AsyncIterator[None]:
    """Keep the service manager informed to the very end, so that no watchdog cuts a drain short."""
    told = asyncio.create_task(report(condition), name="report")
    try:
        yield
    finally:
        told.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await told
