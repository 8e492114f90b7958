"""Real daemons: started, killed and started again, as a service manager would."""

import asyncio
import json
import os
import signal
from collections import deque
from pathlib import Path

from sqlalchemy import make_url

from reconciler.proving.history import History
from tests.history.destination import TIMEOUT
from tests.history.plan import Plan
from tests.history.sender import SECRET, TOKEN
from tests.history.waiting import until
from tests.nursery import Child, Nursery
from tests.postgres_proxy import PostgresProxy

START = 60.0  #: seconds until a daemon that says nothing has failed
STOP = 40.0

CONFIGURATION = """\
[database]
url = "{database}"

[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"

[receiver]
batch_max = {batch_max}

[relay]
poll = "100ms"
lease = "4s"
backoff_base = "20ms"
backoff_cap = "100ms"

[polling]
poll = "200ms"
lease = "2s"

[senders.shop]
preset = "generic"
secrets = ["env:SHOP_SECRET"]
grace = "0s"
max_failures = 2

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

[senders.shop.resources.order.list]
path = "/v1/orders"
items = "data"
key = "id"
changed_at = "updated_at"
created_at = "created_at"
pagination = {{ style = "cursor", next = "next_cursor", param = "cursor" }}
since = {{ param = "updated_since", format = "rfc3339", lookback = "10m" }}
interval = "1s"

[senders.shop.resources.order.get]
path = "/v1/orders/{{{{ key }}}}"
key = "id"
absent = "deleted"

[[senders.shop.apply]]
on_change = ["order"]
sql = "INSERT INTO order_log (id, version) VALUES (:id, :version)"
params = {{ id = "key", version = "version" }}

[[senders.shop.apply]]
on_change = ["order"]
sql = '''INSERT INTO orders (id, status, version) VALUES (:id, :status, :version)
         ON CONFLICT (id) DO UPDATE SET status = excluded.status, version = excluded.version'''
params = {{ id = "key", status = "state.status", version = "version" }}

[[senders.shop.apply]]
on = ["refund.succeeded"]
sql = "INSERT INTO refunds (source_event, amount) VALUES (:event_id, :amount)"
params = {{ event_id = "event_id", amount = "body.data.amount" }}

[destinations.payments]
base_url = "{destination}"
timeout = "{timeout}ms"
max_attempts = 60
ordered = {ordered}
allow_private = ["127.0.0.0/8"]
{rate}
breaker = {breaker}

[destinations.post_office]
base_url = "{destination}"
timeout = "{timeout}ms"
max_attempts = 60
allow_private = ["127.0.0.0/8"]
breaker = {breaker}

[destinations.post]
base_url = "{destination}"
timeout = "{timeout}ms"
max_attempts = 60
idempotent = false
allow_private = ["127.0.0.0/8"]
breaker = {breaker}

[effects.capture]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /v1/charges"
json = {{ amount = "{{{{ state.amount }}}}", reference = "capture {{{{ key }}}}" }}
{lane_of_order}

[effects.notice]
on_change = ["shop:order"]
destination = "post"
request = "POST /post/notices"
json = {{ reference = "notice {{{{ key }}}} {{{{ version }}}}" }}

[effects.label]
on = ["shop:order.shipped"]
if_stale = "count"
destination = "post_office"
request = "POST /v1/labels"
json = {{ reference = "label {{{{ event_id }}}}" }}
{lane_of_order}
idempotency_key = "{{{{ event_id }}}}:label"

[effects.receipt]
on = ["shop:refund.succeeded"]
destination = "payments"
request = "POST /v1/receipts"
json = {{ amount = "{{{{ body.data.amount }}}}", reference = "receipt {{{{ event_id }}}}" }}
{lane_of_refund}
idempotency_key = "{{{{ event_id }}}}:receipt"

[effects.letter]
on = ["shop:refund.succeeded"]
destination = "post"
request = "POST /post/letters"
json = {{ reference = "letter {{{{ event_id }}}}" }}
idempotency_key = "{{{{ event_id }}}}:letter"
"""


BREAKER = '{{ after = {after}, pause = "50ms", pause_max = "300ms" }}'
LANE = 'lane = "order:{{{{ {of} }}}}"'


class Replica:
    """One `reconciler serve`, over its own proxy, kept alive until it is told to stop."""

    def __init__(
        self,
        number: int,
        *,
        proxy: PostgresProxy,
        directory: Path,
        history: History,
        nursery: Nursery,
        packages: Path | None,
    ) -> None:
        self.number = number
        self.proxy = proxy
        self.directory = directory
        self.history = history
        self.nursery = nursery
        self.packages = packages
        self.address: str | None = None
        """Where it takes webhooks; None while it does not."""
        self.crash_at: deque[str] = deque()
        """Where its next lives end by themselves; the last one does not."""
        self.armed: str | None = None
        self._lives = 0
        self._process: Child | None = None
        self._killed = False
        self._stopping = False
        self._kept: asyncio.Task[None] | None = None

    @property
    def config(self) -> Path:
        return self.directory / f"reconciler-{self.number}.toml"

    @property
    def is_to_crash(self) -> bool:
        """Whether it has not died yet everywhere where it should."""
        return bool(self.armed or self.crash_at)

    def configure(self, plan: Plan, *, sender: str, destination: str) -> None:
        database = make_url(self.proxy.url)._replace(password=None)
        text = CONFIGURATION.format(
            database=database.render_as_string(hide_password=False),
            sender=sender,
            destination=destination,
            timeout=int(TIMEOUT * 1000),
            ordered=str(plan.ordered).lower(),
            rate=f'rate = "{plan.rate}/s"' if plan.rate else "",
            breaker=BREAKER.format(after=plan.breaker_after),
            lane_of_order=LANE.format(of="key") if plan.lanes else "",
            lane_of_refund=LANE.format(of="body.data.order_id") if plan.lanes else "",
            batch_max=plan.batch_max,
        )
        self.config.write_text(text)

    async def start(self, roles: str) -> None:
        """Start it, and again whenever it dies; returns when it listens for the first time."""
        self._stopping = False
        self._kept = asyncio.create_task(self._keep(roles))
        await until(lambda: self.address or self._lives > 1 or self._stopping, within=START)

    async def kill(self) -> None:
        """kill -9; it is started again at once."""
        if self._process is not None and self._process.is_running:
            self._killed = True
            self._process.send_signal(signal.SIGKILL)
            await until(lambda: not self._killed, within=10)

    async def disarm(self) -> None:
        """Give up on the points that were not met."""
        self.crash_at.clear()
        self.armed = None
        await self.kill()

    async def stop(self, *, gently: bool = True) -> None:
        """SIGTERM, and it has to end with 0; or kill -9, and no questions."""
        self._stopping = True
        if self._kept is None:
            return
        process = self._process
        if process is not None and process.is_running:
            self._killed = not gently
            process.send_signal(signal.SIGTERM if gently else signal.SIGKILL)
        done, _ = await asyncio.wait({self._kept}, timeout=STOP)
        if process is not None and not done:
            self.history.write("ended", code="SIGTERM ignored", log=self.last_words())
            process.send_signal(signal.SIGKILL)
            await asyncio.wait({self._kept})
        self._kept = None

    async def _keep(self, roles: str) -> None:
        while not self._stopping:
            self.armed = self.crash_at.popleft() if self.crash_at else None
            self._process = await self._spawn(roles)
            self._lives += 1
            ready = asyncio.create_task(self._listens())
            code = await self._process.wait()
            ready.cancel()
            self.address = None
            self._tell(code)
            if code not in (0, -signal.SIGKILL):
                return

    def _tell(self, code: int) -> None:
        facts = {"replica": self.number, "life": self._lives}
        if self._killed:
            self.history.write("killed", **facts)
            if self.armed:
                self.crash_at.appendleft(self.armed)
            self._killed = False
        elif code == -signal.SIGKILL and self.armed:
            self.history.write("crash", at=self.armed, **facts)
        elif code == 0 and self._stopping:
            self.history.write("stopped", **facts)
        else:
            self.history.write("ended", code=code, log=self.last_words(), **facts)
        self.armed = None

    async def _spawn(self, roles: str) -> Child:
        clean = {n: v for n, v in os.environ.items() if not n.startswith("RECONCILER_")}
        environment = {**clean, "SHOP_SECRET": SECRET, "SHOP_TOKEN": TOKEN}
        if self.armed:
            environment["RECONCILER_TEST_CRASH_AT"] = self.armed
        if self.packages:
            environment["PYTHONPATH"] = str(self.packages)
        return await self.nursery.start(
            ["serve", "--config", str(self.config), "--role", roles],
            env=environment,
            cwd=self.directory,
            log=self.log_file(self._lives + 1),
        )

    async def _listens(self) -> None:
        """Find its address in what it says: it listens before it has seen its database."""
        while True:
            for line in self.log_file(self._lives).read_text().splitlines():
                if '"daemon.ready"' in line:
                    self.address = json.loads(line)["webhooks"]
                    return
            await asyncio.sleep(0.02)

    def said(self, what: str) -> int:
        """How often that stands in the logs of all its lives."""
        lives = (self.log_file(life + 1) for life in range(self._lives))
        return sum(log.read_text().count(what) for log in lives if log.exists())

    def log_file(self, life: int) -> Path:
        return self.directory / f"serve-{self.number}-{life}.log"

    def last_words(self) -> str:
        return self.log_file(self._lives).read_text()[-1500:]
