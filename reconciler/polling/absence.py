"""What a full scan did not see: candidates for deletion, never deletions."""

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.database import transact
from reconciler.ledger import resources
from reconciler.polling.drift import absent_too_many
from reconciler.polling.errors import MassChangeError
from reconciler.polling.seen import Seen
from reconciler.polling.sources import Source

PAGE = 1000


async def find_absent(
    engine: AsyncEngine, source: Source, seen: Seen, *, pass_started: datetime
) -> list[str]:
    """
    Return the keys that we hold and the pass did not see, written before it began and not since.

    Raises MassChangeError where there are so many that an outage is likelier: then none is
    asked about. What comes back is bounded by that, too.
    """
    assert source.listing is not None
    percent = source.listing.max_absent
    held = await transact(
        engine, lambda connection: resources.count_live(connection, source.sender, source.kind)
    )
    absent: list[str] = []
    after: str | None = None
    while True:
        keys = await transact(engine, _page_after(source, after, before=pass_started))
        absent += [key for key in keys if key not in seen]
        if absent_too_many(absent=len(absent), held=held, listed=len(seen), percent=percent):
            raise MassChangeError(
                f"mass_change: at least {len(absent)} of our {held} are not listed any more"
                f" (max_absent = {percent} percent): taken for an outage, nothing was deleted"
            )
        if len(keys) < PAGE:
            return absent
        after = keys[-1]


def _page_after(source: Source, after: str | None, *, before: datetime) -> "_Page":
    return _Page(source, after, before)


class _Page:
    """One page of our own rows, as a piece of work for a transaction."""

    def __init__(self, source: Source, after: str | None, before: datetime) -> None:
        self.source, self.after, self.before = source, after, before

    async def __call__(self, connection: AsyncConnection) -> list[str]:
        return await resources.unseen(
            connection,
            self.source.sender,
            self.source.kind,
            before=self.before,
            after=self.after,
            limit=PAGE,
        )
