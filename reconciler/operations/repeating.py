"""Repeating: a call that was made is made again, as a new one, because a person wants it so."""

from functools import partial
from uuid import UUID

from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox import repeating
from outbox.bodies import with_key
from outbox.repeating import Repeated
from reconciler.operations import actions
from reconciler.operations.acting import Order
from reconciler.operations.redriving import Item, item_of, subject_of
from reconciler.polling.rehearsal import rolled_back
from reconciler.transactions import transact


async def repeat(order: Order, id_: UUID) -> Item:
    """Ask for the call of one entry again under a new key; what is refused says why."""
    work = partial(_repeat, order, id_)
    return await (rolled_back if order.dry_run else transact)(order.engine, work)


async def _repeat(order: Order, id_: UUID, connection: AsyncConnection) -> Item:
    targets = order.assembly.rules.targets

    def new_key(entry: RowMapping, first: str, repetition: int) -> str:
        return targets[entry["destination"]].outgoing(first, repetition=repetition)

    def new_body(entry: RowMapping, key: str) -> bytes:
        target, body = targets[entry["destination"]], bytes(entry["body"])
        if target.key_field is None or entry["method"] == "GET":
            return body
        kind = (entry["headers"] or {}).get("content-type", "")
        return with_key(body, kind, field=target.key_field, key=key)

    done = await repeating.repeat(
        connection, id_, new_key=new_key, new_body=new_body, destinations=targets
    )
    if done.made is not None:
        await actions.record(
            connection,
            actor=order.actor,
            action="outbox.repeat",
            subject={
                **subject_of(done.meant),
                "new_entry_id": str(done.made.id),
                "repetition": done.repetition,
            },
            reason=order.reason,
        )
    return _told(done)


def _told(done: Repeated) -> Item:
    made = done.made
    return {
        **item_of(done.meant, done="repeated"),
        "new": None
        if made is None
        else {
            "id": made.id,
            "repetition": done.repetition,
            "idempotency_key": made.idempotency_key,
            "state": made.state.value,
        },
    }
