"""Replaying: what is in quarantine goes through the one transaction again, by a person's hand."""

from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from functools import partial
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import bounded
from reconciler.errors import DatabaseAwayError, ReconcilerError, UsageError
from reconciler.ledger import claims, quarantine
from reconciler.ledger.commit import BLAMED, LockedError, apply_unless_locked, is_ours, set_limits
from reconciler.ledger.event import Event, Origin
from reconciler.ledger.rowsets import AnyRow
from reconciler.operations import actions
from reconciler.operations.acting import Order
from reconciler.operations.naming import require_sender
from reconciler.operations.rendering import render_event
from reconciler.operations.replayed import (
    FAILED,
    Fate,
    Filters,
    Item,
    fate_of,
    item_of,
    note,
    subject_of,
)
from reconciler.polling.rehearsal import rolled_back
from reconciler.receiver.contract import SenderContract
from reconciler.receiver.envelope import Malformed, MalformedError, read_delivery, reread
from reconciler.transactions import told, transact

PAGE = 100  #: copies that are looked up at a time
WHAT_IS = "`reconciler events list --outcome quarantined` shows what is in quarantine"


async def replay_event(order: Order, sender: str, event_id: str) -> list[Item]:
    """
    Replay one event: out of quarantine, or what it asked for and could not be rendered.

    Raises UsageError for a sender that is not configured, ReconcilerError for an unknown event.
    """
    require_sender(order.assembly.contracts, sender)

    async def look(connection: AsyncConnection) -> tuple[AnyRow | None, AnyRow | None]:
        kept = await quarantine.of_event(connection, sender, event_id)
        return kept, await claims.show(connection, sender, event_id)

    kept, claim = await transact(order.engine, look)
    if kept is not None and kept.state == "open":
        items = await replay_copy(order, kept.id)
        if claim is None or any(item["result"] in FAILED for item in items):
            return items
        rendered = await render_event(order, sender, event_id)
        return [*items, *(one for one in rendered if one["result"] is not Fate.DUPLICATE)]
    if claim is not None:
        return await render_event(order, sender, event_id)
    if kept is not None:
        raise ReconcilerError(
            f"the copy of {event_id!r} is closed as {kept.state}: it is not replayed any more",
            hint="if the sender delivers it again it is applied like any other",
        )
    raise ReconcilerError(
        f"no event {event_id!r} of {sender!r} is known",
        hint=WHAT_IS,
    )


async def replay_all(order: Order, filters: Filters, *, limit: int) -> AsyncIterator[Item]:
    """Replay open copies, each in a transaction of its own, in the order in which they came."""
    if filters.sender is not None:
        require_sender(order.assembly.contracts, filters.sender)
    after, left = None, limit
    while left > 0:
        wanted = min(PAGE, left)
        find = partial(quarantine.find_open, **asdict(filters), after=after, limit=wanted)
        ids = await transact(order.engine, find)
        for id_ in ids:
            for item in await replay_copy(order, id_):
                yield item
        if len(ids) < wanted:
            return
        after, left = ids[-1], left - len(ids)


async def replay_copy(order: Order, id_: UUID) -> list[Item]:
    """Replay one copy: what is claimed closes it; what fails is counted and stays."""
    work = partial(_replay, order, id_)
    try:
        return await (rolled_back if order.dry_run else transact)(order.engine, work)
    except DatabaseAwayError:
        raise
    except LockedError as error:
        return [await transact(order.engine, partial(_busy, id_, str(error)))]
    except BLAMED as error:
        if is_ours(error):
            raise
        fault = bounded(told(error))
        return [await transact(order.engine, partial(_fail, order, id_, fault))]


async def _replay(order: Order, id_: UUID, connection: AsyncConnection) -> list[Item]:
    rules = order.assembly.rules
    await set_limits(connection, rules)
    # Not locked: whoever applies it claims it first and closes the copy then, and so do we.
    copy = await quarantine.show(connection, id_)
    if copy is None:
        raise UsageError(f"there is no copy {id_} in quarantine")
    if copy.state != "open":
        return [item_of(copy, Fate.CLOSED)]
    if not copy.body:
        return [item_of(copy, Fate.GONE, fault="its bytes are not kept any more")]
    contract = order.assembly.contracts.get(copy.sender)
    if contract is None:
        raise MalformedError("its sender is not configured any more")
    events, beyond_use = events_of(contract, copy)
    results = await apply_unless_locked(connection, rules, events) if events else []
    fates = {fate_of(result) for result in results}
    # without an id of its own: what fails of it is kept under the ids of its events by now
    if beyond_use is None and (copy.event_id is None or Fate.QUARANTINED not in fates):
        closed = Fate.REPLAYED if Fate.REPLAYED in fates else Fate.SUPERSEDED
        await quarantine.settle(connection, id_, state=closed.value)
    items = [item_of(copy, fate_of(result), result=result) for result in results]
    if beyond_use is not None:
        failures = await quarantine.count_failure(connection, id_, beyond_use)
        items.append(item_of(copy, Fate.QUARANTINED, fault=beyond_use, failures=failures))
    for item in items:
        await note(connection, order, item)
    return items


def events_of(contract: SenderContract, copy: AnyRow) -> tuple[list[Event], str | None]:
    """
    The events of a copy, as a person's replay, and why some of it is beyond use still.

    The signature was verified when it came, and is not stored. A copy without an event id may be
    a whole delivery. Raises MalformedError where nothing of it can be used.
    """
    raw, headers = bytes(copy.body), copy.headers
    try:
        event = reread(contract, raw, headers, copy.event_id, origin=Origin.REPLAY)
        return [replace(event, by_person=True)], None
    except MalformedError:
        if copy.event_id is not None or contract.items is None:
            raise
    delivery = read_delivery(contract, raw, headers)
    events = [
        replace(event, origin=Origin.REPLAY, by_person=True)
        for event in delivery.events
        if isinstance(event, Event)
    ]
    faults = [event.fault for event in delivery.events if isinstance(event, Malformed)]
    if not events and faults:
        raise MalformedError(faults[0])
    return events, faults[0] if faults else None


async def _fail(order: Order, id_: UUID, fault: str, connection: AsyncConnection) -> Item:
    """Count a failure, after everything of the attempt was rolled back."""
    copy = await quarantine.show(connection, id_)
    if copy is None:
        raise UsageError(f"there is no copy {id_} in quarantine")
    if order.dry_run:
        return item_of(copy, Fate.QUARANTINED, fault=fault, failures=copy.failures)
    failures = await quarantine.count_failure(connection, id_, fault)
    if failures is None:
        return item_of(copy, Fate.CLOSED)
    item = item_of(copy, Fate.QUARANTINED, fault=fault, failures=failures)
    await note(connection, order, item)
    return item


async def _busy(id_: UUID, fault: str, connection: AsyncConnection) -> Item:
    copy = await quarantine.show(connection, id_)
    assert copy is not None
    return item_of(copy, Fate.BUSY, fault=fault)


async def discard(
    order: Order,
    *,
    sender: str | None = None,
    event_id: str | None = None,
    copy: UUID | None = None,
) -> Item:
    """Close an open copy as discarded: by its event, or by its own id. Raises ReconcilerError."""

    async def work(connection: AsyncConnection) -> Item:
        if copy is not None:
            found = await quarantine.show(connection, copy)
        else:
            assert sender is not None
            assert event_id is not None
            found = await quarantine.of_event(connection, sender, event_id)
        if found is None:
            raise ReconcilerError("nothing of it is in quarantine", hint=WHAT_IS)
        if not await quarantine.settle(connection, found.id, state="discarded"):
            raise ReconcilerError(f"its copy is closed already, as {found.state}", hint=WHAT_IS)
        item = {**item_of(found, Fate.CLOSED, fault=found.fault), "result": "discarded"}
        await actions.record(
            connection,
            actor=order.actor,
            action="events.discard",
            subject=subject_of(item),
            reason=order.reason,
        )
        return item

    return await transact(order.engine, work)
