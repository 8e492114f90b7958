"""A receiver that really runs: its own listener, its own ledger, a real PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler import listening
from reconciler.http_server import Limits
from reconciler.ledger.commit import commit
from reconciler.ledger.projection import compile_kind
from reconciler.ledger.rules import compile_rules
from reconciler.receiver import server
from reconciler.receiver.app import Answered, WebhookApp
from reconciler.receiver.envelope import rereader
from reconciler.receiver.group_commit import GroupCommit
from reconciler.receiver.keeping import keeper

from .senders import NOW, SECRET, SHOP, body_of, contracts_of, loaded, signed

TABLES = ("processed_events", "event_bodies", "resources", "quarantine", "outbox")


@dataclass(slots=True, kw_only=True)
class Receiving:
    """What a story does with a receiver: deliver, and look."""

    engine: AsyncEngine
    app: WebhookApp
    http: httpx.AsyncClient
    port: int
    stop: asyncio.Event
    told: list[Answered] = field(default_factory=list)

    async def deliver(
        self, document: object, path: str = "/webhooks/shop", **headers: str
    ) -> httpx.Response:
        """Sign *document* as the shop does, and deliver it."""
        body = document if isinstance(document, bytes) else body_of(document)
        return await self.post(body, path, signed(body) | headers)

    async def post(
        self, body: bytes, path: str = "/webhooks/shop", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return await self.http.post(path, content=body, headers=dict(headers or {}))

    async def talk(self, sent: bytes) -> bytes:
        """Send bytes as they are, and return all that comes until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(sent)
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        async with self.engine.connect() as connection:
            return [tuple(row) for row in await connection.execute(text(sql))]

    async def counts(self) -> dict[str, int]:
        """How many rows each of our tables has; those that have none are left out."""
        found = {}
        for table in TABLES:
            ((count,),) = await self.rows(f"select count(*) from reconciler.{table}")  # noqa: S608
            found[table] = count
        return {table: count for table, count in found.items() if count}


@asynccontextmanager
async def receiving(
    engine: AsyncEngine,
    directory: Path,
    configuration: str = SHOP,
    *,
    now: float = NOW,
    secret: str = SECRET,
) -> AsyncIterator[Receiving]:
    """Run the receiver of *configuration* as the daemon does, with the clock stopped at *now*."""
    found = loaded(directory, configuration, secret=secret)
    contracts = contracts_of(found)
    readers = {
        name: {kind: compile_kind(name, kind, each) for kind, each in sender.resources.items()}
        for name, sender in found.settings.senders.items()
    }
    rules = compile_rules(found.settings, readers, reread=rereader(contracts))
    told: list[Answered] = []
    settings = found.settings.receiver
    app = WebhookApp(
        contracts=contracts,
        committer=GroupCommit(
            commit=partial(commit, engine, rules),
            batch_max=settings.batch_max,
            waiting_max=settings.waiting_max,
        ),
        keep=keeper(engine, rules),
        settings=settings,
        clock=lambda: now,
        metrics=told.append,
    )
    listeners = listening.listen_on("127.0.0.1:0")
    url, port = listeners.url, listeners.sockets[0].getsockname()[1]
    stop, ready = asyncio.Event(), asyncio.Event()
    limits = Limits(drain=timedelta(seconds=5), connections=1000)
    async with asyncio.timeout(60), asyncio.TaskGroup() as running:
        running.create_task(
            server.run(app, listeners, limits=limits, stop=stop, ready=lambda _: ready.set())
        )
        await ready.wait()
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
            yield Receiving(engine=engine, app=app, http=http, port=port, stop=stop, told=told)
        stop.set()
