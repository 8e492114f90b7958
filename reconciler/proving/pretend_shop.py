"""What the pretend sender holds: orders that change, and the events that tell of it."""

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

LIFE = ("created", "addressed", "paid", "shipped", "delivered")
ACTIVE = 6  #: orders that change at the same time, so that their events overtake each other


@dataclass(slots=True)
class Shop:
    """Orders by id, and the events that were emitted about them, from one seed."""

    fate: random.Random
    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    active: list[str] = field(default_factory=list)
    events: int = 0

    def step(self) -> tuple[dict[str, Any], bool]:
        """
        Let one thing happen.

        Returns the event, and whether it is the last one about its order: what is lost or
        late then can only be made good by reading the listing.
        """
        if self.active and self.fate.random() < 0.15:
            return self.refund(self.fate.choice(self.active)), False
        if len(self.active) < ACTIVE:
            order_id = f"ord_{len(self.orders) + 1}"
            self.active.append(order_id)
            self.orders[order_id] = {
                "id": order_id,
                "version": 0,
                "amount": self.fate.randrange(100, 100_000),
                "currency": self.fate.choice(["EUR", "USD", "CHF"]),
                "created_at": stamp(),
            }
        else:
            order_id = self.fate.choice(self.active)
        order = self.orders[order_id]
        order["version"] += 1
        order["status"] = LIFE[order["version"] - 1]
        order["paid"] = order["version"] >= 3
        order["updated_at"] = stamp()
        last = order["status"] == LIFE[-1]
        if last:
            self.active.remove(order_id)
        data = {("order_id" if name == "id" else name): value for name, value in order.items()}
        return self.event(f"order.{order['status']}", data), last

    def refund(self, order_id: str) -> dict[str, Any]:
        return self.event(
            "refund.succeeded",
            {"order_id": order_id, "amount": self.fate.randrange(1, 100), "currency": "EUR"},
        )

    def event(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        self.events += 1
        return {"id": f"evt_{self.events}", "type": kind, "created_at": stamp(), "data": data}

    def listing(self, *, since: str, cursor: str, size: int = 50) -> dict[str, Any]:
        """One page of orders, oldest change first, from *since* and after *cursor*."""
        after = tuple(cursor.split("|", 1)) if cursor else ("", "")
        found = sorted(
            (order for order in self.orders.values() if order["updated_at"] >= since),
            key=lambda order: (order["updated_at"], order["id"]),
        )
        page = [one for one in found if (one["updated_at"], one["id"]) > after][:size]
        more = bool(page) and page[-1] is not found[-1]
        return {
            "data": page,
            "next_cursor": f"{page[-1]['updated_at']}|{page[-1]['id']}" if more else None,
        }


def stamp() -> str:
    """Now, as the pretend sender writes times: RFC 3339, microseconds, UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
