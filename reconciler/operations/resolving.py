"""Resolving: a person found out what became of a call, and says so."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from outbox import resolving
from outbox.resting import Follow
from reconciler.operations import actions
from reconciler.operations.acting import Order
from reconciler.operations.redriving import Item, item_of, key_lives, run_order, subject_of


async def resolve(
    order: Order, ids: Sequence[UUID], *, delivered: bool, follow: Follow | None = None
) -> list[Item]:
    """
    Say of uncertain entries what became of their calls; one item an entry, done or refused.

    In one transaction, with the note of who said it and why, and with what *follow* writes.
    """
    lives = key_lives(order.assembly)

    async def work(connection: AsyncConnection) -> list[Item]:
        handled, became = await resolving.resolve(
            connection, ids, delivered=delivered, key_lives=lives
        )
        items = []
        for one in handled:
            item = {**item_of(one, done="resolved"), "became": None, "because": None}
            if one.refusal is None:
                ended = became[one.id]
                item |= {"became": ended.state.value, "because": ended.reason}
                await _note(connection, order, subject_of(one), delivered=delivered)
            items.append(item)
        wanted = [
            one
            for one in became.values()
            if follow is not None and follow.wants(one.effect, one.state)
        ]
        if follow is not None and wanted:
            await follow.follow(connection, wanted)
        return items

    return await run_order(order, work)


async def _note(
    connection: AsyncConnection, order: Order, subject: dict[str, Any], *, delivered: bool
) -> None:
    await actions.record(
        connection,
        actor=order.actor,
        action="outbox.resolve",
        subject={**subject, "as": "delivered" if delivered else "not-delivered"},
        reason=order.reason,
    )
