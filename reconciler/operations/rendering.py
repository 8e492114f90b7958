"""Rendering again what events asked for and could not have, by a person's hand."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from functools import partial
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from outbox import rendering
from outbox.entry import State
from reconciler.database import prepare_transaction
from reconciler.ledger.rendering import render_again
from reconciler.operations.acting import Order
from reconciler.operations.replayed import Fate, Filters, Item, note, rendered_item
from reconciler.polling.rehearsal import rolled_back
from reconciler.transactions import transact

PAGE = 100  #: entries that are looked up at a time


async def render_event(order: Order, sender: str, event_id: str) -> list[Item]:
    """Render what an event asked for and could not have; `duplicate` where there is nothing."""
    if sender not in order.assembly.rules.senders:
        fault = "its sender is not configured any more"
        return [rendered_item(sender, event_id, Fate.UNRENDERED, fault=fault)]

    async def work(connection: AsyncConnection) -> list[Item]:
        rules = order.assembly.rules
        await prepare_transaction(connection, search_path=rules.search_path)
        rendered = await render_again(
            connection,
            rules,
            sender=sender,
            event_id=event_id,
            out_of_order=order.out_of_order,
        )
        if not rendered:
            return [rendered_item(sender, event_id, Fate.DUPLICATE)]
        waiting = [one for one in rendered if one.state is State.PENDING and not one.is_due]
        fate = Fate.UNRENDERED if waiting else Fate.RENDERED
        fault = waiting[0].reason if waiting else None
        item = rendered_item(sender, event_id, fate, rendered=rendered, fault=fault)
        await note(connection, order, item)
        return [item]

    return await (rolled_back if order.dry_run else transact)(order.engine, work)


async def render_all(order: Order, filters: Filters, *, limit: int) -> AsyncIterator[Item]:
    """Render what waits unrendered, event by event."""
    after: UUID | None = None
    left, seen = limit, set[tuple[str, str]]()
    said = asdict(filters)
    said["error"] = said.pop("fault")
    while left > 0:
        find = partial(rendering.find_unrendered, **said, after=after, limit=PAGE)
        rows = await transact(order.engine, find)
        for row in rows:
            id_ = (row["sender"], row["event_id"])
            if id_ in seen or left <= 0:
                continue
            seen.add(id_)
            left -= 1
            for item in await render_event(order, *id_):
                yield item
        if len(rows) < PAGE:
            return
        after = rows[-1]["id"]
