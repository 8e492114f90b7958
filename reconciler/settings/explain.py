"""What is wrong with a value, and what would be right: pydantic's errors in our words."""

import difflib
import re
import types
from collections.abc import Container, Iterator, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from reconciler.settings.documents import Finding
from reconciler.settings.models import Settings
from reconciler.settings.positions import KeyPath

MISSING = "missing"
LATER = "nothing enforces this yet"

LIMITS = {
    "greater_than_equal": ("ge", "too small: at least"),
    "less_than_equal": ("le", "too large: at most"),
    "greater_than": ("gt", "must be more than"),
}
EMPTY = "empty: leave the key out, or say something"
A_LIST = 'not a list: put it in square brackets, like ["this"]'
A_TABLE = "not a table: it has keys of its own"
SENTENCES = {
    "string_too_short": EMPTY,
    "too_short": EMPTY,
    "string_type": 'not a text: put it in double quotes, like "this"',
    "tuple_type": A_LIST,
    "model_type": A_TABLE,
    "dict_type": A_TABLE,
    "shape": A_TABLE,
    "path_type": 'not a path: a text in quotes, like "/var/lib/reconciler"',
}

#: keys of later versions: they must not look as if they did something
NOT_YET: dict[tuple[object, ...], tuple[str, ...]] = {
    ("destinations",): ("breaker_after", "slow_after", "notify"),
    ("senders",): ("silence_after", "rate", "feed", "feeds"),
    (): ("notifications", "notify", "egress", "alerts"),
}


def explain(error: ValidationError, tree: dict[str, Any]) -> list[Finding]:
    """Put every error into words; *tree* is what was validated. No value is ever repeated."""
    found = [_finding(detail, tree) for detail in error.errors(include_url=False)]
    later = {finding.path[:-1] for finding in found if finding.message.startswith(LATER)}
    return [
        finding
        for finding in found
        if finding.message.startswith(LATER)
        or not (finding.message.startswith(MISSING) and finding.path[:-1] in later)
    ]


def _finding(detail: ErrorDetails, tree: dict[str, Any]) -> Finding:
    missing = detail["type"] == "missing"
    path, value = resolve(tree, detail["loc"], missing=missing)
    if missing:
        field = field_at(path)
        meaning = f": {field.description}" if field and field.description else ""
        return Finding(path=path, message=f"{MISSING}{meaning}")
    if detail["type"] == "extra_forbidden":
        return Finding(path=path, message=_unknown_key(path, tree))
    return Finding(path=path, message=_sentence(detail, path, value))


def resolve(
    tree: Any, location: Sequence[str | int], *, missing: bool = False
) -> tuple[KeyPath, Any]:
    """
    Turn pydantic's location into a path of *tree* and what stands there.

    A location also names members of unions and `[key]`; those are no part of the path.
    """
    path: KeyPath = ()
    for number, part in enumerate(location, start=1):
        last = number == len(location)
        if part in _parts(tree):
            tree, path = tree[part], (*path, part)
        elif missing and last:
            tree, path = None, (*path, part)
    return path, tree


def _parts(tree: Any) -> Container[str | int]:
    if isinstance(tree, dict):
        return tree.keys()
    return range(len(tree)) if isinstance(tree, list) else ()


def _sentence(detail: ErrorDetails, path: KeyPath, value: object) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return _known_words(path, value)
    if kind in LIMITS:
        name, words = LIMITS[kind]
        return f"{words} {_limit(context[name])}"
    return SENTENCES.get(kind, f"not usable: {detail['msg']}")


def _limit(value: object) -> str:
    """
    Write a limit as the configuration does; pydantic gives those of durations in words.

    >>> _limit("1 second"), _limit(2)
    ('"1s"', '2')
    """
    if value == repr(timedelta(0)):
        return spell(timedelta(0))
    match = re.match(r"(\d+) (\w+)", str(value))
    if not match:
        return spell(value)
    return spell(timedelta(**{match[2].removesuffix("s") + "s": int(match[1])}))


def _known_words(path: KeyPath, value: object) -> str:
    fields = fields_at(path) or fields_at(path[:-1])
    known = list(dict.fromkeys(word for field in fields for word in literals(field.annotation)))
    near = difflib.get_close_matches(str(value), map(str, known), n=1)
    meant = f'; did you mean "{near[0]}"?' if near and isinstance(value, str) else ""
    return f"not one of {', '.join(map(spell, known))}{meant}"


def _unknown_key(path: KeyPath, tree: Any) -> str:
    table, key = path[:-1], str(path[-1])
    if len(table) <= 2 and key in NOT_YET.get(table[:1], ()):
        return f"{LATER}, so it is refused rather than ignored: remove it"
    models = _of_kind(models_at(table), _at(tree, table))
    known = sorted({name for model in models for name in keys_of(model)})
    near = difflib.get_close_matches(key, known, n=1)
    if near:
        return f'unknown key; did you mean "{near[0]}"?'
    return f"unknown key; here there are: {', '.join(known)}"


def _of_kind(models: list[type[BaseModel]], table: Any) -> list[type[BaseModel]]:
    """Those of *models* that *table* can be, where its `kind` tells them apart."""
    kind = table.get("kind") if isinstance(table, dict) else None
    fields = [(model, keys_of(model).get("kind")) for model in models]
    chosen = [
        model
        for model, field in fields
        if field and (kind in literals(field.annotation) if kind else field.default == "http")
    ]
    return chosen or models


def _at(tree: Any, path: KeyPath) -> Any:
    for part in path:
        tree = tree[part] if part in _parts(tree) else None
    return tree


def spell(value: object) -> str:
    """
    Write a value as the configuration does.

    >>> spell(timedelta(minutes=5)), spell(True), spell("x")
    ('"5m"', 'true', '"x"')
    """
    match value:
        case bool():
            return str(value).lower()
        case timedelta():
            return f'"{spell_duration(value)}"'
        case str():
            return f'"{value}"'
        case _:
            return str(value)


def spell_duration(value: timedelta) -> str:
    """
    Write a duration in the largest unit that fits it.

    >>> spell_duration(timedelta(hours=24)), spell_duration(timedelta(milliseconds=1500))
    ('24h', '1500ms')
    """
    if value == timedelta(days=1):
        return "24h"
    milliseconds = value // timedelta(milliseconds=1)
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys that a table may have, as they are written."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def models_at(path: KeyPath) -> list[type[BaseModel]]:
    """The models that the table at *path* may be."""
    annotations: list[Any] = [Settings]
    for part in path:
        annotations = [
            inner
            for each in annotations
            for member in members(each)
            for inner in _inside(member, part)
        ]
    return [m for each in annotations for m in members(each) if _is_model(m)]


def field_at(path: KeyPath) -> FieldInfo | None:
    """The field that *path* names, if it names one."""
    return next(iter(fields_at(path)), None)


def fields_at(path: KeyPath) -> list[FieldInfo]:
    """The fields that *path* may name: one of each model that its table may be."""
    fields = (keys_of(model).get(str(path[-1])) for model in models_at(path[:-1]))
    return [field for field in fields if field]


def literals(annotation: Any) -> list[Any]:
    """The words that *annotation* allows, where it lists them."""
    found = [get_args(each) for each in members(annotation) if get_origin(each) is Literal]
    within = [
        literals(get_args(each)[0]) for each in members(annotation) if get_origin(each) is tuple
    ]
    return [word for words in (*found, *within) for word in words]


def members(annotation: Any) -> Iterator[Any]:
    """The types that *annotation* stands for: without what is annotated, unions taken apart."""
    if get_origin(annotation) is Annotated:
        yield from members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from members(each)
    else:
        yield annotation


def _inside(annotation: Any, part: str | int) -> list[Any]:
    if _is_model(annotation):
        field = keys_of(annotation).get(str(part))
        return [field.annotation] if field else []
    arguments = get_args(annotation)
    if get_origin(annotation) is dict and isinstance(part, str):
        return [arguments[1]]
    if get_origin(annotation) is tuple and isinstance(part, int):
        return [arguments[0]]
    return []


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
