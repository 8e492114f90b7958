"""One declared field of a resource: its type, the same on every path, and whether it is there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from reconciler.errors import ReconcilerError
from reconciler.exact_json import Json
from reconciler.expressions import Expression, ExpressionError
from reconciler.expressions.errors import MeaningError
from reconciler.expressions.meaning import describe, is_number, member, text_of
from reconciler.expressions.numbers import read_decimal, read_integer
from reconciler.ledger.versions import VersionError, format_time, parse_time
from reconciler.settings.models import TimeSpec

FieldType = Literal["any", "text", "integer", "decimal", "boolean", "timestamp"]


class Absence(Enum):
    """A field is not there at all; present and null is None."""

    LACKING = "lacking"


LACKING: Final = Absence.LACKING


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Where a field stands in the object, and what it is read as."""

    value: Expression
    type: FieldType

    def read(self, name: str, obj: Json) -> Json | Literal[Absence.LACKING]:
        """
        Return the field's value in its type, None for null, LACKING where it is missing.

        What is worked out from members that are missing is missing, from null members null,
        unless the expression makes something of them (`amount|default(0)`).

        Raises ProjectionError for what does not fit the type.
        """
        value = self._evaluated(name, obj)
        if value is None or value is LACKING or self.type == "any":
            return value
        try:
            return _READERS[self.type](value)
        except (MeaningError, VersionError) as error:
            raise ProjectionError(f"fields.{name}: {error}") from None

    def _evaluated(self, name: str, obj: Json) -> Json | Literal[Absence.LACKING]:
        try:
            value = self.value.value(obj)
        except ExpressionError as error:
            if self.value.reads_missing(obj):
                return LACKING
            if any(_at(obj, path) is None for path in self.value.paths):
                return None
            raise ProjectionError(f"fields.{name}: {error.reason}") from None
        return LACKING if value is None and self.value.reads_missing(obj) else value


class ProjectionError(ReconcilerError):
    """An object cannot be read as its kind says. *reason* does not show its values."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _at(obj: Json, path: tuple[Json, ...]) -> Json:
    for name in path:
        obj = member(obj, name)
    return obj


def _text(value: Json) -> str:
    if isinstance(value, str) or is_number(value):
        return text_of(value)
    raise MeaningError(f"a text is needed, not {describe(value)}")


def _boolean(value: Json) -> bool:
    if isinstance(value, bool):
        return value
    raise MeaningError(f"true or false is needed, not {describe(value)}")


def _timestamp(value: Json) -> str:
    return format_time(parse_time(value, _RFC3339))


_RFC3339 = TimeSpec(value="none", format="rfc3339")
_READERS: Mapping[FieldType, Callable[[Json], Json]] = {
    "text": _text,
    "integer": read_integer,
    "decimal": read_decimal,
    "boolean": _boolean,
    "timestamp": _timestamp,
}
