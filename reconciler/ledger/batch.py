"""One batch on its way through the transaction: what each event has come to so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reconciler.exact_json import Json
from reconciler.ledger.baselines import Baseline
from reconciler.ledger.causes import Cause
from reconciler.ledger.claim_rows import claim_row
from reconciler.ledger.content import differences, merged
from reconciler.ledger.event import Change, Event, Observation, Origin, Outcome
from reconciler.ledger.fetches import Request
from reconciler.ledger.guard import Decision, DriftKind, Held, KindRule
from reconciler.ledger.kinds import KindRules
from reconciler.ledger.reactions import Asked
from reconciler.ledger.rowsets import EventId, ResourceId
from reconciler.ledger.rules import Rules, SenderRules

DELIVERED = frozenset({Origin.WEBHOOK, Origin.FEED, Origin.REPLAY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What applying one event came to, and what it set off."""

    event: Event
    outcome: Outcome
    change: Change | None = None
    previous: Mapping[str, Json] | None = None  #: the state held before a change
    effects: Sequence[Asked] = ()
    fault: str | None = None  #: why it is quarantined, or could not be applied
    retryable: bool = False  #: with a fault: sending it again may help (500)
    busy: bool = False  #: another transaction held it for too long: nothing is stored (503)
    other_body: bool = False  #: a duplicate whose body is not that of the claimed one
    drift: DriftKind | None = None  #: how the sender's description and ours differed
    held: Held | None = None  #: the row before; None: nothing was held, or it is about nothing
    now: Held | None = None  #: the row afterwards
    differences: Sequence[Mapping[str, Any]] = ()  #: `path`, `ours`, `theirs`


@dataclass(slots=True, kw_only=True)
class Case:
    """One event of a batch; filled in step by step."""

    event: Event
    sender: SenderRules
    outcome: Outcome = Outcome.APPLIED
    claimed: bool = False  #: by this transaction
    fault: str | None = None
    other_body: bool = False
    held: Held | None = None  #: before this event
    decision: Decision | None = None
    revision: int | None = None
    causes: list[Cause] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    effects: list[Asked] = field(default_factory=list)
    _claim: dict[str, Any] | None = None
    _rule: KindRule | None = None

    @property
    def id(self) -> EventId:
        return self.event.sender, self.event.event_id

    @property
    def delivered(self) -> bool:
        return self.event.origin in DELIVERED

    @property
    def resource(self) -> ResourceId:
        seen = self.observation
        return self.event.sender, seen.kind, seen.key

    @property
    def observation(self) -> Observation:
        assert self.event.observation is not None
        return self.event.observation

    @property
    def kind(self) -> KindRules:
        return self.sender.kinds[self.observation.kind]

    @property
    def rule(self) -> KindRule:
        if self._rule is None:
            kind = self.kind
            self._rule = KindRule(
                has_get=kind.has_get,
                gone_means_deleted=kind.gone_means_deleted,
                observed=kind.observed,
                declared=bool(kind.declared),
                lag=self.sender.lag,
            )
        return self._rule

    @property
    def claim(self) -> dict[str, Any]:
        """What the claim of a delivered event says; digesting its state once is enough."""
        if self._claim is None:
            self._claim = claim_row(self.event, outcome=self.outcome)
        return self._claim

    def ask(self, reason: str, *, at_least: int | None = None) -> None:
        """Request a read of the resource that this event is about."""
        self.requests.append(
            Request(resource=self.resource, reason=reason, at_least=at_least, lag=self.sender.lag)
        )

    def result(self) -> Result:
        decision = self.decision
        previous = decision.previous if decision else None
        return Result(
            event=self.event,
            outcome=self.outcome,
            change=decision.change if decision else None,
            previous=previous.state if previous else None,
            effects=tuple(self.effects),
            fault=self.fault,
            other_body=self.other_body,
            drift=decision.drift if decision else None,
            held=self.held if self.held and self.held.version is not None else None,
            now=decision.held if decision and decision.held.version is not None else None,
            differences=drift_of(self),
        )


def drift_of(case: Case) -> list[dict[str, Any]]:
    """What differed between our row and what a listed item or a read says."""
    if case.decision is None or case.decision.drift is None:
        return []
    before, after = case.held, case.decision.held
    if case.decision.drift is DriftKind.ABSENT:
        return [{"path": "deleted", "ours": False, "theirs": True}]
    found = differences(before.state if before else None, after.state)
    if before is not None and before.deleted != after.deleted:
        found.append({"path": "deleted", "ours": before.deleted, "theirs": after.deleted})
    return found


@dataclass(slots=True, kw_only=True)
class Batch:
    """All events of one transaction, in arrival order, and what they leave to do."""

    rules: Rules
    cases: list[Case]
    outcomes: dict[EventId, Outcome] = field(default_factory=dict)  #: to write over claims
    baselines: Mapping[tuple[str, str], Baseline] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: Rules, events: Sequence[Event]) -> "Batch":
        cases = [Case(event=event, sender=rules.senders[event.sender]) for event in events]
        return cls(rules=rules, cases=cases)


def told_change(case: Case) -> Event:
    """
    The event as reactions to its change see it.

    What is deleted has its last state, and over it what the event itself says: an answer 404 says
    nothing, and the user's statement still has to name the row.
    """
    decision = case.decision
    assert decision is not None
    state = decision.held.state
    if decision.held.deleted:
        state = merged(state, case.observation)
    return replace(
        case.event,
        observation=replace(case.observation, state=state, version=decision.held.version),
        previous=decision.previous.state if decision.previous else None,
        change=decision.change,
    )
