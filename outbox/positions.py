"""The places that named lanes give, and the removal of lanes that nothing is in any more."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Delete,
    Integer,
    PrimaryKeyConstraint,
    Select,
    Table,
    delete,
    select,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningInsert

from outbox.compiled import Compiled
from outbox.entry import NewEntry
from outbox.store import C, metadata, outbox, record_set

lanes = Table(
    "lanes",
    metadata,
    Column("lane", C, nullable=False),
    Column("position", BigInteger, nullable=False),
    PrimaryKeyConstraint("lane", name="lanes_pkey"),
    postgresql_with={"fillfactor": 70},
)


async def places_of(connection: AsyncConnection, entries: Sequence[NewEntry]) -> list[int | None]:
    """
    The next place in its lane for each of *entries*, in their order; None: it names no lane.

    The parts of one effect share a place: a mail to one recipient waits for none to another.
    """
    asking = {_one_place(entry): entry.lane for entry in entries if entry.lane is not None}
    taken = await take_positions(connection, list(asking.values()))
    places = dict(zip(asking, taken, strict=True))
    return [places.get(_one_place(entry)) for entry in entries]


def _one_place(entry: NewEntry) -> tuple[str | None, str, str, str]:
    return (entry.lane, entry.sender, entry.event_id, entry.effect)


async def take_positions(connection: AsyncConnection, names: Sequence[str]) -> list[int]:
    """
    The next place in the lane of each of *names*, in their order.

    The rows of these lanes stay locked until the caller's transaction ends: whoever is behind us
    in a lane commits behind us, so a place rises in the order in which entries can be seen. They
    are locked in the order of their names, so that two transactions that ask once each wait for
    each other in one direction only.
    """
    if not names:
        return []
    wanted = Counter(names)
    rows = [{"lane": lane, "places": places} for lane, places in wanted.items()]
    reached = {row.lane: row.position for row in await _TAKE.rows(connection, rows=rows)}
    following = {lane: reached[lane] - places for lane, places in wanted.items()}
    taken = []
    for lane in names:
        following[lane] += 1
        taken.append(following[lane])
    return taken


async def forget_lanes(connection: AsyncConnection, names: Collection[str]) -> int:
    """
    Remove those of *names* that have no entries; how many. The caller owns the transaction.

    Locked first, and looked at by a statement of its own: nobody can have put an entry into a lane
    that we hold without our seeing it. One that somebody holds is just being used, and stays.
    """
    if not names:
        return 0
    given = [{"lane": lane} for lane in set(names)]
    held = [{"lane": row.lane} for row in await _HOLD.rows(connection, rows=given)]
    return await _FORGET.count(connection, rows=held) if held else 0


_given = record_set("given", {"lane": C}).c


def _take_statement() -> ReturningInsert[Any]:
    wanted = record_set("wanted", {"lane": C, "places": Integer()}).c
    in_order = select(wanted.lane, wanted.places).order_by(wanted.lane)
    proposed = insert(lanes).from_select(["lane", "position"], in_order)
    return proposed.on_conflict_do_update(
        index_elements=[lanes.c.lane],
        set_={"position": lanes.c.position + proposed.excluded.position},
    ).returning(lanes.c.lane, lanes.c.position)


def _hold_statement() -> Select[Any]:
    return (
        select(lanes.c.lane)
        .where(lanes.c.lane == _given.lane)
        .order_by(lanes.c.lane)
        .with_for_update(of=lanes, skip_locked=True)
    )


def _forget_statement() -> Delete:
    used = select(outbox.c.id).where(outbox.c.lane == lanes.c.lane).exists()
    return delete(lanes).where(lanes.c.lane == _given.lane, ~used)


_TAKE = Compiled(_take_statement())
_HOLD = Compiled(_hold_statement())
_FORGET = Compiled(_forget_statement())
