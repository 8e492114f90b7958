"""Running the receiver: the listener until we stop, the group commit until all are answered."""

import asyncio
from collections.abc import Callable

from reconciler import http_server
from reconciler.listening import Listeners
from reconciler.receiver.app import WebhookApp


async def run(
    app: WebhookApp,
    listeners: Listeners,
    *,
    limits: http_server.Limits,
    stop: asyncio.Event,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """
    Take deliveries on *listeners* until *stop* is set, answer those under way, and return.

    *ready* is called with our URL once, when connections are accepted.
    """
    answered = asyncio.Event()
    async with asyncio.TaskGroup() as running:
        running.create_task(app.committer.run(answered), name="group-commit")
        try:
            await http_server.run(app, listeners, limits=limits, stop=stop, ready=ready)
        finally:
            answered.set()
