"""The soak's configuration, and the daemon as a process between the shop and the destination."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from reconciler import embedded
from reconciler.proving import demo_world
from reconciler.proving.misbehaving_http import listen
from tests.soak.destination import Destination
from tests.soak.shop import Shop
from tests.soak.trouble import KILLED, Trouble
from tests.world import eventually

CONFIGURATION = """\
[database]
@database@

[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
state_directory = "@state@"

[relay]
poll = "100ms"
lease = "5s"
backoff_base = "200ms"
backoff_cap = "2s"

[polling]
poll = "200ms"

[retention]
claims = "4m"
bodies = "1m"
entries = "3m"
quarantine = "1m"
undecided = "2m"
actions = "5m"

[senders.shop]
preset = "generic"
secrets = ["env:PRETEND_SECRET"]
retry_window = "2m"
grace = "2s"

[senders.shop.api]
base_url = "@sender@"
bearer = "env:PRETEND_TOKEN"
rate = "100/s"
allow_private = ["127.0.0.0/8"]

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
fields = { status = "status", amount = "amount" }

[senders.shop.resources.order.list]
path = "/v1/orders"
items = "data"
key = "id"
changed_at = "updated_at"
created_at = "created_at"
order = "oldest"
pagination = { style = "cursor", next = "next_cursor", param = "cursor" }
since = { param = "updated_since", format = "rfc3339", lookback = "10s" }
interval = "3s"
full_every = "2m"

[senders.shop.resources.order.get]
path = "/v1/orders/{{ key }}"
key = "id"
absent = "deleted"

[[senders.shop.apply]]
on = ["refund.succeeded"]
sql = "INSERT INTO refunds (source_event, amount) VALUES (:event_id, :amount)"
params = { event_id = "event_id", amount = "body.data.amount" }

[destinations.payments]
base_url = "@destination@"
timeout = "2s"
key_ttl = "2m"
max_attempts = 40
concurrency = 16
allow_private = ["127.0.0.0/8"]

[effects.capture]
on_change = ["shop:order"]
destination = "payments"
request = "POST /v1/charges"
json = { reference = "capture {{ key }} {{ version }}" }

[effects.receipt]
on = ["shop:refund.succeeded"]
destination = "payments"
request = "POST /v1/receipts"
json = { reference = "receipt {{ event_id }}" }
idempotency_key = "{{ event_id }}:receipt"
"""
KILL_EVERY = 0.6  #: seconds, divided by the share of trouble
OURS = "soak"  #: the connections that look, and are not killed
VICTIM = """
select pg_terminate_backend(pid) as ended from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid()
   and backend_type = 'client backend' and application_name <> 'soak' order by random() limit 1
"""


@dataclass(kw_only=True)
class World:
    """Everything that runs."""

    shop: Shop
    destination: Destination
    trouble: Trouble
    daemon: asyncio.subprocess.Process
    ready: dict[str, Any]
    database: str

    @property
    def target(self) -> str:
        return f"{self.ready['webhooks']}/webhooks/shop"

    async def query(self, statement: str) -> list[dict[str, Any]]:
        async with await self.connect() as connection:
            return await (await connection.execute(statement)).fetchall()

    async def connect(self) -> psycopg.AsyncConnection[dict[str, Any]]:
        return await psycopg.AsyncConnection.connect(
            self.database, row_factory=dict_row, autocommit=True, application_name=OURS
        )

    async def kill_connections(self) -> None:
        """For ever: end one connection of the daemon's, now and then."""
        if not self.trouble.share:
            return
        while True:
            await asyncio.sleep(KILL_EVERY / self.trouble.share * 2 * self.trouble.fate.random())
            await self.query(VICTIM)
            self.trouble.met[KILLED] += 1


@asynccontextmanager
async def a_world(
    directory: Path, *, seed: int, faults: float, url: str | None
) -> AsyncIterator[World]:
    """Start everything; the daemon's baseline is over when the block begins."""
    trouble = Trouble(fate=random.Random(f"trouble {seed}"), share=faults)
    destination = Destination(trouble=trouble)
    shop = Shop(
        fate=random.Random(f"shop {seed}"), trouble=trouble, performed=destination.performed
    )
    async with AsyncExitStack() as running:
        api, pay = await listen(shop.answer), await listen(destination.answer)
        running.push_async_callback(api.close)
        running.push_async_callback(pay.close)
        config = directory / "soak.toml"
        places = {
            "@database@": f'url = "{url}"' if url else "",
            "@state@": str(directory / "state"),
            "@sender@": api.url,
            "@destination@": pay.url,
        }
        text = CONFIGURATION
        for mark, place in places.items():
            text = text.replace(mark, place)
        config.write_text(text)
        log = directory / "reconciler.log"
        if url is not None:
            words = ("reconciler", "migrate", "--config", str(config))
            async with demo_world.process(*words, log=log) as migrating:
                assert 0 == await migrating.wait(), log.read_text()
        await demo_world.make_tables(directory, config, log=log)
        daemon = await running.enter_async_context(
            demo_world.process("reconciler", "serve", "--config", str(config), log=log)
        )
        ready = dict(await demo_world.ready_line(daemon, log=log))
        database = url or embedded.join(directory / "state")
        assert database is not None
        world = World(
            shop=shop,
            destination=destination,
            trouble=trouble,
            daemon=daemon,
            ready=ready,
            database=database,
        )

        async def baseline_over() -> bool:
            kinds = await world.query("select completed_at from reconciler.baselines")
            return bool(kinds) and all(kind["completed_at"] for kind in kinds)

        await eventually(baseline_over, within=60)
        yield world
