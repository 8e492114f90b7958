"""From the bytes of a listing's answer to its items, one bad item apart from its neighbours."""

import json
import re
from dataclasses import dataclass
from typing import Any

from reconciler import exact_json
from reconciler.exact_json import Json, NotJsonError
from reconciler.expressions import Expression, ExpressionError
from reconciler.polling.faults import PageBrokenError

DEEPEST = 240  #: what is nested deeper is cut out before it is parsed
TOO_DEEP = '"nested too deep\\u0000"'  #: takes its place; never storable, so its item is refused
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """An item that can never be stored, kept as the bytes that came."""

    raw: bytes
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One page: the whole answer, and its items in their order; a poisoned one is a Poison."""

    whole: Json
    items: list["Json | Poison"]


def read_page(body: bytes, items: Expression | None) -> Answer:
    """
    Take the items out of an answer; *items* None: the answer is the list.

    Raises PageBrokenError for what is no page of this listing (an error inside a 200, HTML,
    no items). A missing list is never an empty one: an outage must not look like "no data".
    """
    try:
        whole = exact_json.parse(body)
    except NotJsonError as error:
        return _read_poisoned(body, items, error)
    return Answer(whole=whole, items=list(_items_of(whole, items)))


def read_object(body: bytes) -> Json:
    """Read the answer about one resource. Raises PageBrokenError."""
    try:
        return exact_json.parse(body)
    except NotJsonError as error:
        raise PageBrokenError(f"the answer is not usable: {error.reason}") from error


def _items_of(whole: Any, items: Expression | None) -> list[Any]:
    found = whole
    if items is not None:
        if not isinstance(whole, dict):
            raise PageBrokenError(f"the answer is no object but {type(whole).__name__}")
        try:
            found = items.value(whole)
        except ExpressionError as error:
            raise PageBrokenError(f"the items are not where they should be: {error}") from error
    if not isinstance(found, list):
        raise PageBrokenError("the answer has no list of items")
    return found


class _Literal(str):
    """A number as it was written, for a document that must come out as it went in."""

    __slots__ = ()


def _read_poisoned(body: bytes, items: Expression | None, error: NotJsonError) -> Answer:
    """
    Find the items that make the page unusable, and read the rest without them.

    Only reached when a page as a whole is refused, so it may cost more.
    """
    broken = PageBrokenError(f"the answer is not usable: {error.reason}")
    try:
        whole = json.loads(
            _without_depths(body.decode("utf-8", "surrogateescape")),
            parse_int=_Literal,
            parse_float=_Literal,
            parse_constant=_Literal,
        )
    except (ValueError, RecursionError):
        raise broken from error
    listed = _items_of(whole, items)
    poisons = {
        index: fault for index, item in enumerate(listed) if (fault := _poison(item)) is not None
    }
    for index in poisons:
        listed[index] = None
    try:
        clean = exact_json.parse(_written(whole).encode())
    except NotJsonError:  # the fault lies outside the items
        raise broken from error
    exact = list(_items_of(clean, items))
    return Answer(whole=clean, items=[poisons.get(at, item) for at, item in enumerate(exact)])


def _poison(item: object) -> Poison | None:
    raw = _written(item).encode()
    try:
        exact_json.parse(raw)
    except NotJsonError as error:
        reason = "it is nested too deep" if TOO_DEEP.encode() in raw else error.reason
        return Poison(raw=raw, fault=f"a listed item cannot be stored: {reason}")
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
