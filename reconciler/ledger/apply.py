"""THE transaction: the only place where an event takes effect."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import uuid7
from reconciler import faults
from reconciler.expressions import CaseInsensitive, ExpressionError
from reconciler.ledger import claims, corrections, deferred, fetches, guarding, history
from reconciler.ledger.batch import Batch, Case, Result, drift_of, told_change
from reconciler.ledger.causes import Cause
from reconciler.ledger.claim_rows import claim_row
from reconciler.ledger.claiming import claim_delivered
from reconciler.ledger.corrections import Correction
from reconciler.ledger.event import Event, Origin, Outcome
from reconciler.ledger.fetches import Request
from reconciler.ledger.reactions import Explained, react
from reconciler.ledger.rules import Rules
from reconciler.ledger.versions import from_datetime

log = structlog.get_logger()


async def apply(
    connection: AsyncConnection,
    rules: Rules,
    events: Sequence[Event],
    *,
    explain: list[Explained] | None = None,
) -> list[Result]:
    """
    Claim *events*, write what is newer, and do what follows from it; one result an event.

    The caller owns the transaction: until it commits, nothing has happened. The number of
    statements does not depend on how many events there are, but for the user's own. *explain*
    collects what ran and what did not, and why.

    Raises UserStepError where a statement or handler of the user's fails, and whatever the
    database says to content that it cannot hold: the whole batch is to be rolled back then, and
    `commit` finds the guilty one.
    """
    batch = Batch.of(rules, events)
    await claim_delivered(connection, batch)
    faults.point("after-claim")

    locked = await guarding.guard(connection, batch)
    await add_causes(connection, batch)
    await deferred.settle(connection, batch, locked)
    await guarding.write(connection, locked)
    await claim_found(connection, batch)
    faults.point("after-guard")

    await run_reactions(connection, batch, explain=explain)
    faults.point("after-react")

    await note_corrections(connection, batch)
    await request_reads(connection, batch)
    await claims.set_outcomes(connection, batch.outcomes)
    return [case.result() for case in batch.cases]


async def add_causes(connection: AsyncConnection, batch: Batch) -> None:
    """List what each event brings: its change, then its fact."""
    batch.baselines = await history.load(connection, batch)
    for case in batch.cases:
        if case.decision is not None:
            case.causes += causes_of(batch, case)
        elif case.claimed and case.outcome is Outcome.APPLIED:
            case.causes.append(Cause(what="fact", event=case.event))


def causes_of(batch: Batch, case: Case) -> Iterator[Cause]:
    """The change and the fact of an event about a resource, as far as either is there."""
    decision = case.decision
    assert decision is not None
    if decision.written:
        event = told_change(case)
    else:
        event = replace(case.event, current=decision.held.state)
    if decision.change is not None:
        old = history.suppressed(case, batch.baselines)
        yield Cause(what="change", event=event, revision=case.revision, suppressed=old)
    if decision.fact:
        yield Cause(what="fact", event=event, revision=case.revision, stale=decision.stale)


async def claim_found(connection: AsyncConnection, batch: Batch) -> None:
    """
    Claim what the reconciler found out and wrote, under the locks of the rows.

    What turned out not to be newer leaves no claim behind, so it blocks nothing later. An id that
    is taken all the same (a row was removed by hand, say) is told apart: the guard has let this
    write through, and it is the guard that makes it happen once.
    """
    found = [case for case in batch.cases if not case.delivered and is_written(case)]
    if not found:
        return
    for case in found:
        name(case, own_id(case))
    rows = {case.id: claim_row(case.event, outcome=Outcome.APPLIED) for case in found}
    taken = await claims.claim(connection, [rows[id_] for id_ in sorted(rows)])
    again = [case for case in found if case.id not in taken]
    for case in again:
        name(case, f"{own_id(case)}:{uuid7()}")
    if again:
        rows = {case.id: claim_row(case.event, outcome=Outcome.APPLIED) for case in again}
        await claims.claim(connection, [rows[id_] for id_ in sorted(rows)])
    for case in found:
        case.claimed = True


def is_written(case: Case) -> bool:
    return case.decision is not None and case.decision.written


def own_id(case: Case) -> str:
    """The id of a correction: of a listed item by what it says, of a read by when it started."""
    decision, event = case.decision, case.event
    assert decision is not None
    thing = f"{case.kind.kind}:{case.observation.key}:{decision.held.version}"
    if event.origin is Origin.CORRECTION:
        return f"correction:{thing}"
    assert event.read_started is not None
    return f"read:{thing}:{from_datetime(event.read_started)}"


def name(case: Case, event_id: str) -> None:
    """Give a correction its id, and the version that it was written at."""
    assert case.decision is not None
    seen = replace(case.observation, version=case.decision.held.version)
    case.event = replace(case.event, event_id=event_id, observation=seen)
    case.causes = [
        replace(cause, event=replace(cause.event, event_id=event_id))
        if cause.what == "change"
        else cause
        for cause in case.causes
    ]


async def run_reactions(
    connection: AsyncConnection, batch: Batch, *, explain: list[Explained] | None
) -> None:
    """Let everything react, in arrival order, and hand the calls back to their events."""
    causes = [(case, cause) for case in batch.cases for cause in case.causes]
    if not causes:
        return
    asked = await react(connection, batch.rules, [cause for _, cause in causes], explain=explain)
    for (case, _), calls in zip(causes, asked, strict=True):
        case.effects.extend(calls)


async def request_reads(connection: AsyncConnection, batch: Batch) -> None:
    """Ask for every read that some event of the batch made necessary."""
    for case in batch.cases:
        if case.claimed and case.delivered:
            ask_for_mentioned(case)
    await fetches.request(connection, [wish for case in batch.cases for wish in case.requests])


async def note_corrections(connection: AsyncConnection, batch: Batch) -> None:
    """Write down what was put right, and which stood in for an event that came at last."""
    made = []
    for case in batch.cases:
        decision = case.decision
        if decision is None or decision.drift is None:
            continue
        made.append(
            Correction(
                resource=case.resource,
                drift=decision.drift,
                old_version=case.held.version if case.held else None,
                new_version=decision.held.version,
                differences=drift_of(case),
                run_id=case.event.run_id,
                event_id=case.event.event_id,
            )
        )
    await corrections.record(connection, made)
    late = [
        (case.resource, case.event.version)
        for case in batch.cases
        if case.outcome is Outcome.LATE and case.event.version is not None
    ]
    await corrections.mark_late(connection, late)


def ask_for_mentioned(case: Case) -> None:
    """Request the reads of other resources that a claimed event mentions."""
    event = case.event
    for read in case.sender.also_read_for(event.type):
        try:
            key = read.key.value({"body": event.body, "headers": CaseInsensitive(event.headers)})
        except ExpressionError as error:
            log.warning(
                "ledger.also_read_failed",
                sender=event.sender,
                event_id=event.event_id,
                kind=read.kind,
                fault=str(error),
            )
            continue
        if isinstance(key, int | str) and not isinstance(key, bool) and key != "":
            case.requests.append(
                Request(
                    resource=(event.sender, read.kind, str(key)),
                    reason=f"mentioned by {event.event_id}",
                    lag=case.sender.lag,
                )
            )
