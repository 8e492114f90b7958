"""The second step: rows are locked once, all events folded over them, and written once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler import database
from reconciler.ledger import claims, resources
from reconciler.ledger.batch import Batch, Case
from reconciler.ledger.event import Outcome
from reconciler.ledger.guard import EPOCH, Held, decide, needs_read
from reconciler.ledger.locked import Locked
from reconciler.ledger.rowsets import EventId, ResourceId
from reconciler.ledger.rules import Reactions


async def guard(connection: AsyncConnection, batch: Batch) -> Locked:
    """
    Decide every event about a resource, in arrival order, over the locked rows.

    Nothing is written yet. Holding the locks of all rows from the first to the last event makes
    this equal to applying one event after the other.
    """
    guarded = [case for case in batch.cases if is_guarded(case)]
    for case in batch.cases:
        if case.claimed and case.outcome is Outcome.DEFERRED:
            reason = needs_read(case.event, case.rule)
            assert reason is not None
            case.ask(reason, at_least=case.event.version)
    if not guarded:
        return Locked(before={}, now={}, placeholders=set())

    locked = await resources.lock(connection, {case.resource for case in guarded})
    now = EPOCH
    if any(not case.delivered for case in guarded):
        now = await database.now(connection)
    twice = await told_twice(connection, batch, guarded, locked.before)
    fold(batch, guarded, locked.now, twice=twice, now=now)
    return locked


def is_guarded(case: Case) -> bool:
    """Whether the row of its resource decides what comes of this event."""
    if case.event.observation is None:
        return False
    return not case.delivered or (case.claimed and case.outcome is Outcome.APPLIED)


def fold(
    batch: Batch,
    guarded: Sequence[Case],
    held: dict[ResourceId, Held],
    *,
    twice: set[int],
    now: datetime,
) -> None:
    """Let each event decide over what those before it have left."""
    for case in guarded:
        before = held[case.resource]
        decision = decide(before, case.event, case.rule, twice=id(case) in twice, now=now)
        case.held, case.decision, case.outcome = before, decision, decision.outcome
        after = decision.held
        if decision.fact and not decision.written and enqueues(case):
            after = raised(after)
        case.revision = after.revision
        held[case.resource] = after
        if decision.request is not None:
            # `observed` versions are our own: no answer is held against them
            named = None if case.rule.observed else case.event.version
            case.ask(decision.request, at_least=named)
        if case.claimed and decision.outcome is not Outcome.APPLIED:
            batch.outcomes[case.id] = decision.outcome


def enqueues(case: Case) -> bool:
    """Whether anything reacts to the fact that this event tells, so that order matters."""
    assert case.decision is not None
    return reacts(case.sender.facts_for(case.event.type), stale=case.decision.stale)


def reacts(reactions: Reactions, *, stale: bool) -> bool:
    parts = (reactions.applies, reactions.handlers, reactions.effects)
    gates = [step.gate for part in parts for step in part]
    return any(not stale or gate.if_stale == "count" for gate in gates)


def raised(held: Held) -> Held:
    """The row once one more event has enqueued about it."""
    return replace(held, revision=held.revision + 1)


async def told_twice(
    connection: AsyncConnection,
    batch: Batch,
    guarded: Sequence[Case],
    held: Mapping[ResourceId, Held],
) -> set[int]:
    """
    Which cases tell a fact that was told before under another id.

    Only those can matter that may turn out not to be newer; in the usual case there is none, and
    nothing is asked.
    """
    told: dict[tuple[object, ...], Case] = {}
    seen: set[ResourceId] = set()
    twice: set[int] = set()
    asked: dict[EventId, Case] = {}
    rows: list[dict[str, Any]] = []
    for case in guarded:
        version = case.event.version
        if not case.delivered or version is None:
            continue
        fact = (case.resource, case.event.type, version, case.claim["state_digest"])
        if told.setdefault(fact, case) is not case:
            twice.add(id(case))
        ours = held[case.resource].version
        if case.resource in seen or (ours is not None and version <= ours):
            asked[case.id] = case
            rows.append(case.claim)
        seen.add(case.resource)
    own = [case.id for case in batch.cases if case.claimed]
    found = await claims.told_before(connection, rows, own=own)
    return twice | {id(asked[id_]) for id_ in found}


async def write(connection: AsyncConnection, locked: Locked) -> None:
    """Write each row once, as the last event left it; drop those that nothing came of."""
    written = [
        (resource, after, locked.before[resource].version == after.version)
        for resource, after in locked.now.items()
        if after.just_written
    ]
    if written:
        await resources.write_if_newer(connection, written)
    raised_only = {
        resource: after.revision
        for resource, after in locked.now.items()
        if not after.just_written and after.revision > locked.before[resource].revision
    }
    if raised_only:
        await resources.raise_revisions(connection, raised_only)
    unwritten = {
        resource for resource in locked.placeholders if not locked.now[resource].just_written
    }
    if unwritten:
        await resources.drop_placeholders(connection, unwritten)
