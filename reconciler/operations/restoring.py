"""Saying that the database was restored, where nothing in it or beside it shows that."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import generations
from reconciler.generation import next_number
from reconciler.operations import actions
from reconciler.polling import scans
from reconciler.transactions import transact

SAID = "a person said that it was restored"


async def say_restored(engine: AsyncEngine, *, actor: str) -> int:
    """
    Open a new generation by hand; its number.

    Daemons notice at once, and hold what may have been sent before they call anybody.
    """

    async def work(connection: AsyncConnection) -> int:
        _, ask_the_cluster = await generations.orient(connection)
        seen = await generations.look(connection, UUID(int=0), ask_the_cluster=ask_the_cluster)
        # the first one is that of a database with no past; this one has one
        number = max(2, next_number(seen, None))
        await generations.open_generation(connection, number, reason=SAID, place=seen.place)
        await scans.start_over(connection)
        await actions.record(
            connection,
            actor=actor,
            action="restored",
            subject={"generation": number},
            reason=None,
        )
        return number

    return await transact(engine, work)
