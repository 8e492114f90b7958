"""The first step: what was delivered is claimed, once, before anything follows from it."""

from collections.abc import Iterable, Sequence

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler.errors import ReconcilerError
from reconciler.ledger import bodies, claims, horizons, quarantine
from reconciler.ledger.alerts import set_aside
from reconciler.ledger.batch import Batch, Case
from reconciler.ledger.effects import Effect
from reconciler.ledger.event import OWN_PREFIXES, Origin, Outcome
from reconciler.ledger.guard import needs_read
from reconciler.ledger.rowsets import EventId

ROUNDS = 5  #: a claim that is there and gone again is asked for once more

log = structlog.get_logger()


async def claim_delivered(connection: AsyncConnection, batch: Batch) -> None:
    """Claim the delivered events of *batch*; what cannot be applied goes to quarantine."""
    pending = [case for case in batch.cases if case.delivered]
    for case in pending:
        expect(case)
    for _ in range(ROUNDS):
        if not pending:
            break
        pending = await claim_round(connection, pending)
    if pending:
        raise ClaimLostError
    claimed = [case for case in batch.cases if case.claimed]
    await bodies.keep(connection, [case.event for case in claimed])
    await close_copies(connection, claimed)
    for case in batch.cases:
        if case.outcome is Outcome.QUARANTINED:
            await keep(connection, batch.rules.alerts, case)


def expect(case: Case) -> None:
    """Decide what depends on nothing but the rules: ignored, deferred, beyond use."""
    event = case.event
    if event.event_id.startswith(OWN_PREFIXES):
        case.fault = "its id begins like one of our own (correction:, read:)"
    elif not case.sender.known(event.type):
        case.outcome = Outcome.IGNORED
    elif event.observation is not None and (reason := needs_read(event, case.rule)):
        if case.kind.has_get:
            case.outcome = Outcome.DEFERRED
        else:
            case.fault = f"{reason}, and {event.sender}:{case.kind.kind} has no `get` to ask"


async def claim_round(connection: AsyncConnection, pending: Sequence[Case]) -> list[Case]:
    """Settle the first case of each id; return those that have to be looked at again."""
    first: dict[EventId, Case] = {}
    twins = [case for case in pending if first.setdefault(case.id, case) is not case]
    wanted = {id_: case for id_, case in first.items() if case.fault is None}
    taken: set[EventId] = set()
    if wanted:
        taken = await claims.claim(connection, [wanted[id_].claim for id_ in sorted(wanted)])
    beyond = await beyond_horizon(connection, [wanted[id_] for id_ in taken])
    for case in beyond:
        case.fault = "it happened before the oldest claim that we remember: it may have counted"
    taken -= {case.id for case in beyond}

    claimed_before: dict[EventId, str] = {}
    if others := first.keys() - taken - {case.id for case in beyond}:
        claimed_before = await claims.digests(connection, others)
    again: list[Case] = []
    for id_, case in first.items():
        if id_ in taken:
            case.claimed = True
        elif id_ in claimed_before:
            duplicate(case, claimed_digest=claimed_before[id_])
        elif case.fault is not None:
            case.outcome = Outcome.QUARANTINED
        else:
            again.append(case)
    for case in twins:
        if first[case.id].claimed:
            duplicate(case, claimed_digest=first[case.id].claim["body_digest"])
        else:
            again.append(case)
    return again


async def beyond_horizon(connection: AsyncConnection, taken: Sequence[Case]) -> list[Case]:
    """
    Take back the claims of events that may have counted before a purge; return them.

    Asked after the claim, in a statement of its own: a purge that our claim had to wait for has
    committed its horizon by now.
    """
    dated = [case for case in taken if case.event.occurred_at and not case.event.by_person]
    if not dated:
        return []
    found = await horizons.of_senders(connection, {case.event.sender for case in dated})
    beyond = [
        case
        for case in dated
        if (horizon := found.get(case.event.sender))
        and case.event.occurred_at
        and case.event.occurred_at < horizon
    ]
    await claims.unclaim(connection, [case.id for case in beyond])
    return beyond


def duplicate(case: Case, *, claimed_digest: str) -> None:
    """The same id again; with another body it leaves a trace, and a read where there is one."""
    case.outcome, case.fault = Outcome.DUPLICATE, None
    digest = case.claim["body_digest"]
    if digest == claimed_digest:
        return
    case.other_body = True
    log.warning(
        "ledger.other_body_seen",
        sender=case.event.sender,
        event_id=case.event.event_id,
        claimed_digest=claimed_digest,
        digest=digest,
    )
    if case.event.observation is not None and case.kind.has_get:
        case.ask("same id, other body")


async def close_copies(connection: AsyncConnection, claimed: Iterable[Case]) -> None:
    """What could be claimed at last is no longer open in quarantine."""
    by_state: dict[str, list[EventId]] = {}
    for case in claimed:
        state = "replayed" if case.event.origin is Origin.REPLAY else "superseded"
        by_state.setdefault(state, []).append(case.id)
    for state, ids in by_state.items():
        await quarantine.close(connection, ids, state=state)


async def keep(connection: AsyncConnection, alerts: Sequence[Effect], case: Case) -> None:
    """Keep a case whole, with its fault, to be replayed."""
    assert case.fault
    event = case.event
    log.warning(
        "ledger.event_quarantined", sender=event.sender, event_id=event.event_id, fault=case.fault
    )
    await set_aside(
        connection, alerts, event.sender, event.raw, event.headers, case.fault, event.event_id
    )


class ClaimLostError(ReconcilerError):
    """A claim kept appearing and vanishing under us."""

    def __init__(self) -> None:
        super().__init__("a claim was made and taken back by others again and again")
