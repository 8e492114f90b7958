"""What the configuration says about reading one kind: its listing and its `get`, compiled."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from reconciler.exact_json import Json
from reconciler.expressions import (
    PATH_NAMES,
    Expression,
    PathTemplate,
    compile_expression,
    compile_path,
)
from reconciler.polling.pagination import Pagination, compile_pagination
from reconciler.settings.models import ResourceSettings, SinceSettings


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


def compile_listing(settings: ResourceSettings) -> Listing | None:
    """Compile the `list` of a kind. Raises ExpressionSyntaxError."""
    listed = settings.list
    if listed is None:
        return None
    return Listing(
        path=listed.path,
        params={name: _parameter(value) for name, value in listed.params.items()},
        items=compile_expression(listed.items) if listed.items else None,
        pagination=compile_pagination(listed.pagination),
        since=listed.since,
        order=listed.order,
        interval=listed.interval,
        full_every=listed.full_every,
        max_absent=listed.max_absent,
    )


def compile_getting(settings: ResourceSettings) -> Getting | None:
    """Compile the `get` of a kind. Raises ExpressionSyntaxError."""
    if settings.get is None:
        return None
    return Getting(
        path=compile_path(settings.get.path, names=PATH_NAMES), absent=settings.get.absent
    )


def _parameter(value: Json) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
