"""Putting what is beyond use into quarantine: the one thing that the receiver writes itself."""

from collections.abc import Awaitable, Callable, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.ledger.alerts import set_aside
from reconciler.ledger.rules import Rules
from reconciler.receiver.envelope import Malformed
from reconciler.transactions import transact

Keep = Callable[[Sequence[Malformed]], Awaitable[None]]


def keeper(engine: AsyncEngine, rules: Rules) -> Keep:
    """Return what keeps malformed events of one delivery, all or none; it decides the commit."""

    async def keep(malformed: Sequence[Malformed]) -> None:
        async def work(connection: AsyncConnection) -> None:
            for each in sorted(malformed, key=lambda one: one.raw):  # two deliveries, one order
                await set_aside(
                    connection,
                    rules.alerts,
                    each.sender,
                    each.raw,
                    each.headers,
                    each.fault,
                    each.event_id,
                )

        await transact(engine, work)

    return keep
