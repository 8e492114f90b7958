"""One turn of a relay: what may go is asked for, taken for the free slots, and written down."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import flow
from outbox.ahead import Ahead, Ready
from outbox.calling import Edges, tell_given_up
from outbox.destinations import Destination
from outbox.flow import Asked, Permit
from outbox.lease_statement import AHEAD_BYTES
from outbox.leasing import GivenUp, Leased, Wanted, lease
from outbox.room import Room, Taken
from outbox.windows import Backlog, Next, Window, Windows

Ended = Callable[[], Collection[tuple[UUID, int]]]
"""Tells calls, by entry and attempt, of which only we know yet that they have ended."""


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
        give_back: Callable[[Sequence[Leased]], None],
    ) -> None:
        self._engine = engine
        self._destinations = destinations
        self._lease = lease
        self._edges = edges
        self._may_call = may_call
        self._learn = learn
        self._in_flight: Counter[str] = Counter()
        self.ahead = Ahead(give_back)
        self._slots: dict[str, int] = {}  # of each destination, as far as others left them
        self._cut: set[str] = (
            set()
        )  # destinations of which not all was taken that there was room for
        self._windows = Windows()
        self._hungry: set[str] = set()  # destinations for which more may be due than was taken
        self._went_past: set[str] = set()  # destinations whose newest went alone in the last turn
        self.next_window = Next.NOTHING
        self.soonest: float | None = None  #: seconds until something that waits may go

    def release(self, destination: str) -> Ready | None:
        """A call has ended: the next one has its slot, or else the slot is free again."""
        self.ahead.drop_overdue(self._edges.clock(), [destination])
        following = self.ahead.next(destination)
        if following is None:
            self._in_flight[destination] -= 1
        return following

    def is_worth_a_turn(self, destination: str) -> bool:
        """Whether something may be waiting for it that a turn would take."""
        if destination not in self._hungry:
            return False
        slots = self._destinations[destination].concurrency
        if self.ahead.waiting(destination):  # others have the rest, or what waits would be called
            slots = self._slots.get(destination, slots)
        return self._in_flight[destination] < slots or self._more(destination) > 0

    def has_many_free(self, destination: str) -> bool:
        """Whether half of its slots are free: then it is worth while to fill them at once."""
        slots = self._slots.get(destination, self._destinations[destination].concurrency)
        return 2 * self._in_flight[destination] <= slots

    def due_again(self, destinations: Collection[str]) -> None:
        """What was given back is due before what the next turn would look at."""
        for name in destinations:
            self._windows.restart(name)

    async def take(self, ended: Ended) -> tuple[list[Ready], list[GivenUp]]:
        """Lease for every free slot, and ahead; what has a slot now, until that is released."""
        names = {
            name
            for name in self._destinations
            if self._room(name).total or self.ahead.waiting(name)  # it may have to be given back
        }
        self._hungry |= self._destinations.keys() - names  # nobody asked whether more is due
        self.soonest, self.next_window = None, Next.NOTHING
        if not names:
            return [], []

        asked_at = self._edges.clock()
        async with self._engine.begin() as connection:
            if not await self._may_call(connection):
                self.ahead.drop_all()
                return [], []
            rates = {name: self._destinations[name].rate for name in names}
            asked = await flow.ask(connection, rates)
            self.ahead.spare(asked)
            taken = Taken(
                rooms={
                    one.destination: self._room(one.destination).within(one.most)
                    for one in asked.permits
                },
            )
            taken.hungry |= {name for name, room in taken.rooms.items() if not room.total}
            await self._take(connection, asked.permits, taken, ended)
            called = Counter(one.destination for one in taken.leased)
            await flow.take(connection, asked.permits, called, lease=self._lease)
            if taken.leased:
                self._edges.point("relay-in-lease")
        if taken.leased:
            self._edges.point("relay-after-lease")
        # Not sooner: slots that become free meanwhile ask for the next turn, and it may fail.
        self._hungry -= names - set(asked.waiting)
        self._hungry |= taken.hungry
        self._learn(asked)
        waits = [asked.soonest, *(one.again for one in asked.permits if called[one.destination])]
        self.soonest = min((wait for wait in waits if wait is not None), default=None)
        tell_given_up(taken.given_up)
        self.ahead.add(taken.leased, at=asked_at)
        self._slots |= taken.slots
        ready = list(self._begin(taken.slots))
        if any(
            called[name] and name in taken.hungry and self._in_flight[name] < slots
            for name, slots in taken.slots.items()
        ):
            self.next_window = Next.AT_ONCE  # a call ended meanwhile, and nobody knew of more
        return ready, taken.given_up

    def _room(self, name: str) -> Room:
        slots = self._destinations[name].concurrency - self._in_flight[name]
        more = self._more(name) if name in self._hungry else 0
        return Room(slots=slots, ahead=more)

    def _more(self, name: str) -> int:
        if name in self._cut and self.ahead.waiting(name):
            return 0
        return self.ahead.more(name, self._slots.get(name, 0))

    def _begin(self, slots: Mapping[str, int]) -> Iterator[Ready]:
        """What waits, for as many *slots* as may be busy at once."""
        for name, most in slots.items():
            while self._in_flight[name] < most and (ready := self.ahead.next(name)) is not None:
                self._in_flight[name] += 1
                yield ready

    async def _take(
        self,
        connection: AsyncConnection,
        permits: Sequence[Permit],
        taken: Taken,
        ended: Ended,
    ) -> None:
        """Live entries first, and what is left of the slots for redriven ones."""
        newest = await self._take_newest(connection, permits, taken, ended)
        # They need not wait until a piece of the backlog is looked through: that comes soon.
        self._went_past = newest - self._went_past
        if self._went_past:
            self.next_window = Next.SOON
        for redriven in (False, True):
            asking = {
                Backlog(one.destination, redriven): one
                for one in permits
                if one.destination not in self._went_past
                and (one.redriven if redriven else one.live)
            }
            next_window, more = await self._take_older(connection, asking, taken, ended)
            if more:  # what a window had too little of, the next one may have
                asking = {one: permit for one, permit in asking.items() if one.destination in more}
                again, _ = await self._take_older(connection, asking, taken, ended)
                next_window = max(again, Next.SOON)
            self.next_window = max(self.next_window, next_window)

    async def _take_older(
        self,
        connection: AsyncConnection,
        asking: Mapping[Backlog, Permit],
        taken: Taken,
        ended: Ended,
    ) -> tuple[Next, set[str]]:
        """One window of each backlog; when the next is worth a look, and for which at once."""
        asking = {one: asking[one] for one in asking if taken.rooms[one.destination].total}
        if not asking:
            return Next.NOTHING, set()
        windows = await self._windows.look(connection, asking)
        some, full = await self._lease_in(
            connection,
            {one: (asking[one], window) for one, window in windows.items()},
            taken,
            ended,
        )
        taken.hungry |= {
            name
            for (name, _), enough in full.items()
            if enough or (not some[name] and taken.busy[name])
        }
        # Where there was no room nothing was looked through.
        looked = {one: enough for one, enough in full.items() if taken.room[one.destination]}
        next_window, more = self._windows.looked(looked, some)
        return next_window, more

    async def _take_newest(
        self,
        connection: AsyncConnection,
        permits: Sequence[Permit],
        taken: Taken,
        ended: Ended,
    ) -> set[str]:
        """
        What was asked for a moment ago goes past a deep backlog that goes nowhere; where it did.

        With half of the slots at the most, and where there is one, every second time: what is
        older gets its turn too.
        """
        share = {}
        for name, room in taken.rooms.items():
            alone = int(room.slots == 1 and name not in self._went_past)
            share[name] = Room(slots=room.slots // 2 or alone, ahead=room.ahead // 2)
        live = {
            Backlog(one.destination, redriven=False): one
            for one in permits
            if one.live and share[one.destination].total
        }
        windows = await self._windows.newest(connection, live)
        if not windows:
            return set()
        asking = {one: (live[one], window) for one, window in windows.items()}
        some, full = await self._lease_in(connection, asking, taken, ended, most=share)
        went = {one.destination for one in full if some[one.destination]}
        taken.hungry |= went  # a single slot is full with one, and nothing is left of it
        return went

    async def _lease_in(
        self,
        connection: AsyncConnection,
        asking: Mapping[Backlog, tuple[Permit, Window]],
        taken: Taken,
        ended: Ended,
        *,
        most: Mapping[str, Room] | None = None,
    ) -> tuple[Counter[str], dict[Backlog, bool]]:
        """How much was found for each destination, and whether that was all that was wanted."""
        limits = taken.rooms if most is None else most
        # From here to the statement nothing else runs: what is under way, what waits and what has
        # ended are of one moment, and what the database knows beside them are calls of others.
        taken.busy |= {name: self._in_flight[name] + taken.granted[name] for name, _ in asking}
        wanted = [
            replace(self._wanted(backlog, permit, limits, taken), window=window)
            for backlog, (permit, window) in asking.items()
        ]
        some, gone, spaces = await lease(
            connection, wanted, ended=ended(), follow=self._edges.follow
        )
        leased = Counter(one.destination for one in some)
        number = leased + Counter(one.destination for one in gone)
        # Others may have left less room than we have slots: then one that ends makes some.
        full = {one: number[one.destination] >= spaces[one.destination].room for one in asking}
        for name, (room, slots, cut) in spaces.items():
            # What was marked since the statement was sent it took for slots that others left.
            concurrency = self._destinations[name].concurrency
            taken.slots[name] = min(taken.busy[name] + slots, concurrency)
            taken.granted[name] += min(leased[name], slots)
            taken.ahead[name] += max(leased[name] - slots, 0)
            taken.rooms[name] = taken.rooms[name].less(number[name])
            taken.room[name] = room
            self._cut = self._cut | {name} if cut else self._cut - {name}
        for one in some:
            taken.bytes[one.destination] += len(one.body)
        taken.leased += some
        taken.given_up += gone
        return number, full

    def _wanted(
        self, backlog: Backlog, permit: Permit, limits: Mapping[str, Room], taken: Taken
    ) -> Wanted:
        name = backlog.destination
        destination, room = self._destinations[name], limits[name]
        return Wanted(
            destination=name,
            free=room.slots,
            lease=self._lease,
            hold_after_dead=destination.after_dead == "hold",
            max_attempts=destination.max_attempts,
            key_life=destination.key_life(lease=self._lease),
            concurrency=destination.concurrency,
            ahead=room.ahead,
            ahead_bytes=max(AHEAD_BYTES - self.ahead.bytes(name) - taken.bytes[name], 0),
            waiting=self.ahead.waiting(name) + taken.ahead[name],
            busy=taken.busy[name] > 0,
            redriven=backlog.redriven,
            probe=permit.probe,
        )
