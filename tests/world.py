"""A world to tell stories in: a pretend sender and destination, and the real service between."""

import asyncio
import hashlib
import hmac
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
from psycopg.rows import dict_row

from reconciler.proving.misbehaving_http import Answer, Request, address, listen

SECRET = "whispered"
TOKEN = "listing-token"

CONFIGURATION = """\
[database]
url = "{database}"

[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"

[relay]
poll = "50ms"
lease = "10s"
backoff_base = "50ms"
backoff_cap = "200ms"

[polling]
poll = "100ms"

[senders.shop]
preset = "generic"
secrets = ["env:SHOP_SECRET"]
grace = "0s"

[senders.shop.api]
base_url = "{sender}"
bearer = "env:SHOP_TOKEN"
allow_private = ["127.0.0.0/8"]

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
fields = {{ status = "status", paid = "paid", amount = "amount" }}
deleted_on = ["order.deleted"]
created_on = ["order.created"]

[senders.shop.resources.order.list]
path = "/v1/orders"
items = "data"
key = "id"
changed_at = "updated_at"
created_at = "created_at"
pagination = {{ style = "cursor", next = "next_cursor", param = "cursor" }}
since = {{ param = "updated_since", format = "rfc3339", lookback = "10m" }}
interval = "{interval}"

[senders.shop.resources.order.get]
path = "/v1/orders/{{{{ key }}}}"
key = "id"
absent = "deleted"

[[senders.shop.apply]]
on_change = ["order"]
sql = '''INSERT INTO orders (id, status, status_version) VALUES (:order_id, :status, :version)
         ON CONFLICT (id) DO UPDATE SET status = excluded.status,
                status_version = excluded.status_version
          WHERE orders.status_version < excluded.status_version'''
params = {{ order_id = "key", status = "state.status", version = "version" }}

[[senders.shop.apply]]
on = ["refund.succeeded"]
sql = "INSERT INTO refunds (source_event, order_id, amount) VALUES (:event_id, :order_id, :amount)"
params = {{ event_id = "event_id", order_id = "body.data.order_id", amount = "body.data.amount" }}

[destinations.payments]
base_url = "{destination}"
timeout = "3s"
allow_private = ["127.0.0.0/8"]

[effects.capture]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /v1/charges"
json = {{ amount = "{{{{ state.amount }}}}", reference = "capture {{{{ key }}}}" }}

[effects.receipt]
on = ["shop:refund.succeeded"]
destination = "payments"
request = "POST /v1/receipts"
json = {{ reference = "receipt {{{{ event_id }}}}" }}
idempotency_key = "{{{{ event_id }}}}:receipt"
"""

TABLES = """
create table orders (id text primary key, status text not null, status_version bigint not null);
create table refunds (source_event text not null, order_id text not null, amount integer not null);
"""


@dataclass
class Sender:
    """A shop with orders and an API; it does not mind telling who asked for what."""

    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    page_size: int = 100
    requests: list[Request] = field(default_factory=list)
    broken: Answer | None = None
    """What the listing answers instead, while it is set."""

    def sets(self, key: str, *, age: float = 0.0, **facts: Any) -> dict[str, Any]:
        """Change an order, *age* seconds ago; returns the webhook's data."""
        held = self.orders.get(key, {"id": key, "version": 0, "status": "new", "paid": False})
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age))
        order = {
            "amount": 4200,
            "created_at": held.get("created_at", stamp),
            **held,
            "version": held["version"] + 1,
            "updated_at": stamp,
            **facts,
        }
        self.orders[key] = order
        return {("order_id" if name == "id" else name): value for name, value in order.items()}

    async def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Answer(status=401, body={})
        if request.path == "/v1/orders":
            if self.broken is not None:
                return self.broken
            return Answer(body=self.page(request))
        order = self.orders.get(request.path.removeprefix("/v1/orders/"))
        return Answer(body=order) if order else Answer(status=404, body={})

    def page(self, request: Request) -> dict[str, Any]:
        since = request.query.get("updated_since", "")
        found = [order for order in self.orders.values() if order["updated_at"] >= since]
        start = int(request.query.get("cursor", "0"))
        end = start + self.page_size
        return {
            "data": found[start:end],
            "next_cursor": str(end) if end < len(found) else None,
        }


@dataclass
class Destination:
    """Performs each key once, and keeps every call."""

    calls: list[Request] = field(default_factory=list)
    performed: dict[str, Any] = field(default_factory=dict)
    troubles: list[Answer] = field(default_factory=list)
    """What the next calls meet, first one first."""

    async def answer(self, request: Request) -> Answer:
        self.calls.append(request)
        trouble = self.troubles.pop(0) if self.troubles else Answer(body={"ok": True})
        if trouble.status < 400:
            self.performed.setdefault(request.headers["idempotency-key"], request.json())
        return trouble

    @property
    def effects(self) -> list[str]:
        """What took effect, by the reference that each call gave."""
        return sorted(effect["reference"] for effect in self.performed.values())


@dataclass
class World:
    """Everything that a story needs, by its own words."""

    directory: Path
    database_url: str
    sender: Sender
    destination: Destination
    config: Path
    webhooks: str = ""
    admin: str = ""
    process: asyncio.subprocess.Process | None = None

    @property
    def environment(self) -> dict[str, str]:
        clean = {n: v for n, v in os.environ.items() if not n.startswith("RECONCILER_")}
        return {**clean, "SHOP_SECRET": SECRET, "SHOP_TOKEN": TOKEN}

    @asynccontextmanager
    async def serving(self, *words: str, **environment: str) -> AsyncIterator[None]:
        """The daemon as a process, from ready to SIGTERM; it must end with 0."""
        await self.start(*words, **environment)
        try:
            yield
        finally:
            assert self.process is not None
            if self.process.returncode is None:
                self.process.terminate()
            code = await asyncio.wait_for(self.process.wait(), 40)
        assert 0 == code, self.log

    async def start(self, *words: str, **environment: str) -> None:
        """Start the daemon and wait until it says that it is ready."""
        log = self.directory / "serve.log"
        log.unlink(missing_ok=True)
        with log.open("ab") as errors:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "reconciler",
                "serve",
                "--config",
                str(self.config),
                *words,
                stderr=errors,
                env={**self.environment, **environment},
                cwd=self.directory,
            )
        ready = await eventually(self.ready_line, within=30)
        self.webhooks, self.admin = ready["webhooks"], ready["admin"]

    async def ready_line(self) -> dict[str, Any] | None:
        assert self.process is not None
        assert self.process.returncode is None, self.log
        for line in self.log.splitlines():
            if line.startswith("{") and (facts := json.loads(line))["event"] == "daemon.ready":
                return facts
        return None

    @property
    def log(self) -> str:
        path = self.directory / "serve.log"
        return path.read_text() if path.exists() else ""

    async def deliver(
        self, event: Mapping[str, Any] | bytes, *, secret: str = SECRET, at: int | None = None
    ) -> httpx.Response:
        """Send one signed webhook."""
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            return await client.post(
                f"{self.webhooks}/webhooks/shop",
                content=body,
                headers=signed(body, secret=secret, at=at),
            )

    async def outcome(self, event: Mapping[str, Any]) -> str:
        answer = await self.deliver(event)
        assert 200 == answer.status_code, answer.text
        return str(answer.json()["outcome"])

    async def command(self, *words: str, stdin: bytes = b"") -> tuple[int, str, str]:
        """Run `reconciler`: exit code, stdout, stderr."""
        started = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "reconciler",
            *words,
            "--config",
            str(self.config),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
            cwd=self.directory,
        )
        out, err = await started.communicate(stdin)
        assert started.returncode is not None
        return started.returncode, out.decode(), err.decode()

    async def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        async with await psycopg.AsyncConnection.connect(
            self.database_url, row_factory=dict_row, autocommit=True
        ) as connection:
            cursor = await connection.execute(statement, values)  # type: ignore[arg-type]
            return await cursor.fetchall() if cursor.description else []

    async def counts(self) -> dict[str, int]:
        """Rows of every table, ours and the user's."""
        tables = await self.rows(
            "select schemaname, tablename from pg_tables"
            " where schemaname in ('reconciler', 'public') order by 1, 2"
        )
        return {
            row["tablename"]: (
                await self.rows(
                    f"select count(*) as n from {row['schemaname']}.{row['tablename']}"
                )
            )[0]["n"]
            for row in tables
        }

    async def baseline_over(self) -> None:
        """Wait until every kind's first full scan is complete."""

        async def over() -> bool:
            return not await self.rows(
                "select 1 from reconciler.baselines where completed_at is null"
            )

        await eventually(over)

    async def effects(self, *expected: str) -> None:
        """Wait for exactly these effects to have been performed."""

        async def there() -> bool:
            return sorted(expected) == self.destination.effects

        await eventually(there)


@asynccontextmanager
async def a_world(
    directory: Path, database_url: str, *, configuration: str = CONFIGURATION, interval: str = "1s"
) -> AsyncIterator[World]:
    """A world with its servers listening and its user's tables made; the daemon is not started."""
    sender, destination = Sender(), Destination()
    api, pay = await listen(sender.answer), await listen(destination.answer)
    config = directory / "reconciler.toml"
    config.write_text(
        configuration.format(
            database=database_url,
            sender=address(api),
            destination=address(pay),
            interval=interval,
        )
    )
    world = World(
        directory=directory,
        database_url=database_url,
        sender=sender,
        destination=destination,
        config=config,
    )
    await world.rows(TABLES)
    try:
        yield world
    finally:
        if world.process is not None and world.process.returncode is None:
            world.process.kill()
            await world.process.wait()
        api.close()
        pay.close()


def signed(body: bytes, *, secret: str = SECRET, at: int | None = None) -> dict[str, str]:
    """Headers as the guide's sender makes them."""
    stamp = str(int(time.time()) if at is None else at)
    mac = hmac.new(secret.encode(), stamp.encode() + b"." + body, hashlib.sha256)
    return {"X-Signature": mac.hexdigest(), "X-Signature-Timestamp": stamp}


def order_event(event_id: str, data: Mapping[str, Any], *, type_: str = "order.updated") -> dict:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"id": event_id, "type": type_, "created_at": stamp, "data": dict(data)}


def refund_event(event_id: str, *, order_id: str = "ord_42", amount: int = 4200) -> dict:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    data = {"order_id": order_id, "amount": amount, "currency": "EUR"}
    return {"id": event_id, "type": "refund.succeeded", "created_at": stamp, "data": data}


async def eventually(look: Any, *, within: float = 20) -> Any:
    """Await *look* until it returns something true; the wait is bounded, never a guess."""
    deadline = time.monotonic() + within
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < deadline, f"{look.__qualname__} did not come true"
        await asyncio.sleep(0.02)
