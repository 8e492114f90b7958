"""The relay: leases due entries, calls their destinations, and writes down what came of it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox.ahead import UNKNOWN, Ready
from outbox.backoff import Backoff
from outbox.calling import (
    Attempted,
    Edges,
    call,
    mark_of,
    no_time_passes,
    nothing_happens,
    since_boot,
    tell,
)
from outbox.destinations import Destination
from outbox.leasing import GivenUp, Leased
from outbox.looking import Looker, pause
from outbox.marking import DATABASE_TROUBLE, Marking, told, was_probe
from outbox.noting import Noting
from outbox.resting import Follow
from outbox.settling import Mark
from outbox.taking import Taking
from outbox.verdict import Before, verdict
from outbox.waking import Wake
from outbox.windows import rest_before

log = structlog.get_logger()

LEASE_SLACK = 1.0  # seconds between the last moment for a call to begin and the latest for its end
LONGEST_OUTAGE_PAUSE = 5.0  # seconds


async def always(_: AsyncConnection) -> bool:
    """Whoever runs the relay alone says so himself when his database was restored."""
    return True


async def run(  # noqa: PLR0913  # its edges are passed in
    engine: AsyncEngine,
    destinations: Mapping[str, Destination],
    policy: "Policy",
    *,
    hint: asyncio.Event,
    stop: asyncio.Event,
    progress: Callable[[], None],
    metrics: Callable[[Attempted], None] = nothing_happens,
    point: Callable[[str], None] = nothing_happens,
    turn: Callable[[], Awaitable[None]] = no_time_passes,
    clock: Callable[[], float] = since_boot,
    may_call: Callable[[AsyncConnection], Awaitable[bool]] = always,
    follow: Follow | None = None,
) -> None:
    """
    Call what is due until *stop* is set; then take no more, end the calls in flight, and return.

    *hint* says that something may have become due; polling alone finds it too, only later.
    *progress* is called at every turn, and then *turn*, which tests make last for ever. *may_call*
    is asked in every transaction that would lease; False leaves everything where it is. *follow*
    writes what follows when entries come to rest, in the transaction in which they do. How long
    the end may take is the caller's to bound: cancelled, what was in flight comes back when its
    lease ends.
    """
    edges = Edges(metrics=metrics, point=point, turn=turn, clock=clock, follow=follow)
    relay = Relay(engine, destinations, policy, edges, may_call=may_call)
    async with asyncio.TaskGroup() as background:
        wakers = [
            background.create_task(_wake_on(hint, relay.wake)),
            background.create_task(_wake_on(stop, relay.wake, again=False)),
        ]
        background.create_task(relay.marking.run())
        background.create_task(relay.looker().run(stop))
        async with asyncio.TaskGroup() as calls:
            await relay.take_turns(calls, stop=stop, progress=progress)
        relay.marking.close()
        for waker in wakers:
            waker.cancel()


async def run_once(  # noqa: PLR0913  # its edges are passed in
    engine: AsyncEngine,
    destinations: Mapping[str, Destination],
    policy: "Policy",
    *,
    metrics: Callable[[Attempted], None] = nothing_happens,
    point: Callable[[str], None] = nothing_happens,
    follow: Follow | None = None,
) -> int:
    """
    Lease once, call all of it, mark it; how many calls that was.

    Raises what the database raises.
    """
    edges = Edges(metrics=metrics, point=point, follow=follow)
    relay = Relay(engine, destinations, policy, edges)
    ready, _ = await relay.lease_free()
    never = asyncio.Event()
    async with asyncio.TaskGroup() as calls:
        for one in ready:
            calls.create_task(relay.call_from(one, stop=never))
    await relay.marking.flush()
    return len(ready)


class Relay:
    """What one running relay knows: its slots, and the marks it still has to write."""

    def __init__(
        self,
        engine: AsyncEngine,
        destinations: Mapping[str, Destination],
        policy: "Policy",
        edges: Edges,
        *,
        may_call: Callable[[AsyncConnection], Awaitable[bool]] = always,
    ) -> None:
        self._engine = engine
        self._may_call = may_call
        self._destinations = destinations
        self._policy = policy
        self._edges = edges
        self.wake = Wake()
        noting = Noting(destinations, random=edges.random)
        self.marking = Marking(
            engine,
            noting=noting,
            point=edges.point,
            written=self._on_written,
            follow=edges.follow,
            clock=edges.clock,
        )
        self._taking = Taking(
            engine,
            destinations,
            lease=policy.lease,
            edges=edges,
            may_call=may_call,
            learn=noting.learn,
            give_back=self._give_back,
        )

    def looker(self) -> Looker:
        """What finds out, beside the calls, what became of those whose outcome is unknown."""
        return Looker(
            engine=self._engine,
            destinations=self._destinations,
            lease=self._policy.lease,
            poll=self._policy.poll,
            may_call=self._may_call,
            follow=self._edges.follow,
            settled=self.wake.set,
        )

    async def take_turns(
        self, calls: asyncio.TaskGroup, *, stop: asyncio.Event, progress: Callable[[], None]
    ) -> None:
        """Lease as many entries as there are free slots and start their calls, again and again."""
        outages, ahead = 0, self._taking.ahead
        while not stop.is_set():
            if not self.marking.stuck:
                progress()
            await self._edges.turn()
            self.wake.clear()
            began = self._edges.clock()
            ahead.drop_overdue(began, ahead.destinations())
            if not self.marking.behind:
                try:
                    ready, given_up = await self.lease_free()
                except DATABASE_TROUBLE as error:
                    if not outages:
                        log.warning("relay.database_away", error=told(error))
                    outages += 1
                    await pause(stop, self._outagepause(outages))
                    continue
                if outages:
                    log.info("relay.database_back", failures=outages)
                outages = 0
                for one in ready:
                    calls.create_task(self.call_from(one, stop=stop))
                if given_up:
                    continue  # their slots are still free
            await pause(self.wake, self._rest(took=self._edges.clock() - began))
        ahead.drop_all()

    async def lease_free(self) -> tuple[list[Ready], list[GivenUp]]:
        """Lease for every free slot; each of them is taken until its calls have ended."""
        return await self._taking.take(lambda: self.marking.ended)

    async def call_from(self, ready: Ready, *, stop: asyncio.Event) -> None:
        """Use one slot: for this call, and for those that wait for it."""
        following: Ready | None = ready
        while following is not None:
            await self.attempt(following, stop=stop)
            if self.marking.behind:  # what is called and cannot be marked would be called again
                self._taking.ahead.drop_all()
            following = self._release(following.leased.destination)
            # What several answers set free goes out together, with one look at the sockets.
            await asyncio.sleep(0)

    async def attempt(self, ready: Ready, *, stop: asyncio.Event) -> None:
        """Make the one call that this lease allows, unless it is too late for it."""
        leased, asked_at = ready
        destination = self._destinations[leased.destination]
        began = self._edges.clock()
        last_moment = self._policy.lease - destination.timeout
        late = began - asked_at >= last_moment.total_seconds() - LEASE_SLACK
        if stop.is_set() or late:
            log.info("relay.released", entry=str(leased.id), attempt=leased.attempt, late=late)
            self.marking.add(leased)
            return

        self._edges.point("relay-before-send")
        result = await call(destination, leased)
        self._edges.point("relay-after-send")

        ended = self._edges.clock()
        before = Before(
            idempotent=leased.idempotent,
            maybe_sent=leased.maybe_sent,
            last_attempt=leased.tries >= destination.max_attempts,
            refusals=leased.refusals,
        )
        now = leased.leased_at + timedelta(seconds=ended - asked_at)  # the database's clock
        ruling = verdict(result, destination.rules, before, now=now)
        jitter = self._edges.random()
        mark = mark_of(leased, ruling, self._policy.backoff, jitter=jitter, result=result)
        self.marking.add(mark)
        seconds = ended - began
        # What could not have been leased ahead does not make a destination quick.
        repeatable = leased.idempotent and not before.last_attempt
        if mark.seen is not None:
            usual = seconds if repeatable else UNKNOWN
            self._taking.ahead.went(mark.seen, seconds=usual)
        self._edges.metrics(tell(leased, ruling, seconds=seconds))

    def _rest(self, *, took: float) -> float:
        """How long to wait for a hint before the next turn, in seconds."""
        poll = self._policy.poll.total_seconds()
        rest = rest_before(self._taking.next_window, poll=poll, took=took)
        waits = (rest, self._taking.soonest, self._taking.ahead.overdue_in(self._edges.clock()))
        return min(wait for wait in waits if wait is not None)

    def _release(self, destination: str) -> Ready | None:
        following = self._taking.release(destination)
        if self._taking.is_worth_a_turn(destination):
            if following is None and self._taking.has_many_free(destination):
                self.wake.set()
            else:
                self.wake.set_soon()  # a lease costs about as much for one call as for ten
        return following

    def _give_back(self, unsent: Sequence[Leased]) -> None:
        """What was leased ahead is not to be called by us now."""
        if unsent:
            log.info("relay.given_back", calls=len(unsent))
        for one in unsent:
            self.marking.add(one)

    def _on_written(self, batch: Sequence[Mark | Leased]) -> None:
        again = {one.destination for one in batch if isinstance(one, Leased)}
        self._taking.due_again(again)
        if again or any(one.ordered or was_probe(one) for one in batch):
            self.wake.set()  # what was given back, or waited for it, may go now

    def _outagepause(self, outages: int) -> float:
        grown = self._policy.poll.total_seconds() * 2.0 ** min(outages, 30)
        return min(grown, LONGEST_OUTAGE_PAUSE)


async def _wake_on(event: asyncio.Event, wake: asyncio.Event, *, again: bool = True) -> None:
    while True:
        await event.wait()
        wake.set()
        if not again:
            return
        event.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How eagerly to look, how long a lease is, and how patiently to try again."""

    poll: timedelta
    lease: timedelta
    backoff: Backoff
