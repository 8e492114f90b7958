"""A pretend sender: emits events, loses and repeats deliveries, and writes down every answer."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx

from reconciler.proving.history import History
from reconciler.proving.misbehaving_http import Answer, Request
from tests.history.plan import Plan, Planned
from tests.history.waiting import until
from tests.world import PLAIN

SECRET = "whispered"  # noqa: S105 - of a pretend sender
TOKEN = "listing-token"  # noqa: S105
PACE = 0.03  #: seconds between two events
PAGE = 5  #: orders of one page of the listing
LONGEST_PAUSE = 0.6  #: seconds between two attempts
CROWD = 12  #: deliveries under way, beyond which nothing new happens: on a busy machine too


@dataclass(frozen=True, slots=True, kw_only=True)
class Emitted:
    """An event as it goes out, every time with the same bytes."""

    planned: Planned
    body: bytes


class Sender:
    """
    A shop with a listing that tells of its changes at least once, or not at all.

    What it is not answered with a success it repeats, until somebody acknowledges it.
    """

    def __init__(
        self, plan: Plan, history: History, *, address: Callable[[int], str | None]
    ) -> None:
        self.plan = plan
        self.history = history
        self.address = address
        self.orders: dict[str, dict[str, Any]] = {}
        self.held: list[Emitted] = []
        self.emitted = 0
        """How many events have happened so far."""
        self.deliveries: set[asyncio.Task[None]] = set()
        self.http = httpx.AsyncClient(
            trust_env=False, verify=PLAIN, limits=httpx.Limits(max_keepalive_connections=0)
        )

    async def close(self) -> None:
        for delivery in self.deliveries:
            delivery.cancel()
        if self.deliveries:
            await asyncio.wait(self.deliveries)
        await self.http.aclose()

    async def emit(self, events: tuple[Planned, ...]) -> None:
        """
        Let *events* happen, one after the other; deliveries go on in the background.

        Nothing new happens while the first daemon is away: all trouble but that would be missed.
        """
        for planned in events:
            await self.emit_next(planned)

    async def emit_next(self, planned: Planned) -> None:
        await until(lambda: self.address(0) and len(self.deliveries) < CROWD, within=30)
        self.emit_one(planned)
        self.emitted += 1
        await asyncio.sleep(PACE)

    def emit_one(self, planned: Planned) -> None:
        moment = stamp()
        data = dict(planned.data)
        if planned.kind in ("order", "muddled"):
            held = self.orders.get(data["order_id"], {"created_at": moment})
            data |= {"created_at": held["created_at"], "updated_at": moment}
            if planned.kind == "order":
                order = {("id" if name == "order_id" else name): data[name] for name in data}
                self.orders[data["order_id"]] = order
        event = {"id": planned.id, "type": planned.type, "created_at": moment, "data": data}
        self.history.write("event", kind=planned.kind, fate=planned.fate, **event)
        emitted = Emitted(planned=planned, body=json.dumps(event).encode())
        if planned.fate == "held":
            self.held.append(emitted)
        elif planned.fate == "sent":
            self.dispatch(emitted)

    def dispatch(self, emitted: Emitted) -> None:
        for copy, delay in enumerate(emitted.planned.delays):
            delivery = asyncio.create_task(self.deliver(emitted, copy=copy, delay=delay))
            self.deliveries.add(delivery)
            delivery.add_done_callback(self.deliveries.discard)

    def tell_what_was_held(self) -> None:
        """Deliver at last what the reconciler has found out by itself."""
        while self.held:
            self.dispatch(self.held.pop())

    async def deliver(self, emitted: Emitted, *, copy: int, delay: float) -> None:
        """One copy on its way: the first is repeated until acknowledged, the others go once."""
        await asyncio.sleep(delay)
        attempt = 0
        while True:
            attempt += 1
            answered = await self.attempt(emitted, copy=copy, number=attempt)
            if copy or answered:
                return
            await asyncio.sleep(min(LONGEST_PAUSE, 0.03 * 2 ** min(attempt, 10)))

    async def attempt(self, emitted: Emitted, *, copy: int, number: int) -> bool:
        """One delivery; whether it was acknowledged."""
        event_id = emitted.planned.id
        meets = self.plan.attempt(f"{event_id}/{copy}", number)
        address = self.address(meets.replica)
        facts: dict[str, Any] = {"id": event_id, "copy": copy, "n": number, "to": meets.replica}
        if address is None:
            self.history.write("sent", **facts, answer="away")
            return False
        moment = str(int(time.time()))
        mac = hmac.new(SECRET.encode(), moment.encode() + b"." + emitted.body, hashlib.sha256)
        headers = {"X-Signature": mac.hexdigest(), "X-Signature-Timestamp": moment}
        try:
            async with asyncio.timeout(meets.patience):
                answer = await self.http.post(
                    f"{address}/webhooks/shop", content=emitted.body, headers=headers, timeout=None
                )
        except TimeoutError:
            self.history.write("sent", **facts, answer="gave_up")
            return False
        except httpx.ConnectError:
            self.history.write("sent", **facts, answer="away")
            return False
        except httpx.TransportError:
            self.history.write("sent", **facts, answer="unknown")
            return False
        outcome = answer.json().get("outcome")
        self.history.write("sent", **facts, answer=answer.status_code, outcome=outcome)
        return 200 <= answer.status_code < 300

    async def answer(self, request: Request) -> Answer:
        """The API: a listing of orders by pages, and each order by itself."""
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Answer(status=401, body={})
        if request.path == "/v1/orders":
            self.history.write("listed", since=request.query.get("updated_since"))
            return Answer(body=self.page(request.query))
        order = self.orders.get(request.path.removeprefix("/v1/orders/"))
        self.history.write("read", path=request.path)
        return Answer(body=order) if order else Answer(status=404, body={})

    def page(self, query: Mapping[str, str]) -> dict[str, Any]:
        since, start = query.get("updated_since", ""), int(query.get("cursor", "0"))
        found = [order for order in self.orders.values() if order["updated_at"] >= since]
        end = start + PAGE
        return {
            "data": found[start:end],
            "next_cursor": str(end) if end < len(found) else None,
        }


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
