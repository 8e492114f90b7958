"""Where key, version, times and fields of a resource stand, compiled from the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.errors import Problem
from reconciler.expressions import Expression, ExpressionError, compile_expression
from reconciler.ledger.fields import Field
from reconciler.ledger.versions import VersionError, zone_of
from reconciler.settings.models import FieldSpec, TimeSpec, VersionSpec


def version_spec(version: str | VersionSpec) -> VersionSpec:
    return VersionSpec(value=version) if isinstance(version, str) else version


def moved(version: VersionSpec, elsewhere: str | VersionSpec | None) -> VersionSpec:
    """Return *version* where a listing or an answer has it; a bare place keeps kind and format."""
    if isinstance(elsewhere, VersionSpec):
        return elsewhere
    return version.model_copy(update={"value": elsewhere}) if elsewhere else version


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where key, version and times stand on one path."""

    from_: Expression | None  #: None: the object is all of it
    key: Expression
    version: Version | None  #: None: `observed`
    changed_at: Time | None
    created_at: Time | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Where a version stands and how it is written."""

    value: Expression
    spec: VersionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Where a time stands and how it is written."""

    value: Expression
    spec: TimeSpec


class PlaceCompiler:
    """Compiles what it can and keeps what is wrong with the rest."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.problems: list[Problem] = []

    def expression(self, where: str, source: str) -> Expression:
        try:
            return compile_expression(source)
        except ExpressionError as error:
            self.wrong(where, f"{error}; {error.hint}" if error.hint else str(error))
            return compile_expression("none")  # to go on; the problem stops the start

    def version(self, where: str, spec: VersionSpec) -> Version | None:
        if spec.kind == "observed":
            return None
        self.zone(where, spec.zone)
        if spec.value is None:
            self.wrong(where, f"a version of kind `{spec.kind}` says where it stands: `value`")
        return Version(value=self.expression(where, spec.value or "none"), spec=spec)

    def time(self, where: str, spec: str | TimeSpec | None) -> Time | None:
        if spec is None:
            return None
        spec = TimeSpec(value=spec) if isinstance(spec, str) else spec
        self.zone(where, spec.zone)
        return Time(value=self.expression(where, spec.value), spec=spec)

    def field(self, where: str, spec: str | FieldSpec) -> Field:
        spec = FieldSpec(value=spec) if isinstance(spec, str) else spec
        return Field(value=self.expression(where, spec.value), type=spec.type)

    def zone(self, where: str, zone: str | None) -> None:
        try:
            if zone is not None:
                zone_of(zone)
        except VersionError as error:
            self.wrong(f"{where}.zone", error.reason)

    def wrong(self, where: str, message: str) -> None:
        self.problems.append(Problem(key=f"{self.key}.{where}", message=message))
