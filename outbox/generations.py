"""
Generations of the database: how it is noticed that it went back in time.

Each daemon moves a mark of its own in the database and remembers how far. A database that shows
less than somebody remembers, or that is not where its current generation was opened, has been
restored, or lost its end in a failover: what it does not know any more is its lost future. A new
generation is opened then, by one insert, and what the lost future may have sent is held.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    PrimaryKeyConstraint,
    Select,
    Table,
    Text,
    Uuid,
    bindparam,
    case,
    column,
    delete,
    func,
    literal,
    literal_column,
    null,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from outbox.store import Time, metadata

FORGOTTEN_AFTER = timedelta(days=400)  #: a daemon that was away for longer remembers in vain

generations = Table(
    "generations",
    metadata,
    Column("number", Integer, nullable=False, autoincrement=False),
    Column("opened_at", Time, nullable=False),
    Column("reason", Text, nullable=False),
    Column("lost_since", Time),
    Column("system_identifier", BigInteger),
    Column("timeline", BigInteger),
    Column("database_oid", BigInteger),
    Column("table_oid", BigInteger),
    Column("held", BigInteger, nullable=False, server_default=text("0")),
    Column("settled_at", Time),
    Column("healed_at", Time),
    PrimaryKeyConstraint("number", name="generations_pkey"),
)

generation_marks = Table(
    "generation_marks",
    metadata,
    Column("id", Uuid, nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("moved_at", Time, nullable=False),
    PrimaryKeyConstraint("id", name="generation_marks_pkey"),
    postgresql_with={"fillfactor": 50},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which database of which server this is; None where the role may not know."""

    system_identifier: int | None  #: of the cluster: initdb draws it
    timeline: int | None  #: rises with every promotion and every recovery to a point in time
    database_oid: int | None
    table_oid: int | None  #: None: no generation has been opened yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The current one, as its row says."""

    number: int
    opened_at: datetime
    reason: str
    place: Place  #: where it was opened, or moved to by a failover that lost nothing
    settled: bool  #: whether everything that is to be held is held
    healed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look: where this is, what it says of itself, and where our own mark stands."""

    standby: bool
    place: Place
    synchronous: bool  #: whether commits wait for a standby
    next_transaction: int  #: rises with everything that anybody writes
    flushed: int | None  #: bytes of WAL on disk: never less on a timeline, not after a crash either
    generation: Generation | None  #: None: this database has never been looked at
    beat: int | None  #: of our mark; None: it is not there


async def orient(connection: AsyncConnection) -> tuple[str, bool]:
    """
    The database's name, and whether this role may read the cluster's identifier.

    (Everybody may, unless a provider has taken that away.)
    """
    may_ask = func.has_function_privilege("pg_control_system()", "execute")
    row = (await connection.execute(select(func.current_database(), may_ask))).one()
    return str(row[0]), bool(row[1])


async def look(connection: AsyncConnection, mark: UUID, *, ask_the_cluster: bool) -> Seen:
    """See where we are; reads only, in one statement."""
    statement = _LOOK if ask_the_cluster else _LOOK_WITHOUT_CLUSTER
    (row,) = await statement.rows(connection, mark=mark)
    generation = None
    if row.number is not None:
        generation = Generation(
            number=row.number,
            opened_at=row.opened_at,
            reason=row.reason,
            place=Place(
                system_identifier=row.was_system_identifier,
                timeline=row.was_timeline,
                database_oid=row.was_database_oid,
                table_oid=row.was_table_oid,
            ),
            settled=row.settled,
            healed=row.healed,
        )
    return Seen(
        standby=row.standby,
        place=Place(
            system_identifier=row.system_identifier,
            timeline=row.timeline,
            database_oid=row.database_oid,
            table_oid=row.table_oid,
        ),
        synchronous=row.synchronous,
        next_transaction=int(row.next_transaction),
        flushed=row.flushed,
        generation=generation,
        beat=row.beat,
    )


async def open_generation(
    connection: AsyncConnection, number: int, *, reason: str, place: Place, settled: bool = False
) -> bool:
    """
    Open generation *number*; False where another process has. *settled*: there is nothing to hold.

    What was lost was lost after the last mark that this database knows.
    """
    lost_since = select(func.max(generation_marks.c.moved_at)).scalar_subquery()
    before = select(func.max(generations.c.opened_at)).scalar_subquery()
    values = {
        "number": number,
        "opened_at": func.clock_timestamp(),
        "reason": reason,
        "lost_since": func.coalesce(lost_since, before),
        "system_identifier": place.system_identifier,
        "timeline": place.timeline,
        "database_oid": place.database_oid,
        "settled_at": func.clock_timestamp() if settled else null(),
        "healed_at": func.clock_timestamp() if settled else null(),
    }
    # The key is named: where a restore has not made it yet this fails, as it must. The rows of
    # the outbox may not be there either, and what is opened now would hold none of them.
    opening = insert(generations).values(values).on_conflict_do_nothing(index_elements=["number"])
    opened = await connection.scalar(opening.returning(generations.c.number))
    if opened is None:
        return False
    own_table = literal_column("tableoid", BigInteger)
    await connection.execute(
        update(generations).where(generations.c.number == number).values(table_oid=own_table)
    )
    return True


async def follow(connection: AsyncConnection, generation: Generation, place: Place) -> bool:
    """Note that *generation* goes on at *place*, after a failover that lost nothing."""
    moved = await connection.execute(
        update(generations)
        .where(
            generations.c.number == generation.number,
            generations.c.timeline == generation.place.timeline,
        )
        .values(timeline=place.timeline)
    )
    return moved.rowcount == 1


async def move_mark(connection: AsyncConnection, mark: UUID, *, beat: int) -> None:
    """Move our own mark to *beat*, or make it; nobody else moves it."""
    proposed = insert(generation_marks).values(id=mark, beat=beat, moved_at=func.clock_timestamp())
    await connection.execute(
        proposed.on_conflict_do_update(
            index_elements=["id"],
            set_={"beat": proposed.excluded.beat, "moved_at": proposed.excluded.moved_at},
        )
    )


async def forget_marks(connection: AsyncConnection) -> None:
    """Remove the marks of daemons that have not come back for more than a year."""
    old = generation_marks.c.moved_at < func.now() - literal(FORGOTTEN_AFTER)
    await connection.execute(delete(generation_marks).where(old))


async def settle(connection: AsyncConnection, number: int) -> int | None:
    """Say that everything is held: calls may go out again. How many are; None: it was said."""
    held: int | None = await connection.scalar(
        update(generations)
        .where(generations.c.number == number, generations.c.settled_at.is_(None))
        .values(settled_at=func.clock_timestamp())
        .returning(generations.c.held)
    )
    return held


async def heal(connection: AsyncConnection, number: int) -> bool:
    """Say that every listing has been read since: states are what they should be."""
    healed = await connection.execute(
        update(generations)
        .where(generations.c.number == number, generations.c.healed_at.is_(None))
        .values(healed_at=func.clock_timestamp())
    )
    return healed.rowcount == 1


async def current(connection: AsyncConnection) -> Any:
    """The row of the current generation, for operators; None before the first."""
    return (await connection.execute(latest())).one_or_none()


def latest() -> Select[Any]:
    """Which generation is the current one: no row before the first."""
    return select(generations).order_by(generations.c.number.desc()).limit(1)


def _look_statement(*, ask_the_cluster: bool) -> Select[Any]:
    latest = select(generations, literal_column("tableoid::bigint", BigInteger).label("own_oid"))
    now = latest.order_by(generations.c.number.desc()).limit(1).subquery("now")
    mark = select(generation_marks.c.beat).where(
        generation_marks.c.id == bindparam("mark", type_=Uuid())
    )
    one = select(literal(1).label("one")).subquery("one")
    standby = func.pg_is_in_recovery()
    cluster = func.pg_control_system().table_valued(column("system_identifier", BigInteger))
    system_identifier: Any = (
        select(cluster.c.system_identifier).scalar_subquery() if ask_the_cluster else null()
    )
    database = literal_column(
        "(select oid::bigint from pg_database where datname = current_database())", BigInteger
    )
    return select(
        standby.label("standby"),
        system_identifier.label("system_identifier"),
        case((~standby, literal_column(TIMELINE, BigInteger))).label("timeline"),
        database.label("database_oid"),
        now.c.own_oid.label("table_oid"),
        (func.current_setting("synchronous_standby_names") != "").label("synchronous"),
        literal_column("pg_snapshot_xmax(pg_current_snapshot())::text::bigint", BigInteger).label(
            "next_transaction"
        ),
        case((~standby, literal_column(FLUSHED, BigInteger))).label("flushed"),
        now.c.number,
        now.c.opened_at,
        now.c.reason,
        now.c.system_identifier.label("was_system_identifier"),
        now.c.timeline.label("was_timeline"),
        now.c.database_oid.label("was_database_oid"),
        now.c.table_oid.label("was_table_oid"),
        now.c.settled_at.is_not(None).label("settled"),
        now.c.healed_at.is_not(None).label("healed"),
        mark.scalar_subquery().label("beat"),
    ).select_from(one.outerjoin(now, true()))


TIMELINE = "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint"
FLUSHED = "(pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint"


_LOOK = Compiled(_look_statement(ask_the_cluster=True), prepared=True)
_LOOK_WITHOUT_CLUSTER = Compiled(_look_statement(ask_the_cluster=False), prepared=True)
