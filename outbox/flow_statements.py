"""The statements behind `outbox.flow`: who may go, what was taken, and how destinations stand."""

from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Double,
    FromClause,
    Integer,
    Select,
    Text,
    Update,
    Uuid,
    and_,
    case,
    func,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import Insert, insert

from outbox.compiled import Compiled
from outbox.flow_tables import BY_INDEX, LETS_GO_SOON, destination_flow, pauses
from outbox.look_statements import WHICH, is_to_look_up
from outbox.store import LOOK_DUE, PENDING, SECOND, C, Time, outbox, record_set

NOW = func.clock_timestamp()  # now() is when the transaction began, before it waited


def _calls_due() -> Select[Any]:
    """For which destinations a call is due: one that was redriven, or another."""
    wanted = record_set("wanted", {"destination": C})
    live, redriven = is_due(wanted, redriven=False), is_due(wanted, redriven=True)
    return select(
        wanted.c.destination,
        live.label("live"),
        redriven.label("redriven"),
    )


def _looks_due() -> Select[Any]:
    """For which destinations a look-up is due; and calls, one of which is the better probe."""
    wanted = record_set("wanted", WHICH)
    # the first, in the index's order, as in `is_due`
    first = select(outbox.c.id).where(*is_to_look_up(wanted)).order_by(LOOK_DUE).limit(1)
    look = first.correlate(wanted).scalar_subquery().is_not(None)
    live, redriven = is_due(wanted, redriven=False), is_due(wanted, redriven=True)
    return select(
        wanted.c.destination,
        live.label("live"),
        redriven.label("redriven"),
        look.label("look"),
    )


def _ask_statement(asked: Select[Any], *those: str) -> Select[Any]:
    """
    What is due, how its destination stands, and, where it may go, that row locked.

    Also how those stand that failed lately and for which nothing is due: calls of theirs may be
    under way, and a success ends the row of failures.
    """
    # Materialized: nothing is locked of a destination for which nothing is due.
    due = asked.cte("due").prefix_with("MATERIALIZED")
    wanted = or_(*(due.c[name] for name in those))
    seen = destination_flow.alias("seen")
    paused = select(pauses.c.effect).where(pauses.c.destination == due.c.destination).correlate(due)
    whole = paused.where(pauses.c.effect == "").exists()
    effects = func.array(paused.scalar_subquery())
    locked = locked_row(due, whole, wanted)
    names = ("breaker", "failures", "probe_at", "slowed_until", "tokens", "filled_at")
    # What is locked may be newer than what was seen.
    current = [
        case((locked.c.destination.is_not(None), locked.c[name]), else_=seen.c[name]).label(name)
        for name in names
    ]
    return (
        select(
            due,
            wanted.label("due"),
            seen.c.destination.is_not(None).label("known"),
            locked.c.destination.label("locked"),
            whole.label("paused"),
            effects.label("paused_effects"),
            *current,
            NOW.label("now"),
            LETS_GO_SOON.label("lets_go"),
            BY_INDEX.label("by_index"),
        )
        .select_from(
            due.outerjoin(seen, seen.c.destination == due.c.destination).outerjoin(locked, true())
        )
        .where(or_(wanted, seen.c.failures > 0, paused.exists()))
    )


def is_due(wanted: FromClause, *, redriven: bool) -> ColumnElement[bool]:
    """
    Whether an entry is due; by this much of the index, however many others back off.

    The first of them is asked for, in the index's order. Of a mere EXISTS a planner without
    statistics makes a bitmap of the whole backlog, at every turn.
    """
    first = (
        select(outbox.c.id)
        .where(
            outbox.c.destination == wanted.c.destination,
            outbox.c.state == PENDING,
            outbox.c.redriven.is_(redriven),
            outbox.c.due_at <= func.now(),
        )
        .order_by(outbox.c.due_at)
        .limit(1)
        .correlate(wanted)
        .scalar_subquery()
    )
    return first.is_not(None)


def locked_row(due: FromClause, paused: ColumnElement[bool], wanted: ColumnElement[bool]) -> Any:
    flow = destination_flow.alias("flow")
    return (
        select(flow)
        .where(
            wanted,
            flow.c.destination == due.c.destination,
            or_(flow.c.breaker == "closed", flow.c.probe_at <= NOW),
            ~paused,
        )
        .with_for_update(skip_locked=True)
        .lateral("locked")
    )


def _know_statement() -> Insert:
    given = record_set("given", {"destination": C}).c
    named = select(given.destination).order_by(given.destination)
    return insert(destination_flow).from_select(["destination"], named).on_conflict_do_nothing()


def _take_statement() -> Update:
    given = record_set("given", {"destination": C, "tokens": Double(), "probe": Double()}).c
    flow = destination_flow.c
    return (
        update(destination_flow)
        .where(flow.destination == given.destination)
        .values(
            tokens=given.tokens,
            filled_at=NOW,
            probe_at=case((given.probe.is_not(None), NOW + given.probe * SECOND)),
        )
    )


def _give_back_statement() -> Update:
    """A probe that was not made may be made by the next who asks."""
    given = record_set("given", {"destination": C, "calls": Integer(), "probe": Boolean()}).c
    flow = destination_flow.c
    return (
        update(destination_flow)
        .where(flow.destination == given.destination)
        .values(
            tokens=flow.tokens + given.calls,
            probe_at=case((and_(given.probe, flow.breaker == "open"), NOW), else_=flow.probe_at),
        )
    )


def _standing_statement() -> Select[Any]:
    given = record_set("given", {"destination": C}).c
    return (
        select(destination_flow, NOW.label("now"))
        .where(destination_flow.c.destination == given.destination)
        .order_by(destination_flow.c.destination)
        .with_for_update(of=destination_flow)
    )


def _note_statement() -> Update:
    given = record_set(
        "given",
        {
            "destination": C,
            "breaker": Text(),
            "failures": Integer(),
            "failing": Uuid(),
            "opened_at": Time,
            "probe_at": Time,
            "reason": Text(),
            "slowed_until": Time,
            "slower": Boolean(),
        },
    ).c
    flow = destination_flow.c
    same = ("breaker", "failures", "failing", "opened_at", "probe_at", "reason", "slowed_until")
    return (
        update(destination_flow)
        .where(flow.destination == given.destination)
        .values(
            # whoever was told to call less begins again with nothing, not with a full bucket
            tokens=case((given.slower, 0.0), else_=flow.tokens),
            filled_at=case((given.slower, NOW), else_=flow.filled_at),
            **{name: given[name] for name in same},
        )
    )


ASK = Compiled(_ask_statement(_calls_due(), "live", "redriven"), prepared=True)
ASK_TO_LOOK = Compiled(_ask_statement(_looks_due(), "look"))
KNOW = Compiled(_know_statement())
TAKE = Compiled(_take_statement())
GIVE_BACK = Compiled(_give_back_statement())
STANDING = Compiled(_standing_statement())
NOTE = Compiled(_note_statement())
