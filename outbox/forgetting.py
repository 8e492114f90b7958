"""Old rows of a table: looked at once, oldest first, a bounded number in one transaction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Interval,
    Select,
    Table,
    Text,
    any_,
    cast,
    delete,
    false,
    func,
    literal,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import UserDefinedType

BATCH = 10_000  #: rows that one transaction looks at


class RowAddress(UserDefinedType[str]):
    """PostgreSQL's `tid`: where a version of a row stands."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "tid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """Which rows of a table are old enough to go."""

    table: Table
    by: str  #: the column that says how old a row is: indexed, or the table is small
    keep: timedelta
    among: Callable[[FromClause], Sequence[ColumnElement[bool]]] = lambda _: ()
    """Which of the old ones are looked at."""
    spared: Callable[[FromClause], ColumnElement[bool]] = lambda _: false()
    """Which of those stay; each is looked at once a run, however many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far a run has come: time and address of the last row that it looked at."""

    moment: datetime
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """What one batch came to."""

    rows: int
    latest: datetime | None  #: how old the youngest of them was
    values: Mapping[str, Sequence[Any]]  #: of the columns that were asked for, row by row
    last: Place | None  #: where the next batch goes on; None: that was all


async def forget(
    connection: AsyncConnection,
    old: Old,
    *,
    after: Place | None,
    batch: int = BATCH,
    columns: Sequence[str] = (),
) -> Gone:
    """
    Delete what may go of the next *batch* old rows; the caller owns the transaction.

    By row address from an array: several times as fast as a join over the key. It is one
    statement, so that an address cannot come to mean another row meanwhile; a row that was changed
    has a new one and stays. Rows that somebody holds are passed over: nobody is waited for, and
    two that forget share the work.
    """
    looked = _looked(old, after=after, batch=batch)
    gone = _gone(old, looked, columns)
    place = select(looked.c.moment, cast(looked.c.address, Text).label("address"))
    last = place.order_by(looked.c.moment.desc(), looked.c.address.desc()).limit(1).subquery("last")
    found = await connection.execute(
        select(
            select(func.count()).select_from(looked).scalar_subquery().label("looked_at"),
            select(last.c.moment).scalar_subquery().label("moment"),
            select(last.c.address).scalar_subquery().label("address"),
            func.count().label("rows"),
            func.max(gone.c[old.by]).label("latest"),
            *(func.array_agg(gone.c[name]).label(f"all_{name}") for name in columns),
        ).select_from(gone)
    )
    row = found.one()
    full = row.looked_at >= batch
    return Gone(
        rows=row.rows,
        latest=row.latest,
        values={name: getattr(row, f"all_{name}") or () for name in columns},
        last=Place(moment=row.moment, address=row.address) if full else None,
    )


async def count(connection: AsyncConnection, old: Old) -> int:
    """How many rows may go, as far as can be said without deleting any."""
    victim = old.table.alias("victim")
    statement = select(func.count()).select_from(victim).where(*_is_old(old, victim))
    return await connection.scalar(statement.where(~old.spared(victim))) or 0


def _looked(old: Old, *, after: Place | None, batch: int) -> CTE:
    victim = old.table.alias("victim")
    moment = victim.c[old.by]
    address = literal_column("victim.ctid", RowAddress)
    statement: Select[Any] = (
        select(address.label("address"), moment.label("moment"), old.spared(victim).label("stays"))
        .select_from(victim)
        .where(*_is_old(old, victim))
        .order_by(moment, address)
        .limit(batch)
    )
    if after is not None:
        reached = cast(literal(after.address, Text), RowAddress)
        statement = statement.where(
            moment >= after.moment, tuple_(moment, address) > tuple_(after.moment, reached)
        )
    return statement.cte("looked").prefix_with("MATERIALIZED")


def _is_old(old: Old, victim: FromClause) -> Sequence[ColumnElement[bool]]:
    keep = literal(old.keep, type_=Interval())
    return [victim.c[old.by] < func.now() - keep, *old.among(victim)]


def _gone(old: Old, looked: CTE, columns: Sequence[str]) -> CTE:
    free = old.table.alias("free")
    its_address: ColumnElement[Any] = literal_column("free.ctid", RowAddress)
    going = select(looked.c.address).where(~looked.c.stays).scalar_subquery()
    held = (
        select(its_address.label("address"))
        .select_from(free)
        .where(its_address == any_(func.array(going)))
        .with_for_update(skip_locked=True)
        .cte("held")
    )
    address: ColumnElement[Any] = literal_column(f"{old.table.name}.ctid", RowAddress)
    locked = select(held.c.address).scalar_subquery()
    statement = delete(old.table).where(address == any_(func.array(locked)))
    told = dict.fromkeys([old.by, *columns])
    return statement.returning(*(old.table.c[name] for name in told)).cte("gone")
