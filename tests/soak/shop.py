"""A pretend shop whose orders change for ever, that tells of it and now and then does not."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from reconciler.proving import demo_world
from reconciler.proving.misbehaving_http import Answer, Request
from reconciler.proving.pretend_shop import stamp
from tests.soak.posting import Poster
from tests.soak.trouble import (
    CUT,
    HUNG_UP,
    LATE,
    LEFT,
    LOST,
    ORDERS,
    PAGES,
    REFUNDS,
    REPEATED,
    Trouble,
)
from tests.world import eventually, signed

ORDERS_HELD = 500
PAGE = 100
LONG_AGO = "2026-01-01T00:00:00.000000Z"  #: what there was before anybody looked fires nothing
SECRET = demo_world.SECRETS["PRETEND_SECRET"]
TOKEN = demo_world.SECRETS["PRETEND_TOKEN"]
REFUND, UNKNOWN, JUNK = 0.30, 0.05, 0.02  #: shares of what happens; the rest are orders
REPEATED_WITHIN = 30.0  #: seconds
UNDER_WAY = 1500  #: things that are being told of at a time
PATIENCE = 60.0  #: seconds until a delivery that nobody took counts as refused


@dataclass
class Shop:
    """Orders, what was told of them, and what must have come of it."""

    fate: random.Random
    trouble: Trouble
    performed: Callable[[str], bool]  #: whether the destination has done what a reference names
    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    expected: set[str] = field(default_factory=set)  #: references of effects
    refunds: set[str] = field(default_factory=set)  #: ids of events
    refused: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)  #: seconds, since somebody took them
    deliveries: int = 0
    events: int = 0

    def __post_init__(self) -> None:
        for number in range(ORDERS_HELD):
            key = f"ord_{number}"
            self.orders[key] = {
                "id": key,
                "version": 1,
                "status": "new",
                "amount": 100,
                "created_at": LONG_AGO,
                "updated_at": LONG_AGO,
            }
            self.idle.append(key)

    async def answer(self, request: Request) -> Answer:
        """The API: the listing, oldest change first, and one order."""
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Answer(status=401, body={})
        if request.path != "/v1/orders":
            order = self.orders.get(request.path.removeprefix("/v1/orders/"))
            return Answer(body=order) if order else Answer(status=404, body={})
        kind = self.trouble.draw(PAGES)
        if kind == HUNG_UP:
            return Answer(lost=True)
        return Answer(status=500, body={}) if kind else Answer(body=self.page(request))

    def page(self, request: Request) -> dict[str, Any]:
        since = request.query.get("updated_since", "")
        after = tuple(request.query.get("cursor", "|").split("|", 1))
        found = sorted(
            (order["updated_at"], order["id"])
            for order in self.orders.values()
            if order["updated_at"] >= since
        )
        here = [place for place in found if place > after][:PAGE]
        more = bool(here) and here[-1] != found[-1]
        return {
            "data": [self.orders[key] for _, key in here],
            "next_cursor": "|".join(here[-1]) if more else None,
        }

    async def live(self, *, target: str, rate: float, seconds: float) -> None:
        """Let *rate* things a second happen for so long; returns when all is told of."""
        began = time.monotonic()
        poster = Poster(target=target)
        teller = Teller(shop=self, poster=poster)
        under_way: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as telling:
            skipped = 0
            while (now := time.monotonic() - began) < seconds:
                while self.events + skipped < now * rate:
                    if len(under_way) >= UNDER_WAY:
                        skipped += 1  # nobody would have told of more: the rate is not kept
                        continue
                    self.events += 1
                    task = telling.create_task(self.happen(teller, number=self.events))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                await asyncio.sleep(0.01)
        poster.close()

    async def happen(self, teller: "Teller", *, number: int) -> None:
        """One thing: most often an order changes."""
        draw = self.fate.random()
        if draw < JUNK:
            await teller.tell(f"junk_{number}", json.dumps({"junk": number}).encode())
        elif draw < JUNK + UNKNOWN:
            await teller.tell_event(f"evt_{number}", "shop.pinged", {})
        elif draw < JUNK + UNKNOWN + REFUND or not self.idle:
            await self.refund(teller, f"evt_{number}")
        else:
            await self.change(teller, f"evt_{number}")

    async def refund(self, teller: "Teller", event_id: str) -> None:
        self.refunds.add(event_id)
        self.expected.add(f"receipt {event_id}")
        data = {"order_id": self.fate.choice(list(self.orders)), "amount": 7}
        await teller.tell_event(
            event_id, "refund.succeeded", data, trouble=self.trouble.draw(REFUNDS)
        )

    async def change(self, teller: "Teller", event_id: str) -> None:
        """A new version of an order, which stays as it is until we know that it was noticed."""
        key = self.idle.pop(self.fate.randrange(len(self.idle)))
        order = self.orders[key]
        version = order["version"] + 1
        order = {**order, "version": version, "status": f"s{version}", "updated_at": stamp()}
        self.orders[key] = order
        reference = f"capture {key} {version}"
        self.expected.add(reference)
        data = {("order_id" if name == "id" else name): value for name, value in order.items()}
        trouble = self.trouble.draw(ORDERS)
        if trouble in {LOST, LATE}:
            await self.noticed(reference)
        if trouble != LOST:
            await teller.tell_event(event_id, "order.updated", data, trouble=trouble)
        self.idle.append(key)

    async def noticed(self, reference: str) -> None:
        """Wait until a scan has made good what we did not tell; it may take for ever."""

        async def is_performed() -> bool:
            return self.performed(reference)

        with suppress(AssertionError):
            await eventually(is_performed, within=PATIENCE)

    def take_latencies(self) -> list[float]:
        taken, self.latencies = self.latencies, []
        return taken


@dataclass
class Teller:
    """Delivers webhooks until they are acknowledged, as badly as it is told to."""

    shop: Shop
    poster: Poster

    async def tell_event(
        self, event_id: str, type_: str, data: dict[str, Any], *, trouble: str | None = None
    ) -> None:
        event = {"id": event_id, "type": type_, "created_at": stamp(), "data": data}
        body = json.dumps(event).encode()
        if trouble in {CUT, LEFT}:
            await self.poster.break_off(body, headers_of(body), whole=trouble == LEFT)
        await self.tell(event_id, body)
        if trouble == REPEATED:
            await asyncio.sleep(self.shop.fate.random() * REPEATED_WITHIN)
            await self.tell(event_id, body)

    async def tell(self, event_id: str, body: bytes) -> None:
        """Send it until somebody takes it."""
        shop, began = self.shop, time.monotonic()
        while time.monotonic() - began < PATIENCE:
            asked = time.monotonic()
            shop.deliveries += 1
            status = await self.poster.post(body, headers_of(body))
            if status == 200:
                shop.latencies.append(time.monotonic() - asked)
                return
            await asyncio.sleep(0.2 + shop.fate.random())
        shop.refused.append(f"{event_id}: {status}")


def headers_of(body: bytes) -> dict[str, str]:
    return signed(body, secret=SECRET)
