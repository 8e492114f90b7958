"""From settings to reactions: every expression compiled, every problem collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reconciler.errors import Problem
from reconciler.expressions import (
    DELIVERED_NAMES,
    EFFECT_NAMES,
    ENVELOPE_NAMES,
    Expression,
    Template,
    compile_expression,
    compile_json,
    compile_path,
    compile_template,
)
from reconciler.ledger.calls import (
    Content,
    check_content,
    check_header_name,
    check_headers,
    split_request,
)
from reconciler.ledger.causes import NAMES
from reconciler.ledger.compiler import Compiler
from reconciler.ledger.effects import Effect, Target
from reconciler.ledger.gates import Gate
from reconciler.ledger.handlers import Handle, Handler
from reconciler.ledger.keys import Source
from reconciler.ledger.kinds import is_dated
from reconciler.ledger.mail_compiling import compile_mail
from reconciler.ledger.sql_text import read_statement
from reconciler.ledger.triggers import nearest
from reconciler.ledger.user_sql import ApplyStep
from reconciler.settings.documents import dotted
from reconciler.settings.models import (
    ApplySettings,
    EffectSettings,
    Settings,
)


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
    common = what_all_have(compiler, name, effect, position=position, target=target)
    if target.mail is not None:
        mail = compile_mail(compiler, effect, target.mail)
        return None if mail is None or common is None else Effect(**common, mail=mail)
    if effect.request is None:
        return None  # the settings have said so
    attempt = compiler.attempt
    request = attempt("request", split_request, effect.request)
    path = request and attempt("request", compile_path, request[1], names=EFFECT_NAMES)
    for header in effect.headers:
        attempt(
            dotted(("headers", header)), check_header_name, header, key_header=target.key_header
        )
    headers = compiler.templates("headers", effect.headers)
    for header, template in headers.items():
        attempt(dotted(("headers", header)), check_static_header, header, template)
    json = attempt("json", compile_json, effect.json_, names=EFFECT_NAMES)
    form = attempt("form", compile_json, effect.form, names=EFFECT_NAMES)
    query = attempt("query", compile_json, effect.query, names=EFFECT_NAMES)
    said = Content(
        json=effect.json_, has_json=effect.json_ is not None, form=effect.form, query=effect.query
    )
    attempt("request", check_content, said, key_field=target.key_field)
    if request is None or path is None or common is None or None in (json, form, query):
        return None
    return Effect(
        **common,
        method=request[0],
        path=path,
        headers=headers,
        json=None if effect.json_ is None else json,
        form=None if effect.form is None else form,
        query=None if not effect.query else query,
    )


def what_all_have(
    compiler: Compiler, name: str, effect: EffectSettings, *, position: int, target: Target
) -> dict[str, Any] | None:
    """What an effect has wherever it goes; None where its key is wrong."""
    said = effect.idempotency_key
    key = None
    if said is not None:
        key = compiler.attempt("idempotency_key", compile_template, said, names=EFFECT_NAMES)
    lane = None
    if effect.lane is not None:
        lane = compiler.attempt("lane", compile_template, effect.lane, names=EFFECT_NAMES)
    gate = compiler.gate(effect, sender=None, names=EFFECT_NAMES)
    if (said and key is None) or (effect.lane and lane is None):
        return None
    return {
        "name": name,
        "position": position,
        "gate": gate,
        "destination": target,
        "idempotent": may_be_repeated(compiler.settings, effect),
        "key": key,
        "lasting": key is not None and not key.names & {"version", "event_id"},
        "lane": lane,
        "hold_after_dead": holds_after_dead(effect, target),
        "supersedes": effect.supersedes,
        "max_age": effect.max_age,
        "delivered": compile_delivered(compiler, effect),
        "expires": effect.expires,
        "dated": dated_kinds(compiler.settings),
    }


def holds_after_dead(effect: EffectSettings, target: Target) -> bool | None:
    """
    Whether a dead one holds its successors; None: by what its destination says then.

    In a lane calls wait for those of other destinations too, which are asked for their word now.
    """
    if effect.after_dead is not None:
        return effect.after_dead == "hold"
    return None if effect.lane is None else target.hold_after_dead


def may_be_repeated(settings: Settings, effect: EffectSettings) -> bool:
    """Whether a call may go out again: the destination knows it, or the user says so anyway."""
    destination = settings.destinations[effect.destination]
    if (effect.on_uncertain or destination.on_uncertain) == "retry":
        return True
    return destination.idempotent if effect.idempotent is None else effect.idempotent


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
    return compile_statement(
        compiler, sql=step.sql, params=step.params, names=NAMES, gate=gate, rows=step.expect_rows
    )


def compile_delivered(compiler: Compiler, effect: EffectSettings) -> ApplyStep | None:
    """Compile the statement that keeps what was answered."""
    if effect.delivered is None:
        return None
    below = Compiler(
        settings=compiler.settings, problems=compiler.problems, key=f"{compiler.key}.delivered"
    )
    said = effect.delivered
    return compile_statement(below, sql=said.sql, params=said.params, names=DELIVERED_NAMES)


def compile_statement(  # noqa: PLR0913 - what a statement consists of
    compiler: Compiler,
    *,
    sql: str,
    params: Mapping[str, str],
    names: frozenset[str],
    gate: Gate | None = None,
    rows: int | None = None,
) -> ApplyStep | None:
    statement = compiler.attempt("sql", read_statement, sql)
    values = {
        name: compiler.attempt(dotted(("params", name)), compile_expression, value, names=names)
        for name, value in params.items()
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
        gate=gate or Gate(),
        statement=statement,
        params={name: value for name, value in values.items() if value is not None},
        expect_rows=rows,
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
