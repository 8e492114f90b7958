"""History (P20): which changes are old news, because we have only just begun to look."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler.ledger import baselines
from reconciler.ledger.baselines import Baseline
from reconciler.ledger.batch import Batch, Case
from reconciler.ledger.event import Event
from reconciler.ledger.kinds import KindRules
from reconciler.ledger.versions import from_datetime

BASELINE = "baseline"  #: why an effect of the past is recorded and not called
CLOCKS = timedelta(seconds=60)  #: how far the sender's clock may be behind the database's

Kind = tuple[str, str]


async def load(connection: AsyncConnection, batch: Batch) -> Mapping[Kind, Baseline]:
    """The baselines that this batch needs: of what is seen first, unless it fires anyhow."""
    kinds = {
        (case.event.sender, case.kind.kind)
        for case in batch.cases
        if is_first_sight(case) and not is_over(case.kind, None)
    }
    return await baselines.states(connection, kinds) if kinds else {}


def is_first_sight(case: Case) -> bool:
    """Whether this event changes what we never held."""
    decision = case.decision
    return decision is not None and decision.change is not None and decision.previous is None


def suppressed(case: Case, known: Mapping[Kind, Baseline]) -> str | None:
    """Why the effects of a change are not called; None: it is news."""
    if not is_first_sight(case) or case.event.by_person:
        return None
    baseline = known.get((case.event.sender, case.kind.kind))
    if is_over(case.kind, baseline) or was_born_later(case.event, case.kind, baseline):
        return None
    return BASELINE


def note_creation(batch: Batch, case: Case, event: Event) -> None:
    """
    Let a read's first sight of a resource be news after all, if *event* tells of its creation.

    The event had to wait for that read; what it proves is proved for the change that was found.
    """
    baseline = batch.baselines.get((event.sender, case.kind.kind))
    if was_born_later(event, case.kind, baseline):
        case.causes = [
            replace(cause, suppressed=None) if cause.what == "change" else cause
            for cause in case.causes
        ]


def is_over(kind: KindRules, baseline: Baseline | None) -> bool:
    """Whether what we never held is news by now."""
    if not kind.has_list:
        return kind.first_seen == "fire"
    return baseline is not None and baseline.completed_at is not None


def was_born_later(event: Event, kind: KindRules, baseline: Baseline | None) -> bool:
    """
    Whether the resource is known to have been created after we began to follow its kind.

    That it changed since proves nothing. An event that says "created" proves it only if it did
    not itself happen before: senders repeat old events on request.
    """
    if baseline is None or event.observation is None:
        return False
    birthday = baseline.born_at - CLOCKS
    if event.observation.created_at is not None:
        return event.observation.created_at > from_datetime(birthday)
    if not kind.is_creation(event.type):
        return False
    return event.occurred_at is None or event.occurred_at > birthday
