"""One sender, one destination and the parts between, in one process: every path in one story."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import relay
from outbox.backoff import Backoff
from reconciler.ledger import baselines
from reconciler.ledger.following import Following
from reconciler.operations.assembly import Assembly, assemble
from reconciler.operations.reconciling import Reconciled, reconcile
from reconciler.operations.trying import attempt
from tests.outbox.pretend import Pretend
from tests.polling.server import Reply, Request, serving
from tests.receiver.receiving import Receiving, receiving
from tests.receiver.senders import SECRET, body_of

POLICY = relay.Policy(
    poll=timedelta(milliseconds=20),
    lease=timedelta(seconds=60),
    backoff=Backoff(base=timedelta(minutes=10), cap=timedelta(hours=1)),
)

SHOP = """
[senders.shop]
secrets = ["env:SHOP_SECRET"]
grace = "0s"

[senders.shop.api]
base_url = "{api}"
allow_private = ["127.0.0.0/8"]

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = {version}
fields = {{ status = "status", paid = "paid", amount = "amount" }}

[senders.shop.resources.order.list]
path = "/orders"
items = "data"
key = "id"

[senders.shop.resources.order.get]
path = "/orders/{{{{ key }}}}"
key = "id"

[destinations.payments]
base_url = "{destination}"
allow_private = ["127.0.0.0/8"]

[effects.capture]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /charges/{{{{ key }}}}"
json = {{ amount = "{{{{ state.amount }}}}", version = "{{{{ version }}}}", of = "{{{{ key }}}}" }}

[effects.receipt]
on = ["shop:refund.succeeded"]
destination = "payments"
request = "POST /receipts"
json = {{ amount = "{{{{ body.data.amount }}}}", whole = "{{{{ body.data }}}}" }}
idempotency_key = "{{{{ event_id }}}}:receipt"
"""


@dataclass(kw_only=True)
class House:
    """What a story does: deliver, let the sender list, reconcile, call, and look."""

    engine: AsyncEngine
    assembly: Assembly
    receiver: Receiving
    pretend: Pretend
    listed: list[Any] = field(default_factory=list)
    """Items of the listing; bytes are put in as they are."""
    got: dict[str, Any] = field(default_factory=dict)
    """Answers of the `get`, by key; bytes are answered as they are."""
    asked: list[Request] = field(default_factory=list)

    async def answer(self, request: Request) -> Reply:
        self.asked.append(request)
        if request.path == "/orders":
            items = b",".join(as_bytes(item) for item in self.listed)
            return Reply(body=b'{"data":[%b]}' % items)
        found = self.got.get(request.path.rpartition("/")[2])
        return Reply(status=404, json={}) if found is None else Reply(body=as_bytes(found))

    async def deliver(self, document: object, path: str = "/webhooks/shop") -> httpx.Response:
        return await self.receiver.deliver(document, path)

    async def outcome(self, document: object, path: str = "/webhooks/shop") -> str:
        answer = await self.deliver(document, path)
        assert 200 == answer.status_code, answer.text
        return str(answer.json()["outcome"])

    async def outcomes(self, documents: list[Any], path: str = "/webhooks/shop") -> list[str]:
        """Deliver events as one batch."""
        body = b'{"events":[%b]}' % b",".join(map(as_bytes, documents))
        answer = await self.deliver(body, path)
        assert 200 == answer.status_code, answer.text
        return [each["outcome"] for each in answer.json()["results"]]

    async def tried(self, document: object, sender: str = "shop") -> list[dict[str, Any]]:
        """What `reconciler try` says of it."""
        raw = as_bytes(document)
        told = await attempt(self.engine, self.assembly, sender=sender, raw=raw, headers={})
        items: list[dict[str, Any]] = told["items"]
        return items

    async def reconcile(self, key: str | None = None, **how: Any) -> Reconciled:
        return await reconcile(
            self.engine, self.assembly, sender="shop", kind="order", key=key, **how
        )

    async def call(self) -> int:
        """Let a relay make the calls that are due."""
        follow = Following(rules=self.assembly.rules)
        return await relay.run_once(self.engine, self.assembly.destinations, POLICY, follow=follow)

    async def close(self) -> None:
        """Let go of the connections to the sender and to the destination."""
        for api in self.assembly.apis.values():
            await api.aclose()
        for destination in self.assembly.destinations.values():
            await destination.channel.close()

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        async with self.engine.connect() as connection:
            await connection.execute(text("set search_path to reconciler, public"))
            return [tuple(row) for row in await connection.execute(text(sql))]

    async def run_sql(self, sql: str) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(text("set local search_path to reconciler, public"))
            await connection.execute(text(sql))

    async def held(self) -> dict[str, int]:
        """Versions by key."""
        return dict(await self.rows("select key, version from resources order by key"))  # type: ignore[arg-type]

    async def counts(self) -> dict[str, int]:
        return await self.receiver.counts()


@asynccontextmanager
async def a_house(
    engine: AsyncEngine,
    directory: Path,
    *,
    version: str = '"version"',
    batches: bool = False,
    more: str = "",
    secret: str = SECRET,
    configuration: str = SHOP,
) -> AsyncIterator[House]:
    """A house whose kinds have their baselines behind them."""
    house: House

    async def answer(request: Request) -> Reply:
        return await house.answer(request)

    async with Pretend() as pretend, serving(answer) as served:
        written = configuration.format(api=served.url, destination=pretend.url, version=version)
        if batches:
            written += '\n[senders.shop.event]\nitems = "events"\n'
        async with receiving(engine, directory, written + more, secret=secret) as receiver:
            assembly = assemble(directory / "reconciler.toml", environ={"SHOP_SECRET": secret})
            async with engine.begin() as connection:
                await baselines.register(connection, assembly.kinds)
                for sender, kind in assembly.kinds:
                    await baselines.complete(connection, sender, kind, by="person")
            house = House(engine=engine, assembly=assembly, receiver=receiver, pretend=pretend)
            try:
                yield house
            finally:
                await house.close()


def as_bytes(document: object) -> bytes:
    return document if isinstance(document, bytes) else body_of(document)


def order(
    event_id: str,
    key: object = "ord_42",
    *,
    version: object = 1,
    type_: str = "order.updated",
    **data: object,
) -> dict[str, Any]:
    return {
        "id": event_id,
        "type": type_,
        "created_at": "2026-12-01T10:00:00Z",
        "data": {"order_id": key, "version": version, "status": "new", **data},
    }


def item(key: object = "ord_42", *, version: object = 1, **data: object) -> dict[str, Any]:
    """An order as the sender lists it, and as its `get` answers."""
    return {"id": key, "version": version, "status": "new", **data}


def read_json(body: bytes) -> Any:
    """What a destination got, with its numbers as they were written."""
    return json.loads(body, parse_int=str, parse_float=str)
