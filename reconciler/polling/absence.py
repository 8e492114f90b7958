"""What a full scan did not see: candidates for deletion, never deletions."""

from datetime import datetime
from functools import partial

from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger import resources
from reconciler.polling.drift import absent_too_many
from reconciler.polling.errors import MassChangeError
from reconciler.polling.seen import Seen
from reconciler.polling.sources import Source
from reconciler.transactions import transact

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
        page = partial(
            resources.unseen,
            sender=source.sender,
            kind=source.kind,
            before=pass_started,
            after=after,
            limit=PAGE,
        )
        keys = await transact(engine, page)
        absent += [key for key in keys if key not in seen]
        if absent_too_many(absent=len(absent), held=held, listed=len(seen), percent=percent):
            raise MassChangeError(
                f"mass_change: at least {len(absent)} of our {held} are not listed any more"
                f" (max_absent = {percent} percent): taken for an outage, nothing was deleted"
            )
        if len(keys) < PAGE:
            return absent
        after = keys[-1]
