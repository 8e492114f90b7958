"""Lists of JSON of which one item can never be stored: it is told apart from its neighbours."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from reconciler import exact_json
from reconciler.exact_json import Json, NotJsonError

DEEPEST = 240  #: what is nested deeper is cut out before it is parsed
TOO_DEEP = '"nested too deep\\u0000"'  #: takes its place; never storable, so its item is refused
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """An item that can never be stored, kept as the bytes that came."""

    raw: bytes
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole document, and its items in their order; a poisoned one is a Poison."""

    whole: Json
    items: list["Json | Poison"]


def read(body: bytes, items_of: Callable[[Json], list[Json]]) -> Document:
    """
    Read a document and the list of items that *items_of* finds in it.

    Raises NotJsonError where the fault lies outside the items, and what *items_of* raises; that
    one returns the very list that is in the document, or no item can be told apart.
    """
    try:
        whole = exact_json.parse(body)
    except NotJsonError as error:
        return _read_poisoned(body, items_of, error)
    return Document(whole=whole, items=list(items_of(whole)))


class _Literal(str):
    """A number as it was written, for a document that must come out as it went in."""

    __slots__ = ()


def _read_poisoned(
    body: bytes, items_of: Callable[[Json], list[Json]], error: NotJsonError
) -> Document:
    """
    Find the items that make the document unusable, and read the rest without them.

    Only reached when the document as a whole is refused, so it may cost more.
    """
    try:
        whole = json.loads(
            _without_depths(body.decode("utf-8", "surrogateescape")),
            parse_int=_Literal,
            parse_float=_Literal,
            parse_constant=_Literal,
        )
    except (ValueError, RecursionError):
        raise error from None
    listed = items_of(whole)
    poisons = {
        index: fault for index, item in enumerate(listed) if (fault := _poison(item)) is not None
    }
    for index in poisons:
        listed[index] = None
    try:
        clean = exact_json.parse(_written(whole).encode())
    except NotJsonError:  # the fault lies outside the items
        raise error from None
    exact = list(items_of(clean))
    return Document(whole=clean, items=[poisons.get(at, item) for at, item in enumerate(exact)])


def _poison(item: object) -> Poison | None:
    raw = _written(item).encode()
    try:
        exact_json.parse(raw)
    except NotJsonError as error:
        fault = "it is nested too deep" if TOO_DEEP.encode() in raw else error.reason
        return Poison(raw=raw, fault=fault)
    return None


def _written(value: object) -> str:
    match value:
        case _Literal():
            return str(value)
        case dict():
            inner = (f"{json.dumps(name)}:{_written(member)}" for name, member in value.items())
            return "{" + ",".join(inner) + "}"
        case list():
            return "[" + ",".join(map(_written, value)) + "]"
        case _:
            return json.dumps(value)


def _without_depths(text: str) -> str:
    """Cut out what is nested deeper than any parser here may go."""
    kept: list[str] = []
    depth = start = 0
    for match in _STRUCTURE.finditer(text):
        mark = match[0]
        if mark in "[{":
            depth += 1
            if depth == DEEPEST + 1:
                kept += [text[start : match.start()], TOO_DEEP]
        elif mark in "]}":
            if depth == DEEPEST + 1:
                start = match.end()
            depth -= 1
    return "".join([*kept, text[start:]]) if depth == 0 else text
