"""What the configuration says about reading one kind: its listing and its `get`, compiled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Literal, TypeVar

from reconciler.errors import Problem
from reconciler.exact_json import Json
from reconciler.expressions import (
    PATH_NAMES,
    Expression,
    ExpressionSyntaxError,
    PathTemplate,
    compile_expression,
    compile_path,
)
from reconciler.polling.client import Api, Response
from reconciler.polling.errors import RefusedError
from reconciler.polling.pagination import Pagination, Position, query_of
from reconciler.settings.models import PaginationSettings, ResourceSettings, SinceSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A kind's listing."""

    path: str
    params: Mapping[str, str]
    items: Expression | None  #: None: the answer is the list
    pagination: Pagination
    since: SinceSettings | None
    order: Literal["oldest", "newest", "unknown"]
    interval: timedelta
    full_every: timedelta
    max_absent: int  #: percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Getting:
    """A kind's `get`."""

    path: PathTemplate
    absent: Literal["deleted", "unknown"]

    def target(self, key: str) -> str:
        """The path of one resource. Raises ExpressionError for a key that makes none."""
        return self.path.text({"key": key})


def compile_listing(
    settings: ResourceSettings, key: str, problems: list[Problem]
) -> Listing | None:
    """Compile the `list` of the kind at *key*; what is wrong with it goes to *problems*."""
    listed = settings.list
    if listed is None:
        return None

    def expression(name: str, source: str | None) -> Expression | None:
        return _compiled(compile_expression, source, f"{key}.list.{name}", problems)

    return Listing(
        path=listed.path,
        params={name: _parameter(value) for name, value in listed.params.items()},
        items=expression("items", listed.items),
        pagination=_pagination(listed.pagination, expression),
        since=listed.since,
        order=listed.order,
        interval=listed.interval,
        full_every=listed.full_every,
        max_absent=listed.max_absent,
    )


def compile_getting(
    settings: ResourceSettings, key: str, problems: list[Problem]
) -> Getting | None:
    """Compile the `get` of the kind at *key*; what is wrong with it goes to *problems*."""
    if settings.get is None:
        return None
    path = _compiled(
        partial(compile_path, names=PATH_NAMES), settings.get.path, f"{key}.get.path", problems
    )
    return None if path is None else Getting(path=path, absent=settings.get.absent)


def _pagination(
    settings: PaginationSettings | None,
    expression: Callable[[str, str | None], Expression | None],
) -> Pagination:
    if settings is None:
        return Pagination(style="single")
    sized = settings.size_param is not None and settings.size is not None
    return Pagination(
        style=settings.style,
        param=settings.param,
        first=settings.first,
        next=expression("pagination.next", settings.next),
        more=expression("pagination.more", settings.more),
        fixed={str(settings.size_param): str(settings.size)} if sized else {},
    )


def _compiled(
    compile_: Callable[[str], T], source: str | None, key: str, problems: list[Problem]
) -> T | None:
    if not source:
        return None
    try:
        return compile_(source)
    except ExpressionSyntaxError as error:
        problems.append(Problem(key=key, message=str(error)))
        return None


async def ask(api: Api, listing: Listing, position: Position, *, since: str | None) -> Response:
    """
    Ask for the page at *position*, of what changed *since*.

    Raises ApiError; RefusedError for what the sender will not answer.
    """
    paging = query_of(listing.pagination, position)
    if paging is None:
        assert position.text is not None
        response = await api.fetch(position.text)
    else:
        asked = {listing.since.param: since} if listing.since and since is not None else {}
        response = await api.fetch(listing.path, {**listing.params, **asked, **paging})
    if response.status >= 400:
        raise RefusedError(f"the sender answered {response.status}", status=response.status)
    return response


def _parameter(value: Json) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
