"""Re-applying: your statements and handlers run over the states that we hold, and nothing else."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.errors import DatabaseAwayError, ReconcilerError, UsageError
from reconciler.ledger import resources
from reconciler.ledger.commit import BLAMED, is_ours, set_limits, unless_locked
from reconciler.ledger.reapplication import Reapplied, reapply
from reconciler.operations import actions
from reconciler.operations.assembly import Assembly
from reconciler.operations.naming import require_sender
from reconciler.polling.rehearsal import rolled_back
from reconciler.transactions import told, transact

BATCH = 50  #: rows of one transaction: a webhook about one of them waits for it

Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which kind is re-applied, by whom, and how."""

    engine: AsyncEngine
    assembly: Assembly
    sender: str
    kind: str
    actor: str
    reason: str | None = None
    dry_run: bool = False


async def reapply_one(order: Order, key: str) -> Item:
    """Re-apply one resource. Raises ReconcilerError where nothing is held of it."""
    require_reactions(order)
    (item,) = await _one_by_one(order, [key], noted=True)
    if item["result"] == "gone":
        raise ReconcilerError(
            f"nothing is held of {order.sender} {order.kind} {key!r}",
            hint=f"`reconciler reconcile {order.sender} {order.kind} KEY` asks the sender for one",
        )
    return item


async def reapply_all(order: Order) -> AsyncIterator[list[Item]]:
    """Re-apply every resource of the kind, in key order, a bounded batch at a time."""
    require_reactions(order)
    if not order.dry_run:
        await transact(order.engine, partial(_note, order, None))
    after: str | None = None
    while True:
        keys = await transact(order.engine, partial(_keys, order, after))
        if keys:
            yield await _batch(order, keys)
        if len(keys) < BATCH:
            return
        after = keys[-1]


async def _keys(order: Order, after: str | None, connection: AsyncConnection) -> list[str]:
    place = None if after is None else (order.sender, order.kind, after)
    rows = await resources.list_resources(
        connection, sender=order.sender, kind=order.kind, after=place, limit=BATCH
    )
    return [row.key for row in rows]


def require_reactions(order: Order) -> None:
    """See that there is something to run. Raises UsageError."""
    senders = order.assembly.rules.senders
    require_sender(senders, order.sender)
    kinds = senders[order.sender].kinds
    if order.kind not in kinds:
        known = ", ".join(kinds) or "none"
        raise UsageError(f"{order.sender} has no kind {order.kind!r}; there are: {known}")
    reactions = senders[order.sender].changes_for(order.kind)
    if not reactions.applies and not reactions.handlers:
        raise UsageError(
            f"no apply statement and no handler has on_change for {order.sender}:{order.kind}"
        )


async def _batch(order: Order, keys: Sequence[str]) -> list[Item]:
    """A batch in one transaction; where one of it fails, each by itself."""
    try:
        return await _run(order, keys, noted=False)
    except DatabaseAwayError:
        raise
    except BLAMED as error:
        if is_ours(error):
            raise
    return await _one_by_one(order, keys, noted=False)


async def _one_by_one(order: Order, keys: Sequence[str], *, noted: bool) -> list[Item]:
    items: list[Item] = []
    for key in keys:
        try:
            items += await _run(order, [key], noted=noted)
        except DatabaseAwayError:
            raise
        except BLAMED as error:
            if is_ours(error):
                raise
            items.append({**nothing(key), "result": "failed", "fault": told(error)})
    return items


async def _run(order: Order, keys: Sequence[str], *, noted: bool) -> list[Item]:
    async def work(connection: AsyncConnection) -> list[Item]:
        rules = order.assembly.rules
        await set_limits(connection, rules)
        with unless_locked():
            done = await reapply(connection, rules, order.sender, order.kind, keys)
        if noted and done[keys[0]] is not None:
            await _note(order, keys[0], connection)
        return [item_of(one) if one is not None else nothing(key) for key, one in done.items()]

    items: list[Item] = await (rolled_back if order.dry_run else transact)(order.engine, work)
    return items


async def _note(order: Order, key: str | None, connection: AsyncConnection) -> None:
    subject = {"sender": order.sender, "kind": order.kind}
    if key is not None:
        subject["key"] = key
    await actions.record(
        connection, actor=order.actor, action="reapply", subject=subject, reason=order.reason
    )


def nothing(key: str) -> Item:
    """What is told of a resource that is not held."""
    return {
        "key": key,
        "version": None,
        "deleted": None,
        "result": "gone",
        "fault": None,
        "steps": [],
    }


def item_of(one: Reapplied) -> Item:
    ran = [
        {
            "where": step.where,
            "ran": True,
            "rows": step.rows,
            "expected": step.expected,
            "reason": None,
        }
        for step in one.explained.ran
    ]
    passed = [
        {
            "where": step.where,
            "ran": False,
            "rows": None,
            "expected": None,
            "reason": step.reason,
        }
        for step in one.explained.passed
    ]
    return {
        "key": one.key,
        "version": str(one.version),
        "deleted": one.deleted,
        "result": "reapplied",
        "fault": None,
        "steps": [*ran, *passed],
    }
