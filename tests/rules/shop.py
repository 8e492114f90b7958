"""A shop's configuration, and causes as the ledger would hand them over."""

import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import State
from reconciler.errors import ConfigError
from reconciler.ledger.event import Change, Event, Observation, Origin
from reconciler.ledger.projection import compile_kind
from reconciler.ledger.reactions import Cause
from reconciler.ledger.rules import Rules, compile_rules
from reconciler.settings.models import Settings

SHOP = """
[senders.shop.signature]
header = "X-Signature"

[senders.shop.event]
id = "id"
type = "type"
occurred_at = "created_at"

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
fields = { status = "status", paid = "paid", amount = "amount" }
deleted_on = ["order.deleted"]

[senders.shop.resources.order.list]
path = "/v1/orders"
items = "data"
changed_at = "updated_at"

[senders.shop.resources.order.get]
path = "/v1/orders/{{ key }}"

[destinations.payments]
base_url = "https://api.payments.example"
ordered = true

[destinations.mailer]
base_url = "https://mail.example"
idempotent = false
"""

SECOND_SHOP = """
[senders.market.signature]
header = "X-Signature"

[senders.market.event]
id = "id"
type = "type"
"""

CAPTURE = """
[effects.capture]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /v1/charges"
json = { amount = "{{ state.amount }}", reference = "{{ key }}" }
"""

RECEIPT = """
[effects.receipt]
on = ["shop:refund.succeeded"]
destination = "payments"
request = "POST /v1/receipts"
json = { order = "{{ body.data.order_id }}" }
"""


def settings_for(text: str) -> Settings:
    return Settings.model_validate(tomllib.loads(SHOP + text, parse_float=Decimal))


def rules_for(text: str, handlers: Any = ()) -> Rules:
    settings = settings_for(text)
    readers = {
        name: {
            kind: compile_kind(name, kind, resource) for kind, resource in sender.resources.items()
        }
        for name, sender in settings.senders.items()
    }
    return compile_rules(settings, readers, handlers)


def problems_of(text: str, handlers: Any = ()) -> dict[str, str]:
    """What is wrong with a configuration, by key; fails when nothing is."""
    with pytest.raises(ConfigError) as caught:
        rules_for(text, handlers)
    problems = caught.value.problems
    assert len({one.key for one in problems}) == len(problems), problems
    return {one.key: one.message for one in problems}


def change(
    *,
    version: int = 7,
    state: Mapping[str, Any] | None = None,
    previous: Mapping[str, Any] | None = None,
    became: Change = Change.UPDATED,
    origin: Origin = Origin.WEBHOOK,
    event_id: str = "evt_7",
    **more: Any,
) -> Cause:
    """Order ord_42 became newer."""
    return Cause(
        what="change",
        revision=version,
        event=Event(
            sender="shop",
            event_id=event_id,
            type="order.updated",
            origin=origin,
            body={"id": event_id},
            observation=observed(version, state, **more),
            previous=previous,
            change=became,
        ),
    )


def observed(version: int, state: Mapping[str, Any] | None, **more: Any) -> Observation:
    return Observation(
        kind="order",
        key="ord_42",
        version=version,
        state={"status": "paid", "paid": True, "amount": 1250} if state is None else state,
        deleted="deleted" in more,
        changed_at=more.get("changed_at"),
    )


def fact(
    event_id: str = "evt_1",
    *,
    type: str = "refund.succeeded",  # noqa: A002
    body: Mapping[str, Any] | None = None,
    stale: bool = False,
    **more: Any,
) -> Cause:
    """The shop says that something happened."""
    return Cause(
        what="fact",
        stale=stale,
        event=Event(
            sender=more.pop("sender", "shop"),
            event_id=event_id,
            type=type,
            origin=Origin.WEBHOOK,
            body={"id": event_id, "data": {"order_id": "ord_42"}} if body is None else body,
            **more,
        ),
    )


def ago(**duration: float) -> datetime:
    return datetime.now(UTC) - timedelta(**duration)


async def rows(connection: AsyncConnection, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await connection.exec_driver_sql(sql)]


PENDING, SKIPPED = State.PENDING, State.SKIPPED
