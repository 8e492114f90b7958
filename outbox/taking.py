"""One turn of a relay: what may go is asked for, taken for the free slots, and written down."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import flow
from outbox.calling import Edges
from outbox.destinations import Destination
from outbox.flow import Asked, Permit
from outbox.leasing import GivenUp, Leased, Wanted, lease
from outbox.windows import Backlog, Next, Window, Windows

log = structlog.get_logger()

Ended = Collection[tuple[UUID, int]]


class Taking:
    """The slots of one relay, and what it knows of the destinations that fill them."""

    def __init__(  # noqa: PLR0913  # its edges are passed in
        self,
        engine: AsyncEngine,
        destinations: Mapping[str, Destination],
        *,
        lease: timedelta,
        edges: Edges,
        may_call: Callable[[AsyncConnection], Awaitable[bool]],
        learn: Callable[[Asked], None],
    ) -> None:
        self._engine = engine
        self._destinations = destinations
        self._lease = lease
        self._edges = edges
        self._may_call = may_call
        self._learn = learn
        self._in_flight: Counter[str] = Counter()
        self._windows = Windows()
        self._hungry: set[str] = set()  # destinations for which more may be due than was taken
        self._went_past: set[str] = set()  # destinations whose newest went alone in the last turn
        self.next_window = Next.NOTHING
        self.soonest: float | None = None  #: seconds until something that waits may go

    def release(self, destination: str) -> bool:
        """One slot is free again; True if something may be waiting for it."""
        self._in_flight[destination] -= 1
        return destination in self._hungry

    def has_many_free(self, destination: str) -> bool:
        """Whether half of its slots are free: then it is worth while to fill them at once."""
        return 2 * self._in_flight[destination] <= self._destinations[destination].concurrency

    async def take(self, ended: Ended) -> tuple[list[Leased], list[GivenUp]]:
        """Lease for every free slot; each of them is taken until it is released."""
        free = {
            name: one.concurrency - self._in_flight[name]
            for name, one in self._destinations.items()
            if one.concurrency > self._in_flight[name]
        }
        self.soonest, self.next_window = None, Next.NOTHING
        if not free:
            return [], []

        async with self._engine.begin() as connection:
            if not await self._may_call(connection):
                return [], []
            rates = {name: self._destinations[name].rate for name in free}
            asked = await flow.ask(connection, rates)
            leased, given_up = await self._take(connection, asked.permits, free, ended)
            called = Counter(one.destination for one in leased)
            await flow.take(connection, asked.permits, called, lease=self._lease)
            if leased:
                self._edges.point("relay-in-lease")
        if leased:
            self._edges.point("relay-after-lease")
        self._in_flight.update(called)
        self._learn(asked)
        waits = [asked.soonest, *(one.again for one in asked.permits if called[one.destination])]
        self.soonest = min((wait for wait in waits if wait is not None), default=None)
        _tell(given_up)
        return leased, given_up

    async def _take(
        self,
        connection: AsyncConnection,
        permits: Sequence[Permit],
        free: Mapping[str, int],
        ended: Ended,
    ) -> tuple[list[Leased], list[GivenUp]]:
        """Live entries first, and what is left of the slots for redriven ones."""
        left = {
            one.destination: free[one.destination]
            if one.most is None
            else min(free[one.destination], one.most)
            for one in permits
        }
        taken = Taken(left=left)
        self._hungry -= free.keys()
        newest = await self._take_newest(connection, permits, taken, ended)
        # They need not wait until a piece of the backlog is looked through: that comes next.
        self._went_past = newest - self._went_past
        if self._went_past:
            self.next_window = Next.AT_ONCE
        for redriven in (False, True):
            asking = {
                Backlog(one.destination, redriven): one
                for one in permits
                if taken.left[one.destination]
                and one.destination not in self._went_past
                and (one.redriven if redriven else one.live)
            }
            if not asking:
                continue
            windows = await self._windows.look(connection, asking)
            some, full = await self._lease_in(
                connection,
                {one: (asking[one], window) for one, window in windows.items()},
                taken,
                ended,
            )
            self._hungry |= {
                name
                for (name, _), enough in full.items()
                if enough or (not some[name] and self._in_flight[name])
            }
            self.next_window = max(self.next_window, self._windows.looked(full, some))
        return taken.leased, taken.given_up

    async def _take_newest(
        self,
        connection: AsyncConnection,
        permits: Sequence[Permit],
        taken: "Taken",
        ended: Ended,
    ) -> set[str]:
        """
        What was asked for a moment ago goes past a deep backlog that goes nowhere; where it did.

        With half of the slots at the most, and where there is one, every second time: what is
        older gets its turn too.
        """
        share = {
            name: slots // 2 or int(slots == 1 and name not in self._went_past)
            for name, slots in taken.left.items()
        }
        live = {
            Backlog(one.destination, redriven=False): one
            for one in permits
            if one.live and share[one.destination]
        }
        windows = await self._windows.newest(connection, live)
        if not windows:
            return set()
        asking = {one: (live[one], window) for one, window in windows.items()}
        some, full = await self._lease_in(connection, asking, taken, ended, most=share)
        went = {one.destination for one in full if some[one.destination]}
        self._hungry |= went  # a single slot is full with one, and nothing is left of it
        return went

    async def _lease_in(
        self,
        connection: AsyncConnection,
        asking: Mapping[Backlog, tuple[Permit, Window]],
        taken: "Taken",
        ended: Ended,
        *,
        most: Mapping[str, int] | None = None,
    ) -> tuple[Counter[str], dict[Backlog, bool]]:
        """How much was found for each destination, and whether that was all that was wanted."""
        limits = taken.left if most is None else most
        wanted = [
            replace(self._wanted(backlog, permit, limits), window=window)
            for backlog, (permit, window) in asking.items()
        ]
        some, gone = await lease(connection, wanted, ended=ended, follow=self._edges.follow)
        number = Counter(one.destination for one in some)
        number.update(one.destination for one in gone)
        # Others may have left less room than we have slots: then one that ends makes some.
        room = {**limits, **{one.destination: one.room for one in some}}
        full = {one: number[one.destination] >= room[one.destination] for one in asking}
        taken.left = {name: slots - number[name] for name, slots in taken.left.items()}
        taken.leased += some
        taken.given_up += gone
        return number, full

    def _wanted(self, backlog: Backlog, permit: Permit, left: Mapping[str, int]) -> Wanted:
        destination = self._destinations[backlog.destination]
        return Wanted(
            destination=backlog.destination,
            free=left[backlog.destination],
            lease=self._lease,
            hold_after_dead=destination.after_dead == "hold",
            max_attempts=destination.max_attempts,
            key_life=destination.key_life(lease=self._lease),
            concurrency=destination.concurrency,
            redriven=backlog.redriven,
            probe=permit.probe,
        )


@dataclass(slots=True, kw_only=True)
class Taken:
    """What one turn has taken so far, and how much more it may."""

    left: dict[str, int]
    leased: list[Leased] = field(default_factory=list)
    given_up: list[GivenUp] = field(default_factory=list)


def _tell(given_up: Sequence[GivenUp]) -> None:
    for gone in given_up:
        log.warning(
            "relay.given_up",
            entry=str(gone.id),
            destination=gone.destination,
            effect=gone.effect,
            state=gone.state.value,
            reason=gone.reason,
        )
