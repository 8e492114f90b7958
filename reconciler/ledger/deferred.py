"""Deferred facts: they count once a read that started after them has said how things are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler.errors import ReconcilerError
from reconciler.exact_json import Json
from reconciler.ledger import bodies, claims, fetches, history
from reconciler.ledger.alerts import set_aside
from reconciler.ledger.batch import Batch, Case
from reconciler.ledger.bodies import Body
from reconciler.ledger.causes import Cause
from reconciler.ledger.claim_rows import fact_row
from reconciler.ledger.claims import Telling
from reconciler.ledger.effects import Effect
from reconciler.ledger.event import Event, Origin, Outcome
from reconciler.ledger.fetches import Answer
from reconciler.ledger.guard import Held
from reconciler.ledger.guarding import raised, reacts
from reconciler.ledger.locked import Locked
from reconciler.ledger.rowsets import AnyRow, EventId, ResourceId, moment_text

AT_ONCE = 1000  #: deferred events of one transaction; what is left asks for another read

log = structlog.get_logger()


async def settle(connection: AsyncConnection, batch: Batch, locked: Locked) -> None:
    """
    Close the requests that the reads of *batch* answer, and let the facts count that waited.

    The requests come first: closing one waits for whoever is just renewing it, and only after
    that are all claims to be seen for which the request was made.
    """
    reads = {
        case.resource: case
        for case in batch.cases
        if case.event.origin is Origin.READ and case.decision is not None
    }
    if not reads:
        return
    answered = [answer_of(case) for case in reads.values() if settles(case)]
    await fetches.close(connection, answered)
    await fetches.put_off(
        connection, [answer_of(case) for case in reads.values() if not settles(case)]
    )
    telling = {resource: case for resource, case in reads.items() if settles(case) or writes(case)}
    if not telling:
        return
    answers = [telling_of(case, locked.now[resource]) for resource, case in telling.items()]
    due = await claims.deferred(connection, answers, limit=AT_ONCE)
    if due:
        await count(connection, batch, locked, telling, due)
    if len(due) == AT_ONCE:
        for case in telling.values():
            case.ask("more events wait for it")


async def count(
    connection: AsyncConnection,
    batch: Batch,
    locked: Locked,
    telling: Mapping[ResourceId, Case],
    due: Sequence[AnyRow],
) -> None:
    """Make the events of *due* claims again, and add their facts to the reads that answer them."""
    ids = [(row.sender, row.event_id) for row in due]
    kept = await bodies.load(connection, ids)
    twice = await told_twice(connection, due)
    for row in due:
        id_ = (row.sender, row.event_id)
        resource = resource_of(row)
        event = await made_again(connection, batch, row, kept.get(id_))
        if event is None:
            continue
        if id_ in twice:
            batch.outcomes[id_] = Outcome.STALE
            continue
        batch.outcomes[id_] = Outcome.APPLIED
        case = telling[resource]
        history.note_creation(batch, case, event)
        held = locked.now[resource]
        if held.version is not None and reacts(case.sender.facts_for(event.type), stale=False):
            held = locked.now[resource] = raised(held)
        case.causes.append(
            Cause(
                what="fact",
                event=with_state(event, held),
                revision=None if held.version is None else held.revision,
            )
        )


async def told_twice(connection: AsyncConnection, due: Sequence[AnyRow]) -> set[EventId]:
    """Which of *due* claims tell a fact that was told before under another id."""
    told: set[tuple[object, ...]] = set()
    twice: set[EventId] = set()
    rows = []
    for row in due:
        if row.version is None:
            continue
        fact = (resource_of(row), row.event_type, row.version, row.state_digest)
        if fact in told:
            twice.add((row.sender, row.event_id))
        told.add(fact)
        rows.append({**fact_row(row), "until": moment_text(row.processed_at)})
    own = [(row.sender, row.event_id) for row in due]
    return twice | await claims.told_before(connection, rows, own=own)


async def made_again(
    connection: AsyncConnection, batch: Batch, row: AnyRow, body: Body | None
) -> Event | None:
    """The event of a claim; None where it cannot be read any more, and went to quarantine."""
    facts = {"sender": row.sender, "event_id": row.event_id}
    if body is None or batch.rules.reread is None:
        log.error("ledger.deferred_body_missed", **facts)
        return None
    try:
        event = batch.rules.reread(row.sender, body.raw, body.headers, row.event_id)
    except ReconcilerError as error:
        fault = f"it waited for a read and cannot be read any more: {error}"
        id_ = (row.sender, row.event_id)
        await quarantine_deferred(connection, batch.rules.alerts, id_, body, fault)
        return None
    return event


async def quarantine_deferred(
    connection: AsyncConnection,
    alerts: Sequence[Effect],
    id_: EventId,
    body: Body | None,
    fault: str,
) -> None:
    """Move a deferred event to quarantine: without its claim, so that it can be replayed."""
    sender, event_id = id_
    log.warning("ledger.event_quarantined", sender=sender, event_id=event_id, fault=fault)
    kept = body or Body(raw=b"", headers={})
    await set_aside(connection, alerts, sender, kept.raw, kept.headers, fault, event_id)
    await claims.unclaim(connection, [id_])
    await bodies.drop(connection, [id_])


def settles(case: Case) -> bool:
    return case.decision is not None and case.decision.settles


def writes(case: Case) -> bool:
    return case.decision is not None and case.decision.written


def started(case: Case) -> datetime:
    """Since when what this read says was true at the sender, its lag taken off."""
    assert case.event.read_started is not None
    return case.event.read_started - case.sender.lag


def answer_of(case: Case) -> Answer:
    assert case.event.read_started is not None
    return Answer(
        resource=case.resource, started=case.event.read_started, version=case.event.version
    )


def telling_of(case: Case, held: Held) -> Telling:
    """What a read can say: about events that named no later version than is held now."""
    anything = held.version is None or held.deleted or case.rule.observed
    return Telling(
        resource=case.resource, before=started(case), up_to=None if anything else held.version
    )


def resource_of(row: AnyRow) -> ResourceId:
    return row.sender, row.kind, row.key


def with_state(event: Event, held: Held) -> Event:
    """The event with the state that was read for it; null where the resource is gone."""
    assert event.observation is not None
    state: Mapping[str, Json] | None = None if held.deleted else held.state
    version = held.version if event.observation.version is None else event.observation.version
    return replace(event, observation=replace(event.observation, state=state, version=version))
