"""A shop that sends events, is listed and read; the mechanics behind the stories."""

import itertools
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.database import now
from reconciler.ledger import baselines
from reconciler.ledger.batch import Result
from reconciler.ledger.commit import commit
from reconciler.ledger.event import Event, Observation, Origin
from reconciler.ledger.projection import compile_kind
from reconciler.ledger.rules import Rules, compile_rules
from reconciler.receiver.contract import SenderContract, compile_sender
from reconciler.receiver.envelope import read_delivery, rereader
from reconciler.settings.models import Settings
from reconciler.transactions import transact

SHOP = """
[senders.shop]
preset = "generic"
secrets = ["env:SHOP_SECRET"]

[senders.shop.signature]
header = "X-Signature"
timestamp_header = "X-Signature-Timestamp"
signed = "{{ timestamp }}.{{ body }}"

[senders.shop.event]
id = "id"
type = "type"
occurred_at = "created_at"

[senders.shop.api]
base_url = "https://api.shop.example"

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
created_at = "created"
fields = { status = "status", paid = "paid", amount = "amount" }
deleted_on = ["order.deleted"]
created_on = ["order.created"]
"""

LIST = """
[senders.shop.resources.order.list]
path = "/v1/orders"
items = "data"
"""

GET = """
[senders.shop.resources.order.get]
path = "/v1/orders/{{ key }}"
absent = "deleted"
"""

CAPTURE = """
[destinations.payments]
base_url = "https://api.payments.example"

[effects.capture]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /v1/charges"
json = { amount = "{{ state.amount }}", reference = "{{ key }}" }
"""

RECEIPT = """
[effects.receipt]
on = ["shop:order.paid"]
if_stale = "count"
destination = "payments"
request = "POST /v1/receipts"
json = { order = "{{ key }}" }

[effects.note]
on = ["shop:order.paid"]
if_stale = "skip"
destination = "payments"
request = "POST /v1/notes"
idempotency_key = "{{ event_id }}:note"
json = { order = "{{ key }}" }
"""

WHOLE = SHOP + LIST + GET + CAPTURE + RECEIPT


class NoSecrets:
    def resolve(self, _: str, /) -> str:
        return "whatever-the-secret-is"


def rules_of(config: str, handlers: Sequence[Any] = ()) -> tuple[Rules, dict[str, SenderContract]]:
    settings = Settings.model_validate(tomllib.loads(config, parse_float=Decimal))
    readers = {
        name: {kind: compile_kind(name, kind, one) for kind, one in sender.resources.items()}
        for name, sender in settings.senders.items()
    }
    contracts = {
        name: compile_sender(name, sender, NoSecrets(), readers[name])
        for name, sender in settings.senders.items()
    }
    rules = compile_rules(settings, readers, handlers, reread=rereader(contracts))
    return rules, contracts


@dataclass(slots=True, kw_only=True)
class Shop:
    """One shop and our ledger about it."""

    engine: AsyncEngine
    rules: Rules
    contracts: dict[str, SenderContract]
    sender: str = "shop"
    number: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    @classmethod
    async def open(
        cls, engine: AsyncEngine, config: str = WHOLE, *, baseline: bool = True, **more: Any
    ) -> "Shop":
        rules, contracts = rules_of(config, **more)
        shop = cls(engine=engine, rules=rules, contracts=contracts)

        async def follow(connection: Any) -> None:
            await baselines.register(connection, [("shop", "order")])
            if baseline:
                await baselines.complete(connection, "shop", "order", by="scan")

        await transact(engine, follow)
        return shop

    def event(
        self,
        type_: str = "order.updated",
        version: int | None = None,
        *,
        id_: str | None = None,
        key: str = "ord_42",
        at: str | None = None,
        origin: Origin = Origin.WEBHOOK,
        by_person: bool = False,
        body: dict[str, Any] | None = None,
        **data: Any,
    ) -> Event:
        """An event as the receiver makes it of a delivery."""
        thing: dict[str, Any] = {"order_id": key, **data}
        if version is not None:
            thing["version"] = version
        told = {"id": id_ or f"evt_{next(self.number)}", "type": type_, "data": thing}
        if at is not None:
            told["created_at"] = at
        raw = json.dumps({**told, **(body or {})}).encode()
        (event,) = read_delivery(self.contracts[self.sender], raw, {"x-test": "yes"}).events
        assert isinstance(event, Event), event
        return replace(event, origin=origin, by_person=by_person)

    def listed(
        self,
        version: int | None,
        *,
        key: str = "ord_42",
        started: datetime | None = None,
        by_person: bool = False,
        **data: Any,
    ) -> Event:
        """An item of the listing, as polling makes an event of it."""
        return self._found(
            Origin.CORRECTION, "list", version, key, started, by_person=by_person, data=data
        )

    def read(
        self,
        version: int | None,
        *,
        started: datetime,
        key: str = "ord_42",
        by_person: bool = False,
        **data: Any,
    ) -> Event:
        """The answer of a `get`, as polling makes an event of it."""
        return self._found(
            Origin.READ, "get", version, key, started, by_person=by_person, data=data
        )

    def gone(self, *, started: datetime, key: str = "ord_42", by_person: bool = False) -> Event:
        """A 404 that is declared to mean that the resource is deleted."""
        return Event(
            sender=self.sender,
            event_id="",
            type="order.corrected",
            origin=Origin.READ,
            observation=Observation(kind="order", key=key, version=None, state=None, deleted=True),
            read_started=started,
            by_person=by_person,
        )

    def _found(
        self,
        origin: Origin,
        path: Any,
        version: int | None,
        key: str,
        started: datetime | None,
        *,
        by_person: bool,
        data: dict[str, Any],
    ) -> Event:
        thing: dict[str, Any] = {"order_id": key, **data}
        if version is not None:
            thing["version"] = version
        reader = self.rules.senders[self.sender].kinds["order"].reader
        return Event(
            sender=self.sender,
            event_id="",
            type="order.corrected",
            origin=origin,
            body=thing,
            observation=reader.read(thing, path=path),
            read_started=started,
            by_person=by_person,
        )

    async def now(self) -> datetime:
        """The database's time: when a read that begins now has started."""
        return await transact(self.engine, now)

    async def takes(self, *events: Event, **more: Any) -> list[Result]:
        """Commit *events* as one batch."""
        return await commit(self.engine, self.rules, events, **more)

    async def take(self, event: Event, **more: Any) -> Result:
        (result,) = await self.takes(event, **more)
        return result

    async def rows(self, sql: str, **values: Any) -> list[dict[str, Any]]:
        """What a query over our tables finds."""
        async with self.engine.connect() as connection:
            await connection.execute(text("set search_path to reconciler, public"))
            found = await connection.execute(text(sql), values)
            return [dict(row) for row in found.mappings()]

    async def do(self, sql: str, **values: Any) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(text("set local search_path to reconciler, public"))
            await connection.execute(text(sql), values)

    async def order(self, key: str = "ord_42") -> dict[str, Any] | None:
        found = await self.rows("select * from resources where key = :key", key=key)
        return found[0] if found else None

    async def calls(self) -> list[tuple[str, str, str]]:
        """(effect, state, reason) of every outbox entry, in the order of the ledger."""
        found = await self.rows(
            "select effect, state, coalesce(last_error, '') as reason from outbox"
            " order by key, revision, created_at, id"
        )
        return [(row["effect"], row["state"], row["reason"]) for row in found]

    async def charges(self) -> int:
        """How many captures are to be called."""
        return len([call for call in await self.calls() if call[:2] == ("capture", "pending")])

    async def outcome(self, event: Event) -> str | None:
        found = await self.rows(
            "select outcome from processed_events where event_id = :id", id=event.event_id
        )
        return found[0]["outcome"] if found else None

    async def requested(self) -> list[str]:
        """Keys of the resources that are to be read."""
        found = await self.rows("select key from fetch_requests order by key")
        return [row["key"] for row in found]
