"""
Looking through a deep backlog in pieces.

Where entries wait for others of their resource, thousands may be due that cannot go. Looking at
all of them at every turn would cost everybody; so a turn looks at one window of them, and the
next turn at the next.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, func, select, true, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from outbox.store import PENDING, C, Time, outbox, record_set

SIZE = 1000  # due entries
TURNS = 100  # for which one window is looked through while it gives all that is wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in the order in which a destination's entries are due."""

    redriven: bool
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """From behind *after* up to *upto*; None is the beginning, and the end."""

    after: Place | None = None
    upto: Place | None = None


EVERYTHING = Window()


class Windows:
    """Which window of each destination is being looked through."""

    def __init__(self) -> None:
        self._current: dict[str, Window] = {}
        self._turns: Counter[str] = Counter()

    async def look(self, connection: AsyncConnection, names: Iterable[str]) -> dict[str, Window]:
        """The window to look through now, for each of *names*."""
        fresh = {name: EVERYTHING for name in names if name not in self._current}
        if fresh:
            self._current |= await _next(connection, fresh)
        return {name: self._current[name] for name in names}

    async def looked(self, connection: AsyncConnection, full: Mapping[str, bool]) -> bool:
        """
        Take note of what was looked through, and whether as much was found as was wanted.

        A window is left when it gave less than that, or has been looked through for long
        enough: what has become free in others must get its turn. True if another one waits.
        """
        self._turns.update(full.keys())
        left = {
            name: self._current[name]
            for name, enough in full.items()
            if not enough or self._turns[name] >= TURNS
        }
        if left:
            self._current |= await _next(connection, left)
            self._turns.subtract({name: self._turns[name] for name in left})
        return any(window.upto is not None for window in left.values())


async def _next(connection: AsyncConnection, windows: Mapping[str, Window]) -> dict[str, Window]:
    """
    The window behind each of *windows*; behind the end comes the beginning.

    Where less than a window is due, it is everything.
    """
    starts = {name: window.upto for name, window in windows.items()}
    rows = [{"destination": name, **bound("after", start)} for name, start in starts.items()]
    found = {
        row.destination: Place(redriven=row.redriven, due_at=row.due_at)
        for row in await _ENDS.rows(connection, rows=rows)
    }
    return {name: Window(after=start, upto=found.get(name)) for name, start in starts.items()}


def bound(name: str, place: Place | None) -> dict[str, Any]:
    """*place* as two values of a row; where there is none, what lies before or behind all."""
    if place is None:
        limit = "-infinity" if name == "after" else "infinity"
        return {f"{name}_redriven": name != "after", f"{name}_due_at": limit}
    return {f"{name}_redriven": place.redriven, f"{name}_due_at": place.due_at.isoformat()}


def ends(size: int) -> Compiled:
    """Where the window of *size* entries after each given place ends, if more than that are due."""
    looked = record_set(
        "looked", {"destination": C, "after_redriven": Boolean(), "after_due_at": Time}
    )
    place = tuple_(outbox.c.redriven, outbox.c.due_at)
    end = (
        select(outbox.c.redriven, outbox.c.due_at)
        .where(
            outbox.c.destination == looked.c.destination,
            outbox.c.state == PENDING,
            outbox.c.due_at <= func.now(),
            place > tuple_(looked.c.after_redriven, looked.c.after_due_at),
        )
        .order_by(outbox.c.redriven, outbox.c.due_at)
        .offset(size - 1)
        .limit(1)
        .lateral("end")
    )
    return Compiled(select(looked.c.destination, end).select_from(looked.join(end, true())))


_ENDS = ends(SIZE)
