"""From what a sender says to what we compare: key, version and state of one resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import structlog

from reconciler.errors import ConfigError
from reconciler.exact_json import Json
from reconciler.expressions import Expression, ExpressionError
from reconciler.expressions.meaning import describe, text_of
from reconciler.ledger.event import Observation
from reconciler.ledger.fields import LACKING, Field, ProjectionError
from reconciler.ledger.globs import matches
from reconciler.ledger.places import Place, PlaceCompiler, Time, Version, moved, version_spec
from reconciler.ledger.versions import VersionError, digits, parse_time, parse_version
from reconciler.settings.models import ResourceSettings

__all__ = ["KindReader", "Place", "ProjectionError", "ReadPath", "compile_kind"]

ReadPath = Literal["event", "list", "get"]

MAX_KEY = 512  #: bytes of a resource's key in UTF-8

log = structlog.get_logger()


def compile_kind(sender: str, kind: str, settings: ResourceSettings) -> KindReader:
    """
    Compile how the resources of one kind are read, the same on every path.

    Raises ConfigError with every expression and time zone that is wrong.
    """
    compiler = PlaceCompiler(f"senders.{sender}.resources.{kind}")
    listed, got = settings.list, settings.get
    version = version_spec(settings.version)
    changed_at = compiler.time("changed_at", settings.changed_at)
    created_at = compiler.time("created_at", settings.created_at)
    list_changed_at = compiler.time("list.changed_at", listed.changed_at if listed else None)
    list_created_at = compiler.time("list.created_at", listed.created_at if listed else None)
    event = Place(
        from_=None,
        key=compiler.expression("key", settings.key),
        version=compiler.version("version", version),
        changed_at=changed_at or list_changed_at,
        created_at=created_at or list_created_at,
    )
    list_place = get_place = event
    if listed:
        list_place = Place(
            from_=compiler.expression("list.from", listed.from_) if listed.from_ else None,
            key=compiler.expression("list.key", listed.key) if listed.key else event.key,
            version=compiler.version("list.version", moved(version, listed.version)),
            changed_at=list_changed_at or changed_at,
            created_at=list_created_at or created_at,
        )
    if got:
        get_place = Place(
            from_=compiler.expression("get.from", got.from_) if got.from_ else None,
            key=compiler.expression("get.key", got.key) if got.key else event.key,
            version=compiler.version("get.version", moved(version, got.version)),
            changed_at=event.changed_at,
            created_at=event.created_at,
        )
    fields = {
        name: compiler.field(f"fields.{name}", spec) for name, spec in settings.fields.items()
    }
    if compiler.problems:
        raise ConfigError(problems=compiler.problems)
    return KindReader(
        sender=sender,
        kind=kind,
        thin=settings.thin,
        fields=fields,
        event=event,
        list=list_place,
        get=get_place,
        about=(*settings.on, *settings.created_on, *settings.deleted_on),
        deleting=settings.deleted_on,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KindReader:
    """Reads the resources of one kind, from events, listings and answers alike."""

    sender: str
    kind: str
    thin: bool  #: whether its events carry no state
    fields: Mapping[str, Field]  #: by name; empty: the whole object is the state
    event: Place
    list: Place
    get: Place
    about: tuple[str, ...]  #: globs of the event types that are about it
    deleting: tuple[str, ...]

    def read(self, obj: Json, *, path: ReadPath) -> Observation:
        """
        Read *obj*, the object that describes the resource (to which `from` has led).

        A version that is missing is None in an event: it needs a read. `deleted` is false, for
        the event's type decides it (`deleted_on`). Times that cannot be read are None.

        Raises ProjectionError for a missing or malformed key, a malformed field or version, and
        for a version that is missing in a listing or an answer.
        """
        place = self.place(path)
        key = _key(place.key, obj)
        version = None if place.version is None else _version(place.version, obj, path=path)
        state, lacking = self._state(obj, path=path)
        return Observation(
            kind=self.kind,
            key=key,
            version=version,
            state=state,
            lacking=lacking,
            changed_at=self._time("changed_at", place.changed_at, obj),
            created_at=self._time("created_at", place.created_at, obj),
        )

    def key_of(self, obj: Json, *, path: ReadPath) -> str:
        """Read the key alone, also of what `read` refuses for another reason."""
        return _key(self.place(path).key, obj)

    def locate(self, container: Json, *, path: Literal["list", "get"]) -> Json:
        """
        Follow `from`: from a listed item, or from an answer, to the object that `read` takes.

        Raises ProjectionError. For events the receiver does it, over other names.
        """
        from_ = self.place(path).from_
        return container if from_ is None else _evaluated("from", from_, container)

    def place(self, path: ReadPath) -> Place:
        match path:
            case "event":
                return self.event
            case "list":
                return self.list
            case "get":
                return self.get

    def changed_digits(self, obj: Json, *, path: ReadPath) -> int:
        """Count the digits of the second's fraction that the sender gave `changed_at`."""
        changed_at = self.place(path).changed_at
        return digits(_evaluated("changed_at", changed_at.value, obj)) if changed_at else 0

    def is_about(self, event_type: str) -> bool:
        return matches(self.about, event_type)

    def deleted_on(self, event_type: str) -> bool:
        return matches(self.deleting, event_type)

    def _state(
        self, obj: Json, *, path: ReadPath
    ) -> tuple[Mapping[str, Json] | None, frozenset[str]]:
        if path == "event" and self.thin:
            return None, frozenset()
        if not self.fields:
            if not isinstance(obj, Mapping):
                raise ProjectionError(f"an object is needed, not {describe(obj)}")
            return obj, frozenset()
        state: dict[str, Json] = {}
        for name, field in self.fields.items():
            value = field.read(name, obj)
            if value is not LACKING:
                state[name] = value
        if not state and path == "event":
            return None, frozenset()  # it says nothing of the state: as good as thin
        if len(state) == len(self.fields):
            return state, frozenset()
        return state, frozenset(self.fields.keys() - state.keys())

    def _time(self, name: str, time: Time | None, obj: Json) -> int | None:
        if time is None:
            return None
        try:
            value = time.value.value(obj)
            return None if value is None else parse_time(value, time.spec)
        except (ExpressionError, VersionError) as error:
            log.warning(
                "projection.time_refused",
                sender=self.sender,
                kind=self.kind,
                member=name,
                reason=error.reason,
            )
            return None


def _evaluated(name: str, expression: Expression, obj: Json) -> Json:
    try:
        return expression.value(obj)
    except ExpressionError as error:
        raise ProjectionError(f"{name}: {error.reason}") from None


def _key(expression: Expression, obj: Json) -> str:
    value = _evaluated("key", expression, obj)
    if value is None:
        raise ProjectionError("key: missing")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ProjectionError(f"key: a text or a whole number is needed, not {describe(value)}")
    key = text_of(value)
    if not key:
        raise ProjectionError("key: empty")
    if len(key) > MAX_KEY or len(key.encode()) > MAX_KEY:
        raise ProjectionError(f"key: longer than {MAX_KEY} bytes")
    return key


def _version(version: Version, obj: Json, *, path: ReadPath) -> int | None:
    value = _evaluated("version", version.value, obj)
    if value is None:
        if path == "event":
            return None
        raise ProjectionError("version: missing")
    try:
        return parse_version(value, version.spec)
    except VersionError as error:
        raise ProjectionError(f"version: {error.reason}") from None
