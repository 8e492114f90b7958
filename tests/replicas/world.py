"""The world around the replicas: a sender and a destination that know which of them called."""

import asyncio
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import make_url

from reconciler.proving.misbehaving_http import Answer, Request, listen
from tests import world as story
from tests.replicas.balancer import Balancer, balancing
from tests.replicas.plan import Step
from tests.world import PLAIN, TABLES, Daemon, order_event, refund_event, signed

INTERVAL = 1.0  #: seconds between two scans
IN_FLIGHT = 32  #: deliveries at the same time
ATTEMPTS = 200  #: of a sender that means it
PATIENT = 15.0  #: seconds after which the sender counts a delivery as unanswered

CONFIGURATION = (
    story.CONFIGURATION.split("[destinations.payments]", maxsplit=1)[0].replace(
        'lease = "10s"', 'lease = "4s"'
    )
    + """\
[destinations.payments]
base_url = "@destination@"
bearer = "env:PAYMENTS_TOKEN"
timeout = "2s"
max_attempts = 40
allow_private = ["127.0.0.0/8"]

[destinations.letters]
base_url = "@destination@"
bearer = "env:PAYMENTS_TOKEN"
timeout = "2s"
idempotent = false
allow_private = ["127.0.0.0/8"]

[effects.capture]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /v1/charges"
json = { amount = "{{ state.amount }}", reference = "capture {{ key }}" }
idempotency_key = "capture:{{ key }}"

[effects.close]
on_change = ["shop:order"]
becomes = "state.status == 'closed'"
destination = "payments"
request = "POST /v1/closings"
json = { reference = "close {{ key }}" }

[effects.receipt]
on = ["shop:refund.succeeded"]
destination = "payments"
request = "POST /v1/receipts"
json = { reference = "receipt {{ event_id }}" }
idempotency_key = "{{ event_id }}:receipt"

[effects.note]
on = ["shop:refund.succeeded"]
destination = "letters"
request = "POST /v1/notes"
json = { reference = "note {{ event_id }}" }
idempotency_key = "{{ event_id }}:note"
"""
)


@dataclass
class Sender(story.Sender):
    """The pretend sender, which also keeps who asked for a listing, and when."""

    passes: list[tuple[float, str, str]] = field(default_factory=list)
    """When a listing was asked for from its first page, by whom, and which kind of scan it was."""

    async def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        if request.path == "/v1/orders" and "cursor" not in request.query:
            mode = "incremental" if "updated_since" in request.query else "full"
            self.passes.append((time.monotonic(), caller(request), mode))
        if self.before is not None:
            await self.before(request)
        if request.path == "/v1/orders":
            return self.broken or Answer(body=self.page(request))
        order = self.orders.get(request.path.removeprefix("/v1/orders/"))
        return Answer(body=order) if order else Answer(status=404, body={})


@dataclass
class Destination(story.Destination):
    """Performs each key once; letters, where it knows no keys, each time that it is asked to."""

    by: Counter[str] = field(default_factory=Counter)
    """Calls, by the replica that made them."""
    answers: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    before: Any = None
    """Awaited before any call is looked at."""

    async def answer(self, request: Request) -> Answer:
        self.calls.append(request)
        self.by[caller(request)] += 1
        if self.before is not None:
            await self.before(request)
        key, note = request.headers["idempotency-key"], request.path == "/v1/notes"
        trouble = 1.0 if note else self.trouble(key)
        if trouble < 0.05:
            return Answer(status=503, body={})
        if note or key not in self.answers:
            self.answers[key] = len(self.answers)
            self.performed.append((key, request.json()))
        return Answer(body={"id": self.answers[key]}, lost=trouble < 0.15)

    def trouble(self, key: str) -> float:
        """What the first call under *key* meets, drawn from the seed; later ones meet none."""
        if [call.headers["idempotency-key"] for call in self.calls].count(key) > 1:
            return 1.0
        digest = hashlib.sha256(f"{self.seed} {key}".encode()).digest()
        return int.from_bytes(digest[:4], "big") / 2**32


def caller(request: Request) -> str:
    """The replica that made *request*: each has credentials of its own."""
    return request.headers["authorization"].removeprefix("Bearer ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What one attempt of one delivery came to, as its sender saw it; status 0: no answer."""

    event_id: str
    attempt: int
    status: int
    outcome: str


@dataclass
class World(story.World):
    """Replicas behind a balancer, and a sender that means it."""

    balancer: Balancer = field(default_factory=Balancer)
    answered: list[Answered] = field(default_factory=list)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_FLIGHT))

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PAYMENTS_TOKEN": "a person"}

    async def replica(self, name: str, *words: str, **environment: str) -> Daemon:
        """Start the replica *name* and send it deliveries, if it takes any."""
        credentials = {"PAYMENTS_TOKEN": name, "SHOP_TOKEN": name}
        daemon = await self.start(*words, **credentials, **environment)
        if daemon.webhooks:
            self.balancer.put(name, daemon.webhooks)
        return daemon

    async def emit(self, steps: Sequence[Step], *, pace: float) -> None:
        """Let *steps* happen, one every *pace* seconds; deliver until all is acknowledged."""
        async with asyncio.TaskGroup() as deliveries:
            for step in steps:
                event = self.event(step)
                for delay in step.delays:
                    deliveries.create_task(self.insist(event, delay=delay))
                await asyncio.sleep(pace)

    def event(self, step: Step) -> Mapping[str, Any]:
        if step.facts is None:
            return refund_event(step.event_id, order_id=step.order, amount=step.amount)
        facts = dict(step.facts)
        if step.order not in self.sender.orders:
            facts["amount"] = step.amount
        data = self.sender.sets(step.order, **facts)
        return order_event(step.event_id, data, type_=f"order.{facts['status']}")

    async def insist(self, event: Mapping[str, Any], *, delay: float) -> None:
        """Deliver *event* until it is acknowledged."""
        await asyncio.sleep(delay)
        for attempt in range(1, ATTEMPTS + 1):
            async with self.slots:
                status, outcome = await self.try_once(event)
            self.answered.append(
                Answered(event_id=event["id"], attempt=attempt, status=status, outcome=outcome)
            )
            if 200 <= status < 300:
                return
            await asyncio.sleep(random.random() * min(3.0, 0.1 * 2**attempt))
        raise AssertionError(f"{event['id']} was never acknowledged")

    async def try_once(self, event: Mapping[str, Any]) -> tuple[int, str]:
        body = json.dumps(event).encode()
        target = f"{self.balancer.url}/webhooks/shop"
        try:
            answer = await self.http.post(target, content=body, headers=signed(body))
        except httpx.HTTPError as error:
            return 0, type(error).__name__
        outcome = answer.json()["outcome"] if answer.status_code == 200 else ""
        return answer.status_code, outcome

    @property
    def acknowledged(self) -> set[str]:
        """The ids of the events that were answered with success."""
        return {one.event_id for one in self.answered if 200 <= one.status < 300}

    @property
    def unanswered(self) -> list[Answered]:
        """Attempts that were not answered with success."""
        return [one for one in self.answered if not 200 <= one.status < 300]


@asynccontextmanager
async def a_world(
    directory: Path,
    database_url: str,
    *,
    seed: int,
    configuration: str = CONFIGURATION,
    answer_within: float = PATIENT,
) -> AsyncIterator[World]:
    """A world with everything but the replicas."""
    sender, destination = Sender(), Destination(seed=seed)
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=0)
    async with balancing() as balancer:
        api, pay = await listen(sender.answer), await listen(destination.answer)
        database = make_url(database_url)._replace(password=None)
        places = {
            "@database@": database.render_as_string(hide_password=False),
            "@sender@": api.url,
            "@destination@": pay.url,
            "@interval@": f"{INTERVAL:.0f}s",
        }
        for mark, place in places.items():
            configuration = configuration.replace(mark, place)
        config = directory / "reconciler.toml"
        config.write_text(configuration)
        http = httpx.AsyncClient(
            trust_env=False, verify=PLAIN, timeout=answer_within, limits=limits
        )
        world = World(
            directory=directory,
            database_url=database_url,
            sender=sender,
            destination=destination,
            config=config,
            http=http,
            balancer=balancer,
        )
        await world.rows(TABLES)
        try:
            yield world
        finally:
            await http.aclose()
            for daemon in world.daemons:
                if daemon.process.returncode is None:
                    daemon.process.kill()
                    await daemon.process.wait()
            await api.close()
            await pay.close()
