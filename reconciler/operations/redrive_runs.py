"""Redriving many: asked for by a person, worked off by the relays, a batch at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import choosing, redrive_runs
from outbox.redrive_runs import Batch
from outbox.redriving import Handled
from reconciler.errors import DatabaseAwayError, ReconcilerError
from reconciler.lifecycle import pause
from reconciler.operations import actions
from reconciler.operations.acting import Order
from reconciler.operations.assembly import Assembly
from reconciler.operations.redriving import (
    Filters,
    key_lives,
    passing_effects,
    run_order,
    subject_of,
)
from reconciler.transactions import taking_up_to, transact

LOOKED_AT = timedelta(seconds=1)  #: how often runs are looked for
CHOSEN_WITHIN = timedelta(seconds=50)  #: what looks through a large table may take its time
BOUND = timedelta(seconds=180)  #: between two beats: more than one batch may take
LISTED = 20

Item = dict[str, Any]
MayCall = Callable[[AsyncConnection], Awaitable[bool]]

log = structlog.get_logger()


async def count(order: Order, filters: Filters, *, limit: int | None) -> int:
    """How many entries *filters* find; at the most *limit*."""

    async def work(connection: AsyncConnection) -> int:
        with taking_up_to(connection, CHOSEN_WITHIN):
            return await choosing.count(connection, **asdict(filters))

    found = await transact(order.engine, work)
    return found if limit is None else min(found, limit)


async def begin(
    order: Order, filters: Filters, *, limit: int | None, rate: float, total: int
) -> Item:
    """Ask for a background run over what *filters* find, *rate* entries a second."""
    chosen = redrive_runs.written(asdict(filters))
    chosen |= {"limit": limit, "out_of_order": order.out_of_order}

    async def work(connection: AsyncConnection) -> Item:
        with taking_up_to(connection, CHOSEN_WITHIN):
            places = await choosing.destinations(connection, **asdict(filters))
        # A replica that does not know a place of these must not be the one that refuses it.
        chosen["needs"] = [name for name in places if name in order.assembly.destinations]
        run = await redrive_runs.begin(
            connection,
            chosen=chosen,
            rate=rate,
            total=total,
            actor=order.actor,
            reason=order.reason,
        )
        said = {"run": str(run["id"]), "chosen": chosen, "rate": rate, "total": total}
        await _note(connection, order, "outbox.redrive", said)
        return item_of(run)

    item: Item = await transact(order.engine, work)
    return item


async def stop(order: Order, id_: UUID) -> Item:
    """
    Let a run redrive no more. What it has redriven goes on: a pause holds that back.

    Raises ReconcilerError where there is no such run.
    """

    async def work(connection: AsyncConnection) -> Item:
        run, stopped = await redrive_runs.stop(connection, id_)
        if run is None:
            raise ReconcilerError(
                f"there is no run {id_}", hint="`reconciler outbox redrive --status` lists them"
            )
        if stopped:
            await _note(connection, order, "outbox.redrive_stop", {"run": str(id_)})
        return {**item_of(run), "result": "stopped" if stopped else "was_over"}

    item: Item = await run_order(order, work)  # type: ignore[assignment]
    return item


async def listed(connection: AsyncConnection, *, running: bool = False) -> list[Item]:
    """Runs and how far they are, the latest first."""
    return [
        item_of(one) for one in await redrive_runs.listed(connection, limit=LISTED, running=running)
    ]


def item_of(run: RowMapping) -> Item:
    """What is told of a run; `left` is an estimate, for entries come and go by other hands."""
    left = max((run["total"] or 0) - redrive_runs.run_length(run), 0)
    names = ("id", "state", "started_at", "ended_at", "actor", "reason", "chosen", "rate")
    return {
        **{name: run[name] for name in names},
        "total": run["total"],
        "redriven": run["redriven"],
        "refused": run["refused"],
        "left": left if run["state"] == redrive_runs.RUNNING else 0,
    }


async def work_off(  # noqa: PLR0913  # its edges are passed in
    engine: AsyncEngine,
    assembly: Assembly,
    *,
    may_call: MayCall,
    stop: asyncio.Event,
    beat: Callable[[], None],
    redriven: Callable[[], None],
) -> None:
    """
    Work off whatever runs there are until *stop*; *redriven* is called when entries became due.

    *may_call* is asked in every transaction; False leaves everything where it is.
    """
    one = partial(
        _batch, lives=key_lives(assembly), passing=passing_effects(assembly), may_call=may_call
    )
    while not stop.is_set():
        beat()
        wait = LOOKED_AT.total_seconds()
        try:
            batch, soonest = await transact(engine, one)
        except DatabaseAwayError:
            pass  # the database part says so, once
        else:
            if batch is not None:
                _tell(batch)
                if batch.redriven:
                    redriven()
            if soonest is not None:
                wait = min(wait, max(soonest, 0.01))
        await pause(stop, timedelta(seconds=wait))


async def _batch(
    connection: AsyncConnection,
    *,
    lives: dict[str, timedelta],
    passing: frozenset[str],
    may_call: MayCall,
) -> tuple[Batch | None, float | None]:
    if not await may_call(connection):
        return None, None
    with taking_up_to(connection, CHOSEN_WITHIN):
        batch = await redrive_runs.work_off(
            connection, key_lives=lives, passing=passing, noted=_noted
        )
    soonest = await redrive_runs.soonest(connection, known=lives)
    if batch is None and soonest is not None and soonest <= 0:
        soonest = None  # another process is at it
    return batch, soonest


async def _noted(connection: AsyncConnection, run: RowMapping, handled: Sequence[Handled]) -> None:
    """Each entry's own story tells who redrove it, as if it had been one by one."""
    await actions.record_all(
        connection,
        actor=run["actor"],
        action="outbox.redrive",
        subjects=[
            {**subject_of(one), "run": str(run["id"])} for one in handled if one.refusal is None
        ],
        reason=run["reason"],
    )


async def _note(
    connection: AsyncConnection, order: Order, action: str, subject: dict[str, Any]
) -> None:
    await actions.record(
        connection, actor=order.actor, action=action, subject=subject, reason=order.reason
    )


def _tell(batch: Batch) -> None:
    facts = {"run": str(batch.run), "redriven": batch.redriven, "refused": dict(batch.refused)}
    if batch.redriven or batch.refused or batch.over:
        log.info("redrive.batch_done", **facts)
    if batch.over:
        log.info("redrive.run_ended", run=str(batch.run))
