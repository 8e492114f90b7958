"""From settings to reactions: every expression compiled, every problem collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from reconciler.errors import Problem, ReconcilerError
from reconciler.expressions import (
    BECOMES_NAMES,
    EFFECT_NAMES,
    ENVELOPE_NAMES,
    Expression,
    Template,
    compile_expression,
    compile_json,
    compile_path,
    compile_template,
)
from reconciler.ledger.calls import check_header_name, check_headers, split_request
from reconciler.ledger.causes import NAMES
from reconciler.ledger.effects import Effect, Target
from reconciler.ledger.gates import Gate, Trigger
from reconciler.ledger.handlers import Handle, Handler
from reconciler.ledger.keys import Source
from reconciler.ledger.kinds import is_dated
from reconciler.ledger.sql_text import read_statement
from reconciler.ledger.triggers import Reacting, nearest, read_trigger
from reconciler.ledger.user_sql import ApplyStep
from reconciler.settings.documents import dotted
from reconciler.settings.models import ApplySettings, EffectSettings, Settings

P = ParamSpec("P")
T = TypeVar("T")


def targets_of(settings: Settings) -> dict[str, Target]:
    return {
        name: Target(
            name=name,
            ordered=destination.ordered,
            idempotent=destination.idempotent,
            key_header=destination.key_header,
            key_max_length=destination.key_max_length,
            key_format=destination.key_format,
        )
        for name, destination in settings.destinations.items()
    }


def compile_effects(
    settings: Settings, targets: Mapping[str, Target], problems: list[Problem]
) -> tuple[Effect, ...]:
    """Compile the effects, in file order; those with problems are left out."""
    effects = []
    for position, (name, effect) in enumerate(settings.effects.items()):
        key = f"effects.{name}"
        if effect.destination not in targets:
            message = f"there is no destination {effect.destination!r}" + nearest(
                effect.destination, targets
            )
            problems.append(Problem(key=f"{key}.destination", message=message))
            continue
        compiled = compile_effect(
            Compiler(settings=settings, problems=problems, key=key),
            name,
            effect,
            position=position,
            target=targets[effect.destination],
        )
        effects.append(compiled)
    return tuple(effect for effect in effects if effect is not None)


def compile_effect(
    compiler: Compiler, name: str, effect: EffectSettings, *, position: int, target: Target
) -> Effect | None:
    if effect.request is None:
        return None  # the settings have said so
    attempt = compiler.attempt
    gate = compiler.gate(effect, sender=None, names=EFFECT_NAMES)
    request = attempt("request", split_request, effect.request)
    path = request and attempt("request", compile_path, request[1], names=EFFECT_NAMES)
    for header in effect.headers:
        attempt(
            dotted(("headers", header)), check_header_name, header, key_header=target.key_header
        )
    headers = {
        header: attempt(dotted(("headers", header)), compile_template, value, names=EFFECT_NAMES)
        for header, value in effect.headers.items()
    }
    for header, template in headers.items():
        if template is not None:
            attempt(dotted(("headers", header)), check_static_header, header, template)
    json = attempt("json", compile_json, effect.json_, names=EFFECT_NAMES)
    said = effect.idempotency_key
    key = None
    if said is not None:
        key = attempt("idempotency_key", compile_template, said, names=EFFECT_NAMES)
    if request is None or path is None or json is None or (said and key is None):
        return None
    return Effect(
        name=name,
        position=position,
        gate=gate,
        destination=target,
        idempotent=target.idempotent if effect.idempotent is None else effect.idempotent,
        method=request[0],
        path=path,
        headers={header: value for header, value in headers.items() if value is not None},
        json=None if effect.json_ is None else json,
        key=key,
        lasting=key is not None and not key.names & {"version", "event_id"},
        max_age=effect.max_age,
        dated=dated_kinds(compiler.settings),
    )


def dated_kinds(settings: Settings) -> frozenset[Source]:
    return frozenset(
        (sender, kind)
        for sender, its in settings.senders.items()
        for kind, resource in its.resources.items()
        if is_dated(resource)
    )


def check_static_header(name: str, template: Template) -> None:
    """Refuse at the start what no event could make right."""
    if all(isinstance(piece, str) for piece in template.pieces):
        check_headers({name: template.source})


def compile_apply(
    settings: Settings, sender: str, problems: list[Problem]
) -> tuple[ApplyStep, ...]:
    """Compile the `apply` statements of *sender*, in file order."""
    steps = []
    for number, step in enumerate(settings.senders[sender].apply):
        key = f"senders.{sender}.apply[{number}]"
        compiler = Compiler(settings=settings, problems=problems, key=key)
        steps.append(compile_step(compiler, step, sender=sender))
    return tuple(step for step in steps if step is not None)


def compile_step(compiler: Compiler, step: ApplySettings, *, sender: str) -> ApplyStep | None:
    gate = compiler.gate(step, sender=sender, names=NAMES)
    statement = compiler.attempt("sql", read_statement, step.sql)
    params = {
        name: compiler.attempt(dotted(("params", name)), compile_expression, value, names=NAMES)
        for name, value in step.params.items()
    }
    if statement is None:
        return None
    for name in sorted(set(statement.names) - set(params)):
        compiler.complain("params", f":{name} stands in the SQL and is not among the params")
    for name in sorted(set(params) - set(statement.names)):
        compiler.complain(
            dotted(("params", name)), f"the SQL has no :{name}" + nearest(name, statement.names)
        )
    return ApplyStep(
        where=compiler.key,
        gate=gate,
        statement=statement,
        params={name: value for name, value in params.items() if value is not None},
        expect_rows=step.expect_rows,
    )


def compile_handlers(
    settings: Settings, handlers: Sequence[Handler], problems: list[Problem]
) -> tuple[HandlerStep, ...]:
    return tuple(
        HandlerStep(
            where=handler.where,
            gate=Compiler(settings=settings, problems=problems, key=handler.where).gate(
                handler, sender=handler.sender, names=NAMES
            ),
            function=handler.function,
        )
        for handler in handlers
    )


def compile_also_read(
    settings: Settings, sender: str, problems: list[Problem]
) -> tuple[AlsoRead, ...]:
    reads = []
    for number, read in enumerate(settings.senders[sender].also_read):
        where = f"senders.{sender}.also_read[{number}]"
        compiler = Compiler(settings=settings, problems=problems, key=where)
        key = compiler.attempt(
            "key", compile_expression, read.key, names=ENVELOPE_NAMES, root="body"
        )
        if key is not None:
            reads.append(AlsoRead(on=read.on, kind=read.kind, key=key))
    return tuple(reads)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStep:
    """One Python handler, ready to run."""

    where: str  #: `handlers.shop_rules.record_refund`
    gate: Gate
    function: Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class AlsoRead:
    """One `also_read`: an event of these types mentions a resource that is then read."""

    on: tuple[str, ...]
    kind: str
    key: Expression


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
