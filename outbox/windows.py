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
from enum import IntEnum
from typing import Any, NamedTuple

from sqlalchemy import Boolean, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from outbox.store import PENDING, C, Time, outbox, record_set

SIZE = 1000  # due entries
NEWEST = 50  # of them, which are looked at in between where others cannot go
TURNS = 100  # for which one window is looked through while it gives all that is wanted
HASTE = 5  # how much sooner than polled one that comes soon is looked through
PATIENCE = 9  # times as long as a turn took, before it: others wait for a tenth of the time


class Backlog(NamedTuple):
    """A destination's entries that were redriven, or its others."""

    destination: str
    redriven: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """From behind *after* up to *upto*, by when they are due; None: the beginning, and the end."""

    after: datetime | None = None
    upto: datetime | None = None


EVERYTHING = Window()


class Windows:
    """Which window of each backlog is being looked through."""

    def __init__(self) -> None:
        self._current: dict[Backlog, Window] = {}
        self._turns: Counter[Backlog] = Counter()
        self._gave: Counter[Backlog] = Counter()  # the current window, so far
        self._left: set[Backlog] = set()
        self._again: set[Backlog] = set()  # to begin again with
        self._stuck: set[Backlog] = set()  # deep, and gave less than was wanted

    async def look(
        self, connection: AsyncConnection, backlogs: Iterable[Backlog]
    ) -> dict[Backlog, Window]:
        """The window to look through now, for each of *backlogs*."""
        asked = list(backlogs)
        for one in self._again.intersection(asked):
            self._current.pop(one, None)
            self._left.discard(one)
            del self._turns[one], self._gave[one]
        self._again.difference_update(asked)
        moving = {
            one: self._current.get(one, EVERYTHING)
            for one in asked
            if one in self._left or one not in self._current
        }
        if moving:
            self._current |= await _next(connection, moving)
            self._left -= moving.keys()
        return {one: self._current[one] for one in asked}

    def restart(self, destination: str) -> None:
        """Begin again with its oldest, when they are looked through next: some have come back."""
        self._again |= {Backlog(destination, redriven) for redriven in (False, True)}

    async def newest(
        self, connection: AsyncConnection, backlogs: Iterable[Backlog]
    ) -> dict[Backlog, Window]:
        """
        The end of those of *backlogs* that are deep and go nowhere.

        What has just been asked for is there, and need not wait until all was looked through
        that waits for something else. Where the backlog does go, its oldest go first.
        """
        stuck = [one for one in backlogs if one in self._stuck]
        return await _newest(connection, stuck) if stuck else {}

    def looked(
        self, full: Mapping[Backlog, bool], found: Mapping[str, int]
    ) -> "tuple[Next, set[str]]":
        """
        Take note of what was looked through: how much was *found*, and whether it was enough.

        When the next window is worth a look, and for which destinations at once.

        A window is left when it gave less than was wanted, or has been looked through for long
        enough: what has become free in others must get its turn.
        """
        self._turns.update(full.keys())
        self._gave.update({one: found[one.destination] for one in full})
        left = {one for one, enough in full.items() if not enough or self._turns[one] >= TURNS}
        gave = {one for one in left if self._gave[one]}
        for one in left:
            del self._turns[one], self._gave[one]
        self._left |= left
        deep = {one for one in full if self._current[one] != EVERYTHING}
        self._stuck -= full.keys()
        self._stuck |= {one for one in deep if not full[one]}
        more = {one for one in left if self._current[one].upto is not None}
        next_window = Next.AT_ONCE if more & gave else Next.SOON if more else Next.NOTHING
        return next_window, {one.destination for one in more & gave}


class Next(IntEnum):
    """When the next window is worth a look."""

    NOTHING = 0  #: there is none
    SOON = 1  #: the last one gave nothing; many like it must not keep everybody busy
    AT_ONCE = 2


def rest_before(window: Next, *, poll: float, took: float) -> float:
    """How long to wait before *window*; all in seconds. The turn before it *took* so long."""
    match window:
        case Next.NOTHING:
            return poll
        case Next.SOON:
            return min(poll, max(poll / HASTE, PATIENCE * took))
        case Next.AT_ONCE:
            return 0.0


async def _next(
    connection: AsyncConnection, windows: Mapping[Backlog, Window]
) -> dict[Backlog, Window]:
    """
    The window behind each of *windows*; behind the end comes the beginning.

    Where less than a window is due, it is everything.
    """
    starts = {one: window.upto for one, window in windows.items()}
    rows = [
        {
            "destination": one.destination,
            "redriven": one.redriven,
            "after": bounds(Window(after=start))["after"],
        }
        for one, start in starts.items()
    ]
    found = {
        Backlog(row.destination, row.redriven): row.due_at
        for row in await _ENDS.rows(connection, rows=rows)
    }
    return {one: Window(after=start, upto=found.get(one)) for one, start in starts.items()}


async def _newest(
    connection: AsyncConnection, backlogs: Iterable[Backlog]
) -> dict[Backlog, Window]:
    rows = [{"destination": one.destination, "redriven": one.redriven} for one in backlogs]
    found = await _NEWEST.rows(connection, rows=rows)
    return {Backlog(row.destination, row.redriven): Window(after=row.due_at) for row in found}


def bounds(window: Window) -> dict[str, Any]:
    """Both ends of *window* as values of a row; where there is none, what lies beyond all."""
    return {
        "after": "-infinity" if window.after is None else window.after.isoformat(),
        "upto": "infinity" if window.upto is None else window.upto.isoformat(),
    }


def ends(size: int) -> Compiled:
    """Where the window of *size* entries after each given time ends, if more than that are due."""
    looked = record_set("looked", {"destination": C, "redriven": Boolean(), "after": Time})
    end = (
        select(outbox.c.due_at)
        .where(
            outbox.c.destination == looked.c.destination,
            outbox.c.redriven == looked.c.redriven,
            outbox.c.state == PENDING,
            outbox.c.due_at <= func.now(),
            outbox.c.due_at > looked.c.after,
        )
        .order_by(outbox.c.due_at)
        .offset(size - 1)
        .limit(1)
        .lateral("end")
    )
    return Compiled(
        select(looked.c.destination, looked.c.redriven, end.c.due_at).select_from(
            looked.join(end, true())
        ),
        prepared=True,
    )


def last(size: int) -> Compiled:
    """Behind which time the newest *size* entries that are due begin, if there are more."""
    looked = record_set("looked", {"destination": C, "redriven": Boolean()})
    begin = (
        select(outbox.c.due_at)
        .where(
            outbox.c.destination == looked.c.destination,
            outbox.c.redriven == looked.c.redriven,
            outbox.c.state == PENDING,
            outbox.c.due_at <= func.now(),
        )
        .order_by(outbox.c.due_at.desc())
        .offset(size)
        .limit(1)
        .lateral("begin")
    )
    return Compiled(
        select(looked.c.destination, looked.c.redriven, begin.c.due_at).select_from(
            looked.join(begin, true())
        ),
        prepared=True,
    )


_ENDS = ends(SIZE)
_NEWEST = last(NEWEST)
