"""From the bytes of a listing's answer to its items, one bad item apart from its neighbours."""

from dataclasses import replace
from functools import partial
from typing import Any

from reconciler import exact_items, exact_json
from reconciler.exact_items import Document, Poison
from reconciler.exact_json import Json, NotJsonError
from reconciler.expressions import Expression, ExpressionError
from reconciler.polling.errors import PageBrokenError

__all__ = ["Answer", "Poison", "read_object", "read_page"]

Answer = Document  #: one page


def read_page(body: bytes, items: Expression | None) -> Answer:
    """
    Take the items out of an answer; *items* None: the answer is the list.

    Raises PageBrokenError for what is no page of this listing (an error inside a 200, HTML,
    no items). A missing list is never an empty one: an outage must not look like "no data".
    """
    try:
        answer = exact_items.read(body, partial(_items_of, items=items))
    except NotJsonError as error:
        raise PageBrokenError(f"the answer is not usable: {error.reason}") from error
    return replace(answer, items=[_told(item) for item in answer.items])


def read_object(body: bytes) -> Json:
    """Read the answer about one resource. Raises PageBrokenError."""
    try:
        return exact_json.parse(body)
    except NotJsonError as error:
        raise PageBrokenError(f"the answer is not usable: {error.reason}") from error


def _told(item: "Json | Poison") -> "Json | Poison":
    if isinstance(item, Poison):
        return replace(item, fault=f"a listed item cannot be stored: {item.fault}")
    return item


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
