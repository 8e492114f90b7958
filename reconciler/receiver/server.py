"""Running the receiver: the listener until we stop, the group commit until all are answered."""

import asyncio
import resource
from collections.abc import Callable
from datetime import timedelta

from reconciler import http_server
from reconciler.listening import Listeners
from reconciler.receiver.app import WebhookApp

SPARE_CONNECTIONS = 100  #: beside those whose deliveries wait: idle ones, and what is refused


async def run(
    app: WebhookApp,
    listeners: Listeners,
    *,
    drain: timedelta,
    stop: asyncio.Event,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """
    Take deliveries on *listeners* until *stop* is set, answer those under way, and return.

    *ready* is called with our URL once, when connections are accepted.
    """
    answered = asyncio.Event()
    limits = http_server.Limits(drain=drain, connections=connections_for(app.settings.waiting_max))
    async with asyncio.TaskGroup() as running:
        running.create_task(app.committer.run(answered), name="group-commit")
        try:
            await http_server.run(app, listeners, limits=limits, stop=stop, ready=ready)
        finally:
            answered.set()


def connections_for(waiting_max: int) -> int:
    """How many connections we take: enough for all that may wait, within our open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = waiting_max + SPARE_CONNECTIONS
    return wanted if files == resource.RLIM_INFINITY else min(wanted, max(1, files // 2))
