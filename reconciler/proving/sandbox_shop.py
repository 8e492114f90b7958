"""A pretend shop that people play with: they change orders, and lose or repeat what tells of it."""

import asyncio
import hashlib
import hmac
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from reconciler.proving.misbehaving_http import Answer, Request
from reconciler.proving.pretend_shop import stamp

PAGE = 50
REMEMBERED = 200  #: deliveries that `GET /webhooks` shows
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0  #: seconds between two attempts of a webhook
LONGEST_DELAY = 3600.0  #: seconds
FATES = ("sent", "lost", "repeated", "late")
STATUSES = ("addressed", "paid", "shipped", "delivered")
LATE = 15.0  #: seconds

HELP = {
    "POST /orders": 'a new order: {"amount": 4200}',
    "POST /orders/ID": 'changes it: {"status": "paid", "paid": true}',
    "POST /orders/ID/refunds": 'a refund, which is a fact and no state: {"amount": 100}',
    "POST /orders/ID/again": "sends its last webhook once more",
    "DELETE /orders/ID": "deletes it",
    "POST /happen": 'lets that many things happen by the seed: {"events": 20}',
    "?webhook=": "with each of these: sent, lost, repeated, late (or &delay=SECONDS)",
    "POST /trouble": 'shares of the webhooks of /happen: {"lost": 0.2, "repeated": 0.3}',
    "GET /orders": "what the shop holds",
    "GET /webhooks": "what it sent, and what it was answered",
}


def not_kept() -> None:
    """What happens is not kept, until somebody says where."""


@dataclass(kw_only=True)
class Shop:
    """Orders, the webhooks that still have to be delivered, and those that were."""

    seed: int
    target: str  #: where webhooks go
    secret: bytes
    token: str
    save: Callable[[], None] = not_kept
    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    pending: dict[str, dict[str, Any]] = field(default_factory=dict)  #: webhooks by event id
    last: dict[str, dict[str, Any]] = field(default_factory=dict)  #: of each order
    trouble: dict[str, float] = field(default_factory=dict)
    events: int = 0
    created: int = 0
    sent: list[dict[str, Any]] = field(default_factory=list)
    telling: set[asyncio.Task[None]] = field(default_factory=set)

    def state(self) -> dict[str, Any]:
        """What must outlive a restart: our database would notice a shop that forgot."""
        kept = ("orders", "pending", "last", "trouble", "events", "created")
        return {name: getattr(self, name) for name in kept}

    async def answer(self, request: Request) -> Answer:
        """The API under /v1, as a sender has one; the rest is for the people who play."""
        if request.path.startswith("/v1/"):
            if request.headers.get("authorization") != f"Bearer {self.token}":
                return Answer(status=401, body={"error": "the token is wrong"})
            return self.listed(request)
        try:
            return Answer(body=self.play(request))
        except LookupError as error:
            return Answer(status=404, body={"error": f"there is no {error.args[0]}"})
        except (ValueError, TypeError) as error:
            return Answer(status=400, body={"error": str(error), "help": HELP})

    def listed(self, request: Request) -> Answer:
        if request.path != "/v1/orders":
            found = self.orders.get(request.path.removeprefix("/v1/orders/"))
            return Answer(body=found) if found else Answer(status=404, body={"error": "unknown"})
        since = request.query.get("updated_since", "")
        after = tuple(request.query.get("cursor", "|").split("|", 1))
        places = sorted(
            (order["updated_at"], key)
            for key, order in self.orders.items()
            if order["updated_at"] >= since
        )
        here = [place for place in places if place > after][:PAGE]
        more = bool(here) and here[-1] != places[-1]
        items = [self.orders[key] for _, key in here]
        return Answer(body={"data": items, "next_cursor": "|".join(here[-1]) if more else None})

    def play(self, request: Request) -> Any:  # noqa: C901, PLR0911 - a line for each of HELP
        """One of HELP. Raises ValueError for what makes no sense, LookupError for no such order."""
        given = json.loads(request.body) if request.body.strip() else {}
        if not isinstance(given, dict):
            raise ValueError("the body is no JSON object")  # noqa: TRY004 - of the request
        fate = request.query.get("webhook", "late" if "delay" in request.query else "sent")
        if fate not in FATES:
            raise ValueError(f"webhook={fate}: it is one of {', '.join(FATES)}")
        delay = float(request.query.get("delay", LATE)) if fate == "late" else 0.0
        if not 0.0 <= delay <= LONGEST_DELAY:
            raise ValueError(f"delay={delay:g}: seconds, up to {LONGEST_DELAY:g}")
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["orders"]:
                return {"items": list(self.orders.values()), "next": None}
            case "GET", ["webhooks"]:
                return {"items": self.sent, "pending": list(self.pending), "next": None}
            case "POST", ["orders"]:
                return self.create(given, fate=fate, delay=delay)
            case "POST", ["orders", key]:
                return self.change(key, given, fate=fate, delay=delay)
            case "POST", ["orders", key, "refunds"]:
                return self.refund(key, given, fate=fate, delay=delay)
            case "POST", ["orders", key, "again"]:
                return self.tell(self.last[key], fate=fate, delay=delay)
            case "DELETE", ["orders", key]:
                return self.delete(key, fate=fate, delay=delay)
            case "POST", ["happen"]:
                return {"items": self.happen(int(given.get("events", 10))), "next": None}
            case "POST", ["trouble"]:
                self.trouble = {name: float(given.get(name, 0)) for name in FATES[1:]}
                return self.trouble
        return {"help": HELP}

    def create(self, given: dict[str, Any], *, fate: str, delay: float = 0.0) -> dict[str, Any]:
        self.created += 1
        key = f"ord_{self.created}"
        now = stamp()
        draw = random.Random(f"{self.seed} {key}")  # noqa: S311 - a seed, not a secret
        self.orders[key] = {
            "amount": draw.randrange(100, 100_000),
            "currency": draw.choice(["EUR", "USD", "CHF"]),
            "status": "created",
            "paid": False,
            **given,
            "id": key,
            "version": 1,
            "created_at": now,
            "updated_at": now,
        }
        return self.tell_order(key, "order.created", fate=fate, delay=delay)

    def change(
        self, key: str, given: dict[str, Any], *, fate: str, delay: float = 0.0
    ) -> dict[str, Any]:
        order = self.held(key)
        fixed = {
            "id": key,
            "version": order["version"] + 1,
            "created_at": order["created_at"],
            "updated_at": stamp(),
        }
        self.orders[key] = {**order, **given, **fixed}
        status = self.orders[key]["status"]
        return self.tell_order(key, f"order.{status}", fate=fate, delay=delay)

    def delete(self, key: str, *, fate: str, delay: float = 0.0) -> dict[str, Any]:
        self.orders[key] = {**self.held(key), "version": self.held(key)["version"] + 1}
        told = self.tell_order(key, "order.deleted", fate=fate, delay=delay)
        del self.orders[key]
        self.save()
        return told

    def refund(
        self, key: str, given: dict[str, Any], *, fate: str, delay: float = 0.0
    ) -> dict[str, Any]:
        order = self.held(key)
        data = {"amount": 100, **given, "order_id": key, "currency": order["currency"]}
        return self.tell(self.event("refund.succeeded", data), fate=fate, delay=delay)

    def happen(self, events: int) -> list[dict[str, Any]]:
        """Orders come and change, drawn by the seed and the number of what happened before."""
        done = []
        for _ in range(max(0, min(events, 1000))):
            draw = random.Random(f"{self.seed} {self.events}")  # noqa: S311 - a seed, not a secret
            fate = next(
                (name for name in FATES[1:] if draw.random() < self.trouble.get(name, 0.0)), "sent"
            )
            alive = [key for key, one in self.orders.items() if one["status"] != STATUSES[-1]]
            if not alive or (len(alive) < 6 and draw.random() < 0.4):
                done.append(self.create({}, fate=fate, delay=LATE))
                continue
            key = draw.choice(alive)
            now = self.orders[key]["status"]
            following = STATUSES[STATUSES.index(now) + 1] if now in STATUSES else STATUSES[0]
            paid = self.orders[key]["paid"] or following == "paid"
            given = {"status": following, "paid": paid}
            done.append(self.change(key, given, fate=fate, delay=LATE))
        return done

    def held(self, key: str) -> dict[str, Any]:
        if key not in self.orders:
            raise LookupError(key)
        return self.orders[key]

    def tell_order(self, key: str, type_: str, *, fate: str, delay: float) -> dict[str, Any]:
        order = self.orders[key]
        data = {("order_id" if name == "id" else name): value for name, value in order.items()}
        self.last[key] = self.event(type_, data)
        return {**self.tell(self.last[key], fate=fate, delay=delay), "order": order}

    def event(self, type_: str, data: dict[str, Any]) -> dict[str, Any]:
        self.events += 1
        id_ = f"evt_{self.events}"
        return {"id": id_, "type": type_, "created_at": stamp(), "data": data}

    def tell(self, event: dict[str, Any], *, fate: str, delay: float = 0.0) -> dict[str, Any]:
        """Send, lose, repeat or delay the webhook of *event*."""
        if fate != "lost":
            self.pending[event["id"]] = event
            self.send(event, delay=delay if fate == "late" else 0.0)
        if fate == "repeated":
            self.send(event, delay=0.0)
            self.send(event, delay=2.0)
        self.save()
        return {"event_id": event["id"], "type": event["type"], "webhook": fate}

    def send(self, event: dict[str, Any], *, delay: float) -> None:
        task = asyncio.create_task(self.deliver(event, delay=delay))
        self.telling.add(task)
        task.add_done_callback(self.telling.discard)

    def resume(self) -> None:
        """Go on with the webhooks that nobody had taken when we were stopped."""
        for event in list(self.pending.values()):
            self.send(event, delay=0.0)

    async def deliver(self, event: dict[str, Any], *, delay: float) -> None:
        """Deliver one webhook as often as it takes, as senders do."""
        await asyncio.sleep(delay)
        body, pause = json.dumps(event).encode(), FIRST_PAUSE
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            while True:
                status, said = await self.post(client, body)
                self.sent.append({"event_id": event["id"], "at": stamp(), "status": status, **said})
                del self.sent[:-REMEMBERED]
                if 200 <= status < 300:
                    break
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        self.pending.pop(event["id"], None)
        self.save()

    async def post(self, client: httpx.AsyncClient, body: bytes) -> tuple[int, dict[str, Any]]:
        moment = str(int(time.time()))
        mac = hmac.new(self.secret, moment.encode() + b"." + body, hashlib.sha256).hexdigest()
        headers = {"X-Signature": mac, "X-Signature-Timestamp": moment}
        try:
            answer = await client.post(self.target, content=body, headers=headers)
            return answer.status_code, {"outcome": answer.json().get("outcome")}
        except (httpx.HTTPError, ValueError) as error:
            return 0, {"error": type(error).__name__}
