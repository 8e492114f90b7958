"""How a listing goes on: from one answer to the next position. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from reconciler.exact_json import Json
from reconciler.expressions import Expression, ExpressionError
from reconciler.polling.addresses import same_origin
from reconciler.polling.errors import PageBrokenError

LONGEST_CURSOR = 8192
Style = Literal["single", "cursor", "page", "offset", "last_id", "next_url", "link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Which page comes next; what a checkpoint keeps of it is `text`."""

    text: str | None = None  #: cursor, number, last id or URL; None: the first page
    overlapping: bool = False  #: the first item of this page was the last of the one before

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "overlapping": self.overlapping}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Position":
        return cls(text=value["text"], overlapping=bool(value.get("overlapping")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What an answer has for the question how to go on."""

    answer: Json
    count: int  #: items on it
    last_key: str | None  #: the key of its last item
    url: str  #: where it came from
    link_next: str | None = None  #: the `next` of its Link header


@dataclass(frozen=True, slots=True, kw_only=True)
class Pagination:
    style: Style
    param: str | None = None
    first: int = 1
    next: Expression | None = None
    more: Expression | None = None
    fixed: Mapping[str, str] = field(default_factory=dict)  #: size parameter


def query_of(pagination: Pagination, position: Position) -> dict[str, str] | None:
    """The paging parameters of a request; None: the position is a URL that has its own."""
    if pagination.style in ("next_url", "link") and position.text is not None:
        return None
    query = dict(pagination.fixed)
    if pagination.param is None or pagination.style in ("single", "next_url", "link"):
        return query
    if position.text is not None:
        query[pagination.param] = position.text
    elif pagination.style == "page":
        query[pagination.param] = str(pagination.first)
    elif pagination.style == "offset":
        query[pagination.param] = "0"
    return query


def next_position(pagination: Pagination, position: Position, page: Page) -> Position | None:
    """
    Say where the listing goes on; None: this was its last page.

    Raises PageBrokenError where the answer says that there is more and no way on.
    A page shorter than asked for ends nothing: senders cap sizes as they like.
    """
    more = says_more(pagination, page.answer)
    if more is False:
        return None
    following = _following(pagination, position, page, more=more)
    if following is None and more:
        raise PageBrokenError("the listing says that there is more, and no way on")
    return following


def says_more(pagination: Pagination, answer: Json) -> bool | None:
    """What `more` comes to; None where nothing (or null) is said: then the way on decides."""
    if pagination.more is None:
        return None
    more = evaluate(pagination.more, answer)
    if more is None or isinstance(more, bool):
        return more
    raise PageBrokenError(f"`more` is neither true nor false but {type(more).__name__}")


def _following(
    pagination: Pagination, position: Position, page: Page, *, more: bool | None
) -> Position | None:
    text: str | None = None
    match pagination.style:
        case "single":
            pass
        case "cursor":
            text = _next(pagination, page)
        case "page":
            if page.count or more:
                text = str(_number(position, pagination.first) + 1)
        case "offset":
            return _next_offset(position, page)
        case "last_id":
            if page.count and page.last_key is None:
                raise PageBrokenError("no item of the page has a key to go on behind")
            text = page.last_key
        case "next_url":
            found = _next(pagination, page)
            text = None if found is None else same_origin(page.url, found)
        case "link":
            text = None if page.link_next is None else same_origin(page.url, page.link_next)
    return None if text is None else Position(text=text)


def _next_offset(position: Position, page: Page) -> Position | None:
    """
    Go on at the last item of this page once more: what a deletion shifts over the
    boundary while we turn the page is then still seen.
    """
    if page.count <= (1 if position.overlapping else 0):
        return None
    overlap = 1 if page.count > 1 else 0
    return Position(
        text=str(_number(position, 0) + page.count - overlap), overlapping=bool(overlap)
    )


def _number(position: Position, first: int) -> int:
    if position.text is None:
        return first
    if not (position.text.isascii() and position.text.isdigit()):
        raise PageBrokenError("the pass was begun with another style of pagination")
    return int(position.text)


def _next(pagination: Pagination, page: Page) -> str | None:
    """Read the next cursor: text or an integer; null, false and "" say that there is none."""
    value = None if pagination.next is None else evaluate(pagination.next, page.answer)
    if value is None or value is False or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise PageBrokenError(f"the next cursor is no text but {type(value).__name__}")
    text = str(value)
    if len(text) > LONGEST_CURSOR:
        raise PageBrokenError(f"the next cursor has {len(text)} characters")
    return text


def evaluate(expression: Expression, answer: Json) -> Json:
    """Evaluate over the members of the answer; what has no members is no page."""
    if not isinstance(answer, dict):
        raise PageBrokenError(f"the answer is no object but {type(answer).__name__}")
    try:
        return expression.value(answer)
    except ExpressionError as error:
        raise PageBrokenError(f"the answer does not have its expected shape: {error}") from error
