"""What the configuration asks of the ledger, compiled: kinds, and what reacts to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from reconciler.errors import ConfigError, Problem
from reconciler.ledger.compiling import (
    AlsoRead,
    HandlerStep,
    compile_also_read,
    compile_apply,
    compile_effects,
    compile_handlers,
)
from reconciler.ledger.effects import Effect, Target
from reconciler.ledger.event import Event
from reconciler.ledger.field_questions import field_questions
from reconciler.ledger.gates import Gate
from reconciler.ledger.globs import matches
from reconciler.ledger.handlers import Handler
from reconciler.ledger.key_questions import key_questions
from reconciler.ledger.kinds import KindRules, kind_rules
from reconciler.ledger.lane_questions import lane_questions
from reconciler.ledger.projection import KindReader
from reconciler.ledger.questions import questions
from reconciler.ledger.targets import targets_of
from reconciler.ledger.triggers import OURSELVES
from reconciler.ledger.user_sql import ApplyStep
from reconciler.settings.models import Settings

Readers = Mapping[str, Mapping[str, KindReader]]  #: by sender, then by kind
Reread = Callable[[str, bytes, Mapping[str, str], str], Event]

KEPT_TYPES = 1000  #: whose rules are remembered, of each sender
KEPT_LENGTH = 256  #: characters of a type that is remembered


def compile_rules(
    settings: Settings,
    readers: Readers,
    handlers: Sequence[Handler] = (),
    *,
    reread: Reread | None = None,
) -> Rules:
    """
    Compile everything that reacts to facts and changes.

    *reread* makes an event again from (sender, raw, headers, event id), for facts whose state had
    to be fetched first. Raises ConfigError with everything that is wrong, and with every question
    that the configuration must not leave open.
    """
    problems: list[Problem] = []
    targets = targets_of(settings)
    effects = compile_effects(settings, targets, problems)
    steps = compile_handlers(settings, handlers, problems)
    applies = {name: compile_apply(settings, name, problems) for name in settings.senders}
    also_reads = {name: compile_also_read(settings, name, problems) for name in settings.senders}
    problems += questions(settings, handlers)
    problems += key_questions(settings, effects)
    problems += lane_questions(settings, effects)
    every_step = [step for of_sender in applies.values() for step in of_sender]
    problems += field_questions(settings, effects, every_step, steps)
    if problems:
        raise ConfigError(problems=problems)
    senders = {
        name: SenderRules(
            name=name,
            kinds={
                kind: kind_rules(kind, resource, readers[name][kind])
                for kind, resource in sender.resources.items()
            },
            applies=applies[name],
            handlers=tuple(step for step in steps if step.gate.speaks_of(name)),
            effects=tuple(effect for effect in effects if effect.gate.speaks_of(name)),
            also_reads=also_reads[name],
            lag=sender.lag,
            max_failures=sender.max_failures,
        )
        for name, sender in settings.senders.items()
    }
    return Rules(
        senders=senders,
        targets=targets,
        effects=frozenset(settings.effects),
        alerts=tuple(effect for effect in effects if effect.gate.speaks_of(OURSELVES)),
        delivered={effect.name: effect.delivered for effect in effects if effect.delivered},
        search_path=settings.database.search_path,
        reread=reread,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reactions:
    """What one fact or change sets off, each part in file order. Empty is false."""

    applies: tuple[ApplyStep, ...]
    handlers: tuple[HandlerStep, ...]
    effects: tuple[Effect, ...]

    def __bool__(self) -> bool:
        return bool(self.applies or self.handlers or self.effects)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRules:
    """What the type of an event decides."""

    kind: KindRules | None  #: that it is about; at most one
    facts: Reactions
    also_reads: tuple[AlsoRead, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderRules:
    """What we follow of one sender, and what reacts to it."""

    name: str
    kinds: Mapping[str, KindRules]
    applies: tuple[ApplyStep, ...]
    handlers: tuple[HandlerStep, ...]
    effects: tuple[Effect, ...]
    also_reads: tuple[AlsoRead, ...]
    lag: timedelta  #: how far its `get` may be behind
    max_failures: int

    _by_type: dict[str, TypeRules] = field(default_factory=dict, repr=False, compare=False)
    _by_kind: dict[str, Reactions] = field(default_factory=dict, repr=False, compare=False)

    def type_rules(self, event_type: str) -> TypeRules:
        """All that the type of an event decides; kept, for a sender has few types."""
        found = self._by_type.get(event_type)
        if found is None:
            found = self._rules_of(event_type)
            if len(event_type) <= KEPT_LENGTH:
                if len(self._by_type) >= KEPT_TYPES:
                    self._by_type.clear()
                self._by_type[event_type] = found
        return found

    def facts_for(self, event_type: str) -> Reactions:
        """What the fact that an event of this type happened sets off."""
        return self.type_rules(event_type).facts

    def changes_for(self, kind: str) -> Reactions:
        """What a newer state of a resource of this kind sets off."""
        if kind not in self._by_kind:
            self._by_kind[kind] = self._reactions(lambda gate: gate.takes_change(self.name, kind))
        return self._by_kind[kind]

    def also_read_for(self, event_type: str) -> tuple[AlsoRead, ...]:
        """The reads of other resources that an event of this type asks for."""
        return self.type_rules(event_type).also_reads

    def known(self, event_type: str) -> bool:
        """Whether anything names this type; events of other types are `ignored`."""
        rules = self.type_rules(event_type)
        return bool(rules.kind or rules.facts or rules.also_reads)

    def observed(self, kind: str) -> bool:
        return self.kinds[kind].observed

    def _rules_of(self, event_type: str) -> TypeRules:
        kinds = (kind for kind in self.kinds.values() if matches(kind.about, event_type))
        return TypeRules(
            kind=next(kinds, None),
            facts=self._reactions(lambda gate: gate.takes_fact(self.name, event_type)),
            also_reads=tuple(one for one in self.also_reads if matches(one.on, event_type)),
        )

    def _reactions(self, takes: Callable[[Gate], bool]) -> Reactions:
        return Reactions(
            applies=tuple(step for step in self.applies if takes(step.gate)),
            handlers=tuple(step for step in self.handlers if takes(step.gate)),
            effects=tuple(effect for effect in self.effects if takes(effect.gate)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The whole of it; shared by every transaction, changed by none."""

    senders: Mapping[str, SenderRules]
    targets: Mapping[str, Target]  #: where handlers may send to
    effects: frozenset[str]  #: configured names, which handlers must not use
    alerts: tuple[Effect, ...]  #: that tell of what we ourselves meet
    delivered: Mapping[str, ApplyStep]  #: what keeps an answer, by effect
    search_path: str | None
    reread: Reread | None
