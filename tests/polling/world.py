"""A shop whose API is read, and a ledger that is held against it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger import baselines
from reconciler.ledger.commit import commit
from reconciler.ledger.event import Event, Origin
from reconciler.ledger.projection import compile_kind
from reconciler.ledger.rules import Rules, compile_rules
from reconciler.polling import scans, single
from reconciler.polling.client import Api, Outside
from reconciler.polling.run import Order
from reconciler.polling.scan import run_scan
from reconciler.polling.slots import Mode
from reconciler.polling.sources import Source, compile_sources
from reconciler.settings.models import PollingSettings, Settings

from .server import Reply, Request, Served, serving

KINDS = {
    "order": {
        "on": ["order.*"],
        "from": "data",
        "key": "order_id",
        "version": "version",
        "fields": {"status": "status", "paid": "paid", "amount": "amount"},
        "list": {
            "path": "/v1/orders",
            "items": "data",
            "key": "id",
            "changed_at": "updated_at",
            "created_at": "created_at",
            "pagination": {"style": "cursor", "next": "next_cursor", "param": "cursor"},
            "since": {"param": "updated_since", "lookback": "10m"},
        },
        "get": {"path": "/v1/orders/{{ key }}", "key": "id", "absent": "deleted"},
    }
}
EFFECTS = {
    "capture": {
        "on_change": ["shop:order"],
        "becomes": "state.paid",
        "destination": "payments",
        "request": "POST /v1/charges",
        "json": {"amount": "{{ state.amount }}", "reference": "{{ key }}"},
    }
}


def stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def place(order: dict[str, Any]) -> tuple[str, str]:
    """Where an order stands in the listing; cursors are such places, and survive changes."""
    return order["updated_at"], order["id"]


@dataclass(kw_only=True)
class Shop:
    """The sender: orders by id, listed by time of change, one page after the other."""

    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    size: int = 100
    newest_first: bool = False
    numbered: bool = False  #: pages by number instead of cursor
    hidden: set[str] = field(default_factory=set)  #: not in the listing (yet)
    lies: list[Reply | None] = field(default_factory=list)  #: answered instead, one a request
    after_request: Any = None  #: called after each listing answer was made

    def put(
        self, key: str, *, version: int, changed: datetime | None = None, **fields: Any
    ) -> dict:
        now = datetime.now(UTC)
        before = self.orders.get(key, {})
        self.orders[key] = {
            "status": "open",
            "paid": False,
            "amount": 1000,
            "created_at": before.get("created_at", stamp(changed or now)),
            **{name: value for name, value in before.items() if name in {"status", "paid"}},
            **fields,
            "id": key,
            "version": version,
            "updated_at": stamp(changed or now),
        }
        return self.orders[key]

    async def answer(self, request: Request) -> Reply:
        if self.lies and (lie := self.lies.pop(0)) is not None:
            return lie
        if request.path == "/v1/orders":
            reply = Reply(json=self.page(request.query))
            if self.after_request is not None:
                self.after_request()
            return reply
        found = self.orders.get(request.path.rpartition("/")[2])
        return Reply(json=found) if found else Reply(status=404, json={})

    def page(self, query: dict[str, str]) -> dict[str, Any]:
        since = query.get("updated_since", "")
        listed = sorted(
            (
                order
                for key, order in self.orders.items()
                if order["updated_at"] >= since and key not in self.hidden
            ),
            key=place,
            reverse=self.newest_first,
        )
        if self.numbered:
            start = (int(query.get("page", "1")) - 1) * self.size
            return {"data": listed[start : start + self.size]}
        if cursor := query.get("cursor"):
            after = tuple(cursor.split("|"))
            listed = [
                order
                for order in listed
                if (place(order) < after if self.newest_first else place(order) > after)
            ]
        page = listed[: self.size]
        more = len(listed) > self.size
        return {"data": page, "next_cursor": "|".join(place(page[-1])) if more else None}


@dataclass(kw_only=True)
class World:
    engine: AsyncEngine
    shop: Shop
    served: Served
    settings: Settings
    rules: Rules
    source: Source
    sources: Any
    api: Api
    policy: PollingSettings
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def order(self, mode: Mode = Mode.FULL, **wishes: Any) -> Order:
        asked = {"policy": self.policy, "stop": self.stop, "draw": lambda: 0.0, **wishes}
        return Order(
            engine=self.engine,
            rules=self.rules,
            api=self.api,
            source=self.source,
            mode=mode,
            **asked,
        )

    async def scan(self, mode: Mode = Mode.FULL, **wishes: Any):
        return await run_scan(self.order(mode, **wishes))

    async def increment(self, **wishes: Any):
        return await self.scan(Mode.INCREMENTAL, **wishes)

    async def webhook(self, order: dict[str, Any], *, type_: str = "order.updated", id_=None):
        """The webhook of an order as it is in *order*; its outcome and effects."""
        data = {**order, "order_id": order["id"]}
        event = Event(
            sender="shop",
            event_id=id_ or f"evt_{order['id']}_{order['version']}",
            type=type_,
            origin=Origin.WEBHOOK,
            body={"data": data},
            raw=b"{}",
            observation=self.source.rules.reader.read(data, path="event"),
        )
        return (await commit(self.engine, self.rules, [event]))[0]

    async def rows(self, sql: str, **values: Any) -> list[Any]:
        async with self.engine.connect() as connection:
            return list((await connection.execute(text(sql), values)).all())

    async def value(self, sql: str, **values: Any) -> Any:
        rows = await self.rows(sql, **values)
        return rows[0][0] if rows else None

    async def run_sql(self, sql: str) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(text(sql))

    async def held(self) -> dict[str, int]:
        """Versions of what we hold that is not deleted."""
        sql = "select key, version from reconciler.resources where not deleted"
        return {row.key: row.version for row in await self.rows(sql)}

    async def calls(self, state: str = "pending") -> list[str]:
        """Keys of resources that have an entry in *state*, once for each entry."""
        sql = "select key from reconciler.outbox where state = :state order by key"
        return [row.key for row in await self.rows(sql, state=state)]

    async def slot(self, mode: Mode = Mode.INCREMENTAL) -> Any:
        async with self.engine.connect() as connection:
            return await scans.state_of(connection, self.source.slot(mode))

    async def counts(self) -> dict[str, int]:
        """How many rows each table has."""
        tables = await self.rows(
            "select tablename from pg_tables where schemaname = 'reconciler' order by 1"
        )
        return {
            row.tablename: await self.value(f"select count(*) from reconciler.{row.tablename}")  # noqa: S608
            for row in tables
        }

    def asked(self, path: str = "/v1/orders") -> list[dict[str, str]]:
        return [request.query for request in self.served.requests if request.path == path]

    async def reconcile(self, key: str, **wishes: Any) -> dict[str, Any]:
        return await single.reconcile_one(
            self.engine, self.rules, self.api, self.source, key, **wishes
        )


@contextlib.asynccontextmanager
async def a_world(
    engine: AsyncEngine,
    *,
    shop: Shop | None = None,
    grace: str = "0s",
    baseline: bool = True,
    listed: dict[str, Any] | None = None,
    get: bool = True,
    kind: dict[str, Any] | None = None,
    apply: tuple[dict[str, Any], ...] = (),
    polling: dict[str, Any] | None = None,
    lag: str = "0s",
    effects: dict[str, Any] | None = None,
) -> AsyncIterator[World]:
    """A world; *baseline*: it was complete before the story begins."""
    shop = shop or Shop()
    async with serving(shop.answer) as served:
        order = {**KINDS["order"], **(kind or {})}
        order["list"] = {**order["list"], **(listed or {})}
        order["list"] = {key: value for key, value in order["list"].items() if value is not None}
        if not get:
            del order["get"]
        settings = Settings(
            polling=polling or {},
            senders={
                "shop": {
                    "secrets": [],
                    "grace": grace,
                    "lag": lag,
                    "signature": {},
                    "event": {"id": "id", "type": "type"},
                    "api": {
                        "base_url": served.url,
                        "allow_private": ["127.0.0.0/8"],
                        "timeout": "5s",
                    },
                    "resources": {"order": order},
                    "apply": apply,
                }
            },
            destinations={"payments": {"base_url": "http://127.0.0.1:9"}},
            effects=EFFECTS if effects is None else effects,
        )
        readers = {
            "shop": {
                "order": compile_kind("shop", "order", settings.senders["shop"].resources["order"])
            }
        }
        rules = compile_rules(settings, readers, ())
        sources = compile_sources(settings, rules)
        api = Api(
            settings.senders["shop"].api,
            headers={},
            outside=Outside(sleep=_no_sleep, draw=lambda: 0.0),
        )
        async with engine.begin() as connection:
            await baselines.register(connection, [("shop", "order")])
            if baseline:
                await baselines.complete(connection, "shop", "order", by="person")
        async with api:
            yield World(
                engine=engine,
                shop=shop,
                served=served,
                settings=settings,
                rules=rules,
                source=sources["shop", "order"],
                sources=sources,
                api=api,
                policy=settings.polling,
            )


async def _no_sleep(_: float) -> None:
    """The back-off of the client costs a test nothing."""


@contextlib.contextmanager
def statements(engine: AsyncEngine):
    """Collect the statements that run meanwhile."""
    seen: list[str] = []

    def note(_connection, _cursor, statement, *_):
        seen.append(statement)

    sqlalchemy_event.listen(engine.sync_engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sqlalchemy_event.remove(engine.sync_engine, "before_cursor_execute", note)


def ago(**duration: float) -> datetime:
    return datetime.now(UTC) - timedelta(**duration)
