"""A sender that goes on and on: it repeats what was not answered, and remembers what was."""

import asyncio
import json
import random
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from tests.world import Daemon, World, order_event, refund_event

AT_ONCE = 4  #: deliveries under way


@dataclass(kw_only=True)
class Load:
    """What was sent, and what became of it."""

    world: World
    random: random.Random
    unanswered: deque[bytes] = field(default_factory=deque)
    acknowledged: dict[str, str] = field(default_factory=dict)
    """The outcome that was answered first, by event id."""
    answers: Counter[int] = field(default_factory=Counter)
    repeated: int = 0
    made: int = 0

    @asynccontextmanager
    async def towards(self, daemon: Daemon) -> AsyncIterator[None]:
        """Deliver to *daemon* for as long as the block runs, whether it answers or not."""
        senders = [asyncio.create_task(self.send_to(daemon)) for _ in range(AT_ONCE)]
        try:
            yield
        finally:
            for sender in senders:
                sender.cancel()
            ended = await settled(senders)
            assert [] == ended, ended

    async def send_to(self, daemon: Daemon) -> None:
        while daemon.process.returncode is None:
            if not daemon.webhooks:
                await asyncio.sleep(0.02)
                continue
            await self.send_one()
            await asyncio.sleep(0.005)

    async def send_one(self) -> None:
        body = self.next_one()
        try:
            answer = await self.world.deliver(body)
        except (httpx.TransportError, asyncio.CancelledError) as error:
            self.unanswered.append(body)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        self.answers[answer.status_code] += 1
        if answer.status_code != 200:
            self.unanswered.append(body)
            return
        told = answer.json()
        self.acknowledged.setdefault(told["event_id"], told["outcome"])

    def next_one(self) -> bytes:
        """What was not answered, as it was; else something new."""
        if self.unanswered and self.random.random() < 0.5:
            self.repeated += 1
            return self.unanswered.popleft()
        self.made += 1
        number, sender = self.made, self.world.sender
        match self.random.random():
            case chance if chance < 0.55:
                key = f"ord_{number}"
                created = order_event(f"evt_{number}_new", sender.sets(key, status="created"))
                paid = order_event(f"evt_{number}", sender.sets(key, status="paid", paid=True))
                self.unanswered.append(json.dumps(created).encode())
                event = paid
            case chance if chance < 0.85:
                event = refund_event(f"evt_{number}", order_id=f"ord_{number}")
            case chance if chance < 0.95:  # without state: it has to be read
                key = self.random.choice([*sender.orders, "ord_none"])
                event = order_event(f"evt_{number}", {"order_id": key})
            case _:  # your table will not take it
                cursed = {"order_id": f"cursed_{number}", "version": 1, "status": "cursed"}
                event = order_event(f"evt_{number}", cursed)
        return json.dumps(event).encode()

    async def drained(self) -> None:
        """Repeat until nothing is unanswered."""
        async with asyncio.timeout(60):
            while self.unanswered:
                body = self.unanswered.popleft()
                answer = await self.world.deliver(body)
                if answer.status_code != 200:
                    self.unanswered.append(body)
                    continue
                told = answer.json()
                self.acknowledged.setdefault(told["event_id"], told["outcome"])


async def settled(tasks: list[asyncio.Task[None]]) -> list[BaseException]:
    """What other than their cancellation ended *tasks*."""
    await asyncio.wait(tasks)
    return [error for task in tasks if not task.cancelled() and (error := task.exception())]
