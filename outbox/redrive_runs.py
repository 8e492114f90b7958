"""
Redriving in the background: what a person asked for, as far as it has come, and its next batch.

A run is a row. Whoever works one off holds it locked for one batch and writes down, in the same
transaction, how far it has come: a crash loses nothing and repeats nothing, and any process may
go on. Callers own the transaction.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, RowMapping, and_, func, insert, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.choosing import find
from outbox.entry import State, uuid7
from outbox.flow_tables import redrive_runs
from outbox.forgetting import Old
from outbox.redriving import Handled, redrive
from outbox.store import PENDING, SECOND, outbox

RUNNING, DONE, STOPPED = "running", "done", "stopped"

LARGEST = 100  # entries of one batch: its locks are held for a moment only
APART = 0.5  # seconds between two batches of a slow run
WAITING = 1000  # entries that a run puts in the way of a destination at most
FULL = 1.0  # seconds until a destination that has so many is looked at again

Noted = Callable[[AsyncConnection, RowMapping, Sequence[Handled]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one batch of a run came to."""

    run: UUID
    redriven: int
    refused: Mapping[str, int]  #: how many, by why
    over: bool  #: it was the last one


async def begin(  # noqa: PLR0913  # the columns of a run
    connection: AsyncConnection,
    *,
    chosen: Mapping[str, Any],
    rate: float,
    total: int,
    actor: str,
    reason: str | None,
) -> RowMapping:
    """
    Ask for the redriving of what is *chosen*, *rate* entries a second.

    *chosen* are arguments of `choosing.find` (moments in ISO format), `limit` (how many at the
    most, or null), `out_of_order` and `needs`: destinations that whoever works it off must know.
    What stops from now on is not meant.
    """
    made = await connection.execute(
        insert(redrive_runs)
        .values(
            id=uuid7(),
            chosen=dict(chosen),
            rate=rate,
            total=total,
            actor=actor,
            reason=reason,
            upto=func.clock_timestamp(),
        )
        .returning(redrive_runs)
    )
    run: RowMapping = made.mappings().one()
    return run


async def stop(connection: AsyncConnection, id_: UUID) -> tuple[RowMapping | None, bool]:
    """The run, None where there is none, and whether this stopped it: what went has gone."""
    meant = redrive_runs.c.id == id_
    stopped = await connection.execute(
        update(redrive_runs)
        .where(meant, redrive_runs.c.state == RUNNING)
        .values(state=STOPPED, ended_at=func.clock_timestamp())
        .returning(redrive_runs)
    )
    if (row := stopped.mappings().one_or_none()) is not None:
        return row, True
    found = await connection.execute(select(redrive_runs).where(meant))
    return found.mappings().one_or_none(), False


async def listed(
    connection: AsyncConnection, *, limit: int, running: bool = False
) -> list[RowMapping]:
    """Runs, the latest first; or only those that are *running*."""
    statement = select(redrive_runs).order_by(redrive_runs.c.id.desc()).limit(limit)
    if running:
        statement = statement.where(redrive_runs.c.state == RUNNING)
    return list((await connection.execute(statement)).mappings())


def old(keep: timedelta) -> Old:
    """Runs that ended longer ago than *keep*; there are few of these rows, people made them."""
    return Old(table=redrive_runs, by="ended_at", keep=keep)


async def soonest(connection: AsyncConnection, *, known: Collection[str]) -> float | None:
    """Seconds until the next batch of a run at *known* destinations is due; None: there is none."""
    left = func.extract("epoch", func.min(redrive_runs.c.due_at) - func.clock_timestamp())
    running = redrive_runs.c.state == RUNNING
    found = await connection.scalar(select(left).where(running, _is_known(known)))
    return None if found is None else float(found)


async def work_off(
    connection: AsyncConnection,
    *,
    key_lives: Mapping[str, timedelta],
    passing: Collection[str],
    noted: Noted,
) -> Batch | None:
    """
    One batch of the run that is due, if one is; others skip the run that we hold.

    *key_lives* and *passing* as in `redrive`; *noted* writes down what was done, beside it. A run
    at destinations that we do not know is left to those who do.
    """
    is_due = and_(redrive_runs.c.state == RUNNING, redrive_runs.c.due_at <= func.clock_timestamp())
    due = (
        select(redrive_runs)
        .where(is_due, _is_known(key_lives))
        .order_by(redrive_runs.c.due_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    run = (await connection.execute(due)).mappings().one_or_none()
    if run is None:
        return None
    chosen = dict(run["chosen"])
    limit, out_of_order = chosen.pop("limit"), chosen.pop("out_of_order")
    chosen.pop("needs", None)
    if (name := chosen.get("destination")) and await _is_full(connection, name):
        await _advance(connection, run, wait=FULL, after=run["after"])
        return Batch(run=run["id"], redriven=0, refused={}, over=False)

    wanted = size_of(run["rate"])
    if limit is not None:
        wanted = min(wanted, limit - run["redriven"] - run["refused"])
    ids = await find(connection, **read(chosen), upto=run["upto"], after=run["after"], limit=wanted)
    handled = await redrive(
        connection, ids, key_lives=key_lives, passing=passing, out_of_order=out_of_order
    )
    await noted(connection, run, handled)
    refused = Counter(one.refusal.value for one in handled if one.refusal is not None)
    redriven = len(handled) - refused.total()
    over = len(ids) < wanted or (limit is not None and run_length(run) + len(ids) >= limit)
    await _advance(
        connection,
        run,
        wait=len(ids) / run["rate"],
        after=ids[-1] if ids else run["after"],
        redriven=redriven,
        refused=refused.total(),
        over=over,
    )
    return Batch(run=run["id"], redriven=redriven, refused=dict(refused), over=over)


def run_length(run: RowMapping) -> int:
    """How many entries a run has looked at."""
    return int(run["redriven"] + run["refused"])


def size_of(rate: float) -> int:
    """
    How many entries one batch of a run has.

    >>> size_of(0.1), size_of(50), size_of(10_000)
    (1, 25, 100)
    """
    return max(1, min(LARGEST, math.floor(rate * APART)))


def written(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """*chosen* as JSON has it: moments and states as text; what is not said is left out."""
    found = {}
    for name, value in chosen.items():
        if value is None:
            continue
        found[name] = value.isoformat() if isinstance(value, datetime) else value
    return found


def read(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """What `written` wrote, as arguments of `find`."""
    said = {
        name: datetime.fromisoformat(value) if name in MOMENTS else value
        for name, value in chosen.items()
    }
    return {**said, "state": State(chosen["state"])}


MOMENTS = ("since", "before", "asked_since", "asked_before")


def _is_known(destinations: Collection[str]) -> ColumnElement[bool]:
    """Whether a run needs no other than these: who does not know one would refuse its entries."""
    needs = redrive_runs.c.chosen["needs"]
    return or_(needs.is_(None), needs.contained_by(sorted(destinations)))


async def _is_full(connection: AsyncConnection, destination: str) -> bool:
    """Whether enough that was redriven waits for a destination already: a stop can be too late."""
    waiting = (
        select(literal(1))
        .where(
            outbox.c.destination == destination,
            outbox.c.redriven,
            and_(outbox.c.state == PENDING, outbox.c.due_at.is_not(None)),
        )
        .limit(WAITING)
        .subquery()
    )
    found = await connection.scalar(select(func.count()).select_from(waiting))
    return (found or 0) >= WAITING


async def _advance(  # noqa: PLR0913  # what a batch came to
    connection: AsyncConnection,
    run: RowMapping,
    *,
    wait: float,
    after: UUID | None,
    redriven: int = 0,
    refused: int = 0,
    over: bool = False,
) -> None:
    now = func.clock_timestamp()
    values: dict[str, Any] = {
        "after": after,
        "redriven": redrive_runs.c.redriven + redriven,
        "refused": redrive_runs.c.refused + refused,
        "due_at": now + literal(wait) * SECOND,
    }
    if over:
        values |= {"state": DONE, "ended_at": now}
    await connection.execute(
        update(redrive_runs).where(redrive_runs.c.id == run["id"]).values(values)
    )
