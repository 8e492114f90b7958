"""Whether `state.x` names a field that the kind declares: else it is null for ever."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reconciler.errors import Problem
from reconciler.expressions import nearest
from reconciler.ledger.compiling import HandlerStep
from reconciler.ledger.effects import Effect
from reconciler.ledger.gates import Gate
from reconciler.ledger.globs import can_meet
from reconciler.ledger.kinds import about
from reconciler.ledger.triggers import OURSELVES, sources_of
from reconciler.ledger.user_sql import ApplyStep
from reconciler.settings.documents import dotted
from reconciler.settings.models import ResourceSettings, Settings

STATES = ("state", "previous", "current")

Reading = tuple[str, Iterable[tuple[object, ...]]]  #: a key of the settings, the paths read there


def field_questions(
    settings: Settings,
    effects: Sequence[Effect],
    steps: Sequence[ApplyStep],
    handlers: Sequence[HandlerStep],
) -> Iterator[Problem]:
    """Find members of a state that no kind in question declares."""
    readings: list[tuple[Gate, Iterator[Reading]]] = [
        *((effect.gate, read_by_effect(effect)) for effect in effects),
        *((step.gate, read_by_step(step)) for step in steps),
        *((step.gate, read_by_gate(step.where, step.gate)) for step in handlers),
    ]
    for gate, read in readings:
        resources = resources_of(settings, gate)
        declared = {name for resource in resources for name in resource.fields}
        if not resources or not all(resource.fields for resource in resources):
            continue  # the whole object is kept: any member may be there
        for key, paths in read:
            for path in paths:
                if len(path) > 1 and path[0] in STATES and path[1] not in declared:
                    message = f"no field {path[1]!r} is declared: {nearest(str(path[1]), declared)}"
                    yield Problem(key=key, message=message)


def resources_of(settings: Settings, gate: Gate) -> list[ResourceSettings]:
    """Whatever may be the resource of a cause that passes *gate*."""
    found = []
    for sender, source in sources_of(settings, gate):
        if sender == OURSELVES:
            continue  # about no resource
        resources = settings.senders[sender].resources
        if gate.changes:
            found.append(resources[source])
        else:
            found += [
                resource
                for resource in resources.values()
                if any(can_meet(source, glob) for glob in about(resource))
            ]
    return found


def read_by_effect(effect: Effect) -> Iterator[Reading]:
    key = f"effects.{effect.name}"
    yield from read_by_gate(key, effect.gate)
    if effect.path is not None:
        yield f"{key}.request", effect.path.paths
    if effect.mail is not None:
        yield from ((f"{key}.{name}", paths) for name, paths in effect.mail.readings())
    for name, value in effect.headers.items():
        yield f"{key}.{dotted(('headers', name))}", value.paths
    if effect.json is not None:
        yield f"{key}.json", effect.json.paths
    if effect.form is not None:
        yield f"{key}.form", effect.form.paths
    if effect.query is not None:
        yield f"{key}.query", effect.query.paths
    if effect.key is not None:
        yield f"{key}.idempotency_key", effect.key.paths
    if effect.lane is not None:
        yield f"{key}.lane", effect.lane.paths


def read_by_step(step: ApplyStep) -> Iterator[Reading]:
    yield from read_by_gate(step.where, step.gate)
    for name, value in step.params.items():
        yield f"{step.where}.{dotted(('params', name))}", value.paths


def read_by_gate(key: str, gate: Gate) -> Iterator[Reading]:
    if gate.becomes is not None:
        yield f"{key}.becomes", gate.becomes.paths
    if gate.when is not None:
        yield f"{key}.when", gate.when.paths
