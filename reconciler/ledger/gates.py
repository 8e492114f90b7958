"""Which causes a reaction acts on: `on`, `on_change`, `if_stale`, `becomes`, `when`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from reconciler.expressions import Expression
from reconciler.ledger.causes import Cause, names_before
from reconciler.ledger.globs import matches


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """One glob of `on` or `on_change`, with the senders that it speaks of."""

    senders: frozenset[str]
    glob: str  #: over event types, or over kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What stands before one effect, statement or handler."""

    facts: tuple[Trigger, ...] = ()
    changes: tuple[Trigger, ...] = ()
    becomes: Expression | None = None
    when: Expression | None = None
    if_stale: Literal["count", "skip"] | None = None

    def takes_fact(self, sender: str, event_type: str) -> bool:
        return any(sender in one.senders and matches([one.glob], event_type) for one in self.facts)

    def takes_change(self, sender: str, kind: str) -> bool:
        return any(sender in one.senders and matches([one.glob], kind) for one in self.changes)

    def speaks_of(self, sender: str) -> bool:
        return any(sender in one.senders for one in (*self.facts, *self.changes))

    def refusal(self, cause: Cause, names: Mapping[str, Any]) -> str | None:
        """
        Say why the reaction does not act on *cause*; None: it acts.

        ExpressionError where `becomes` or `when` come to neither true nor false.
        """
        if cause.stale and self.if_stale != "count":
            return 'the event is not newer than what we hold, and if_stale is not "count"'
        if self.becomes is not None and (refusal := self._did_not_become(cause, names)):
            return refusal
        if self.when is not None and not self.when.truth(names):
            return "`when` is not true"
        return None

    def _did_not_become(self, cause: Cause, names: Mapping[str, Any]) -> str | None:
        assert self.becomes is not None
        if cause.deletes:
            return "`becomes` never acts on a deletion"
        if not self.becomes.truth(names):
            return "`becomes` is not true"
        # levels, not edges: whatever lay between what we held and this was not seen, or was lost
        if names["previous"] is not None and self.becomes.truth(names_before(names)):
            return "`becomes` was true before"
        return None
