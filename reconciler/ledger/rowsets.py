"""Rows on their way to the server: one JSON parameter, however many there are."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Interval,
    Row,
    Select,
    TableValuedAlias,
    Text,
    bindparam,
    column,
    func,
    literal,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

C = Text(collation="C")  #: ids and keys are opaque bytes: compared and sorted as such
Time = DateTime(timezone=True)

AnyRow = Row[*tuple[Any, ...]]
AnySelect = Select[*tuple[Any, ...]]

EventId = tuple[str, str]  #: sender, event id
ResourceId = tuple[str, str, str]  #: sender, kind, key


def record_set(
    name: str, types: Mapping[str, TypeEngine[Any]], *, parameter: str = "rows"
) -> TableValuedAlias:
    """The list of objects in *parameter* as rows with the columns *types*."""
    columns = [column(column_name, type_) for column_name, type_ in types.items()]
    records = func.jsonb_to_recordset(bindparam(parameter, type_=JSONB))
    return records.table_valued(*columns).render_derived(name=name, with_types=True)


EVENT_ID: Mapping[str, TypeEngine[Any]] = {"sender": C, "event_id": C}
RESOURCE_ID: Mapping[str, TypeEngine[Any]] = {"sender": C, "kind": C, "key": C}


def event_rows(ids: Iterable[EventId]) -> list[dict[str, Any]]:
    """*ids* as rows, in primary-key order."""
    return [{"sender": sender, "event_id": event_id} for sender, event_id in sorted(ids)]


def resource_rows(ids: Iterable[ResourceId]) -> list[dict[str, Any]]:
    """*ids* as rows, in primary-key order."""
    return [{"sender": sender, "kind": kind, "key": key} for sender, kind, key in sorted(ids)]


def base64_text(data: bytes) -> str:
    """How bytes travel inside JSON; the statement decodes them."""
    return base64.b64encode(data).decode("ascii")


def moment_text(moment: datetime | None) -> str | None:
    """How a time travels inside JSON, to the microsecond."""
    return None if moment is None else moment.isoformat()


def interval(duration: timedelta) -> ColumnElement[timedelta]:
    """*duration* as a parameter of SQL's own type."""
    return literal(duration, type_=Interval())


def storable(text: str) -> str:
    """*text* without what PostgreSQL cannot hold: NUL, and halves of surrogate pairs."""
    clean = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return clean.encode("utf-8", "replace").decode("utf-8")


def page(  # noqa: PLR0913 - which rows, and which page of them
    columns: Sequence[ColumnElement[Any]],
    place: Sequence[ColumnElement[Any]],
    *,
    equal: Mapping[Any, Any],
    after: Sequence[Any] | None,
    limit: int,
    latest_first: bool = False,
) -> AnySelect:
    """
    One page of rows in the order of *place*, which is unique: never by counting rows.

    *after* is where the page before ended. Of *equal*, columns held against None do not filter.
    """
    statement: AnySelect = select(*columns)
    for column_, value in equal.items():
        if value is not None:
            statement = statement.where(column_ == value)
    if after is not None:
        here, there = tuple_(*place), tuple_(*after)
        statement = statement.where(here < there if latest_first else here > there)
    order = [column_.desc() if latest_first else column_ for column_ in place]
    return statement.order_by(*order).limit(limit)
