"""What each entry waits for, at any time: the first thing that would have to change."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Interval,
    Select,
    Uuid,
    and_,
    case,
    func,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.flow_tables import destination_flow, pauses
from outbox.lanes import first_not_through
from outbox.store import PENDING, outbox, record_set

NOW = func.clock_timestamp()
LATELY: ColumnElement[Any] = literal_column("interval '1 hour'", Interval)


class Waits(StrEnum):
    """What a pending entry waits for."""

    RENDERING = "rendering"  #: it has no request yet
    ANSWER = "answer"  #: it is called, or about to be, or its relay died: until the lease ends
    PAUSE = "pause"  #: somebody paused its destination or its effect
    LANE = "lane"  #: an earlier call of its lane is not through yet
    BREAKER = "breaker"  #: its destination is not well
    BACK_OFF = "back_off"  #: until its next attempt
    SLOWED = "slowed"  #: the next call that is allowed: its destination asked for fewer
    RATE = "rate"  #: the next call that its destination's rate allows
    TURN = "turn"  #: a free slot: it is due


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What one entry waits for, and until when, where that is known."""

    what: Waits
    until: datetime | None
    pause: Mapping[str, Any] | None = None  #: with PAUSE: whose, since when and why
    behind: UUID | None = None  #: with LANE: the first call that is not through


async def waiting_for(
    connection: AsyncConnection,
    entries: Mapping[UUID, str],
    *,
    holding: Collection[str] = (),
) -> dict[UUID, Waiting]:
    """
    What those of *entries* (with their destinations) wait for that are pending.

    *holding* are destinations where a dead entry holds those behind it.
    """
    if not entries:
        return {}
    rows = [
        {"id": str(id_), "hold": destination in holding} for id_, destination in entries.items()
    ]
    found = await connection.execute(_WAITING, {"rows": rows})
    return {row.id: _waiting(row) for row in found}


async def standings(connection: AsyncConnection) -> dict[str, dict[str, Any]]:
    """How destinations stand that were called, or are paused: what all their entries wait for."""
    found: dict[str, dict[str, Any]] = {}
    for row in (await connection.execute(_STANDINGS)).mappings():
        told = {name: value for name, value in row.items() if name != "destination"}
        found[row["destination"]] = {**FRESH, **told}
    for pause in (await connection.execute(select(pauses))).mappings():
        told = {name: pause[name] for name in ("paused_at", "actor", "reason")}
        one = found.setdefault(pause["destination"], dict(FRESH))
        if pause["effect"]:
            one["paused_effects"] = {**one["paused_effects"], pause["effect"]: told}
        else:
            one["paused"] = told
    return {name: {**one, **_told(one)} for name, one in sorted(found.items())}


def _waiting(row: Any) -> Waiting:
    what, until = Waits.TURN, None
    if row.due_at is None:
        what = Waits.RENDERING
    elif row.under_way:
        what, until = Waits.ANSWER, row.due_at
    elif row.paused_at is not None:
        pause = {"effect": row.paused_effect or None}
        pause |= {name: getattr(row, name) for name in ("paused_at", "actor", "reason")}
        return Waiting(what=Waits.PAUSE, until=None, pause=pause)
    elif row.behind is not None:
        return Waiting(what=Waits.LANE, until=None, behind=row.behind)
    elif row.probe_at is not None and (row.backs_off is None or row.backs_off <= row.probe_at):
        what, until = Waits.BREAKER, row.probe_at
    elif row.backs_off is not None:
        what, until = Waits.BACK_OFF, row.backs_off
    elif row.out_of_tokens:
        what = Waits.RATE if row.slowed_until is None else Waits.SLOWED
    return Waiting(what=what, until=until)


def _told(one: Mapping[str, Any]) -> dict[str, Any]:
    """The same in one word, for all entries of a destination; None: for nothing in common."""
    if one["paused"] is not None:
        return {"waiting_for": Waits.PAUSE.value, "waiting_until": None}
    if one["breaker"] == "open":
        return {"waiting_for": Waits.BREAKER.value, "waiting_until": one["probe_at"]}
    if one["slowed_until"] is not None:
        return {"waiting_for": Waits.SLOWED.value, "waiting_until": None}
    return {"waiting_for": None, "waiting_until": None}


#: how a destination stands that was never called and is not paused
FRESH: Mapping[str, Any] = {
    "breaker": "closed",
    "failures": 0,
    "opened_at": None,
    "probe_at": None,
    "reason": None,
    "slowed_until": None,
    "under_way": 0,
    "paused": None,
    "paused_effects": {},
    "waiting_for": None,
    "waiting_until": None,
}


def later(moment: ColumnElement[Any], *when: ColumnElement[bool]) -> ColumnElement[Any]:
    """*moment* where it is still to come (and *when* holds), else null."""
    return case((and_(moment > NOW, *when), moment))


def _waiting_statement() -> Select[Any]:
    given = record_set("given", {"id": Uuid(), "hold": Boolean()})
    flow = destination_flow
    # That of the destination before that of the effect: it has to end first.
    paused = (
        select(pauses)
        .where(
            pauses.c.destination == outbox.c.destination,
            or_(pauses.c.effect == "", pauses.c.effect == outbox.c.effect),
        )
        .correlate(outbox)
        .order_by(pauses.c.effect)
        .limit(1)
        .lateral("paused")
    )
    under_way = and_(outbox.c.call_open, outbox.c.due_at > NOW)
    # Only destinations with a rate have tokens; one that has it no more took none for long.
    out_of_tokens = and_(flow.c.tokens < 1, flow.c.filled_at > NOW - LATELY)
    return (
        select(
            outbox.c.id,
            outbox.c.due_at,
            under_way.label("under_way"),
            paused.c.effect.label("paused_effect"),
            paused.c.paused_at,
            paused.c.actor,
            paused.c.reason,
            first_not_through(given).label("behind"),
            later(outbox.c.due_at).label("backs_off"),
            later(flow.c.probe_at, flow.c.breaker == "open").label("probe_at"),
            later(flow.c.slowed_until).label("slowed_until"),
            out_of_tokens.label("out_of_tokens"),
        )
        .select_from(
            given.join(outbox, outbox.c.id == given.c.id)
            .outerjoin(flow, flow.c.destination == outbox.c.destination)
            .outerjoin(paused, true())
        )
        .where(outbox.c.state == PENDING)
    )


def _standings_statement() -> Select[Any]:
    flow = destination_flow.c
    under_way = (
        select(func.count())
        .where(outbox.c.destination == flow.destination, outbox.c.call_open, outbox.c.due_at > NOW)
        .correlate(destination_flow)
        .scalar_subquery()
    )
    told = (flow.breaker, flow.failures, flow.opened_at, flow.reason)
    return select(
        flow.destination,
        *told,
        later(flow.probe_at).label("probe_at"),
        later(flow.slowed_until).label("slowed_until"),
        under_way.label("under_way"),
    ).order_by(flow.destination)


_WAITING = _waiting_statement()
_STANDINGS = _standings_statement()
