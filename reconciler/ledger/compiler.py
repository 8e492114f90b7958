"""Compiling one part of the settings after another, and writing down all that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from reconciler.errors import Problem, ReconcilerError
from reconciler.expressions import (
    BECOMES_NAMES,
    EFFECT_NAMES,
    Expression,
    Template,
    compile_expression,
    compile_template,
)
from reconciler.ledger.gates import Gate, Trigger
from reconciler.ledger.triggers import Reacting, read_trigger
from reconciler.settings.documents import dotted
from reconciler.settings.models import Settings

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """Compiles what stands below one key of the settings, and writes down what is wrong."""

    settings: Settings
    problems: list[Problem]
    key: str

    def attempt(self, key: str, make: Callable[P, T], *args: P.args, **named: P.kwargs) -> T | None:
        """Call *make*; what it refuses is a problem at *key*, below ours, and gives None."""
        try:
            return make(*args, **named)
        except ReconcilerError as error:
            self.complain(key, str(error))
            return None

    def templates(self, key: str, given: Mapping[str, str]) -> dict[str, Template]:
        """Compile each text of a table; what is wrong is a problem, and left out."""
        compiled = {
            name: self.attempt(dotted((key, name)), compile_template, text, names=EFFECT_NAMES)
            for name, text in given.items()
        }
        return {name: template for name, template in compiled.items() if template is not None}

    def complain(self, key: str, message: str) -> None:
        self.problems.append(Problem(key=f"{self.key}.{key}", message=message))

    def triggers(
        self, word: str, globs: Sequence[str], *, sender: str | None
    ) -> tuple[Trigger, ...]:
        found = [
            self.attempt(
                f"{word}[{number}]",
                read_trigger,
                self.settings,
                glob,
                sender=sender,
                kinds=word == "on_change",
            )
            for number, glob in enumerate(globs)
        ]
        return tuple(one for one in found if one is not None)

    def gate(self, reaction: Reacting, *, sender: str | None, names: frozenset[str]) -> Gate:
        facts = self.triggers("on", reaction.on, sender=sender)
        changes = self.triggers("on_change", reaction.on_change, sender=sender)
        return Gate(
            facts=() if changes else facts,  # that both are said is a problem of its own
            changes=changes,
            becomes=self.condition("becomes", reaction.becomes, names=BECOMES_NAMES),
            when=self.condition("when", reaction.when, names=names),
            if_stale=reaction.if_stale,
        )

    def condition(
        self, word: str, source: str | None, *, names: frozenset[str]
    ) -> Expression | None:
        if source is None:
            return None
        return self.attempt(word, compile_expression, source, names=names)
