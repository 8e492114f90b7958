"""A world to tell stories in: a pretend sender and destination, and the real service between."""

import asyncio
import hashlib
import hmac
import json
import os
import signal
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import make_url

from reconciler.proving.misbehaving_http import Answer, Answering, Request, listen
from tests import nursery
from tests.nursery import Child, spawned

SECRET = "whispered"  # noqa: S105 - of a pretend sender
TOKEN = "listing-token"  # noqa: S105

CONFIGURATION = """\
[database]
url = "@database@"

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
lease = "2s"

[senders.shop]
preset = "generic"
secrets = ["env:SHOP_SECRET"]
grace = "0s"

[senders.shop.api]
base_url = "@sender@"
bearer = "env:SHOP_TOKEN"
allow_private = ["127.0.0.0/8"]

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
fields = { status = "status", paid = "paid", amount = "amount" }
deleted_on = ["order.deleted"]
created_on = ["order.created"]

[senders.shop.resources.order.list]
path = "/v1/orders"
items = "data"
key = "id"
changed_at = "updated_at"
created_at = "created_at"
pagination = { style = "cursor", next = "next_cursor", param = "cursor" }
since = { param = "updated_since", format = "rfc3339", lookback = "10m" }
interval = "@interval@"

[senders.shop.resources.order.get]
path = "/v1/orders/{{ key }}"
key = "id"
absent = "deleted"

[[senders.shop.apply]]
on_change = ["order"]
sql = '''INSERT INTO orders (id, status, status_version) VALUES (:order_id, :status, :version)
         ON CONFLICT (id) DO UPDATE SET status = excluded.status,
                status_version = excluded.status_version
          WHERE orders.status_version < excluded.status_version'''
params = { order_id = "key", status = "state.status", version = "version" }

[[senders.shop.apply]]
on = ["refund.succeeded"]
sql = "INSERT INTO refunds (source_event, order_id, amount) VALUES (:event_id, :order_id, :amount)"
params = { event_id = "event_id", order_id = "body.data.order_id", amount = "body.data.amount" }

[destinations.payments]
base_url = "@destination@"
timeout = "3s"
allow_private = ["127.0.0.0/8"]

[effects.capture]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /v1/charges"
json = { amount = "{{ state.amount }}", reference = "capture {{ key }}" }

[effects.receipt]
on = ["shop:refund.succeeded"]
destination = "payments"
request = "POST /v1/receipts"
json = { reference = "receipt {{ event_id }}" }
idempotency_key = "{{ event_id }}:receipt"
"""

#: All is plain HTTP here, and the usual certificates take longer to load than a story to tell.
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

TABLES = """
create table public.orders (
  id text primary key, status text not null, status_version bigint not null);
create table public.refunds (
  source_event text not null, order_id text not null, amount integer not null);
"""


@dataclass
class Sender:
    """A shop with orders and an API; it does not mind telling who asked for what."""

    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    page_size: int = 100
    requests: list[Request] = field(default_factory=list)
    broken: Answer | None = None
    """What the listing answers instead, while it is set."""
    unlisted: set[str] = field(default_factory=set)
    """Orders that exist, and that the listing does not show."""
    before: Callable[[Request], Awaitable[None]] | None = None
    """Awaited before any answer: to change something meanwhile, or to hang."""
    instead: Callable[[Request], Answer] | None = None
    """What any request is answered instead, while it is set."""
    telling: set[asyncio.Task[httpx.Response]] = field(default_factory=set)
    """Webhooks under way whose outcome is awaited: a listing shows what is new only after them."""

    def sets(self, key: str, *, age: float = 0.0, **facts: Any) -> dict[str, Any]:
        """Change an order, *age* seconds ago; returns the webhook's data."""
        held = self.orders.get(key, {"id": key, "version": 0, "status": "new", "paid": False})
        moment = stamp(age=age)
        order = {
            "amount": 4200,
            "created_at": moment,
            **held,
            "version": held["version"] + 1,
            "updated_at": moment,
            **facts,
        }
        self.orders[key] = order
        return {("order_id" if name == "id" else name): value for name, value in order.items()}

    async def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        if self.before is not None:
            await self.before(request)
        if self.instead is not None:
            return self.instead(request)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Answer(status=401, body={})
        if request.path == "/v1/orders":
            while self.telling:
                await asyncio.wait(self.telling)
            return self.broken or Answer(body=self.page(request))
        order = self.orders.get(request.path.removeprefix("/v1/orders/"))
        return Answer(body=order) if order else Answer(status=404, body={})

    def page(self, request: Request) -> dict[str, Any]:
        since = request.query.get("updated_since", "")
        found = [
            order
            for key, order in self.orders.items()
            if key not in self.unlisted and order["updated_at"] >= since
        ]
        start = int(request.query.get("cursor", "0"))
        end = start + self.page_size
        return {
            "data": found[start:end],
            "next_cursor": str(end) if end < len(found) else None,
        }

    @property
    def pages(self) -> list[str]:
        """The cursors that were asked for, in order; "" is a listing's first page."""
        asked = [request for request in self.requests if request.path == "/v1/orders"]
        return [request.query.get("cursor", "") for request in asked]


@dataclass
class Destination:
    """Takes calls and keeps every one; performs each key once, if it is idempotent."""

    idempotent: bool = True
    calls: list[Request] = field(default_factory=list)
    performed: list[tuple[str, Any]] = field(default_factory=list)
    """Key and body of what took effect."""
    troubles: list[Answer] = field(default_factory=list)
    """What the next calls meet, first one first."""
    trouble_with: Callable[[str], Answer | None] = lambda _: None
    """What calls meet by the reference that they give."""
    instead: Callable[[Request], Answer] | None = None
    """What any call is answered instead, while it is set."""

    async def answer(self, request: Request) -> Answer:
        self.calls.append(request)
        if self.instead is not None:
            return self.instead(request)
        trouble = self.troubles.pop(0) if self.troubles else Answer(body={"ok": True})
        trouble = self.trouble_with(request.json().get("reference", "")) or trouble
        key = request.headers["idempotency-key"]
        known = self.idempotent and key in [used for used, _ in self.performed]
        if trouble.status < 400 and not known:
            self.performed.append((key, request.json()))
        return trouble

    @property
    def effects(self) -> list[str]:
        """What took effect, by the reference that each call gave."""
        return sorted(effect["reference"] for _, effect in self.performed)

    @property
    def keys(self) -> list[str]:
        """The idempotency key of every call, in order."""
        return [call.headers["idempotency-key"] for call in self.calls]


@dataclass
class Daemon:
    """One `reconciler serve`."""

    process: asyncio.subprocess.Process | Child
    log_file: Path
    webhooks: str = ""
    admin: str = ""

    async def ready_line(self) -> dict[str, Any] | None:
        assert self.process.returncode is None, self.log
        for line in self.log.splitlines():
            if line.startswith("{") and (facts := json.loads(line))["event"] == "daemon.ready":
                return facts
        return None

    async def is_usable(self) -> bool:
        """Whether it has seen its database: it listens before."""
        return await self.shown("/readyz") is not None

    async def shown(self, path: str) -> str | None:
        """What the admin listener shows at *path*; None where it is not 200."""
        async with httpx.AsyncClient(trust_env=False, timeout=20, verify=PLAIN) as client:
            answer = await client.get(self.admin + path)
        return answer.text if answer.status_code == 200 else None

    @property
    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    async def dies(self) -> None:
        """Wait until SIGKILL has ended it, from outside or at one of its crash points."""
        code = await asyncio.wait_for(self.process.wait(), 30)
        assert -signal.SIGKILL == code, self.log

    async def stops(self) -> None:
        """SIGTERM; it must end with 0."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            code = await asyncio.wait_for(self.process.wait(), 40)
        except TimeoutError:
            raise AssertionError(f"told to stop, it went on: {self.log[-4000:]}") from None
        assert 0 == code, self.log


@dataclass
class World:
    """Everything that a story needs, by its own words."""

    directory: Path
    database_url: str
    sender: Sender
    destination: Destination
    config: Path
    http: httpx.AsyncClient
    daemons: list[Daemon] = field(default_factory=list)
    python: str = sys.executable
    """Whose `reconciler` is started: another version's has an interpreter of its own."""

    @property
    def environment(self) -> dict[str, str]:
        """Ours, without any setting of the product but what the world's file refers to."""
        clean = {n: v for n, v in os.environ.items() if not n.startswith("RECONCILER_")}
        password = make_url(self.database_url).password
        secrets = {"SHOP_SECRET": SECRET, "SHOP_TOKEN": TOKEN}
        return {**clean, **secrets, **({"PGPASSWORD": str(password)} if password else {})}

    @asynccontextmanager
    async def serving(self, *words: str, **environment: str) -> AsyncIterator[Daemon]:
        """The daemon as a process, from ready to SIGTERM; it must end with 0."""
        daemon = await self.start(*words, **environment)
        try:
            yield daemon
        finally:
            await daemon.stops()

    @asynccontextmanager
    async def crashing(self, at: str, *words: str, **environment: str) -> AsyncIterator[Daemon]:
        """A daemon that kills itself at a point of `reconciler.faults`; we wait until it has."""
        daemon = await self.start(*words, RECONCILER_TEST_CRASH_AT=at, **environment)
        yield daemon
        await daemon.dies()

    async def dies_at(self, at: str, *words: str, **environment: str) -> None:
        """Like `crashing`, where nobody has to do anything to bring a daemon to *at*."""
        log_file = self.directory / f"dies-{at}.log"
        process = await self.serve(log_file, *words, RECONCILER_TEST_CRASH_AT=at, **environment)
        await Daemon(process=process, log_file=log_file).dies()

    async def start(self, *words: str, **environment: str) -> Daemon:
        """Start a daemon and wait until it is ready and its database usable."""
        log_file = self.directory / f"serve-{len(self.daemons) + 1}.log"
        process = await self.serve(log_file, *words, **environment)
        daemon = Daemon(process=process, log_file=log_file)
        self.daemons.append(daemon)
        ready = await eventually(daemon.ready_line, within=40)
        daemon.webhooks, daemon.admin = ready["webhooks"], ready["admin"]
        await eventually(daemon.is_usable, within=40)
        return daemon

    async def serve(
        self, log_file: Path, *words: str, **environment: str
    ) -> asyncio.subprocess.Process | Child:
        words = ("serve", "--config", str(self.config), *words)
        environment = {**self.environment, **environment}
        if self.is_forked:
            return await spawned(
                words, at=nursery.at_hand(), env=environment, cwd=self.directory, log=log_file
            )
        with log_file.open("ab") as errors:
            return await asyncio.create_subprocess_exec(
                *(self.python, "-m", "reconciler", *words),
                stderr=errors,
                env=environment,
                cwd=self.directory,
            )

    @property
    def is_forked(self) -> bool:
        return nursery.at_hand is not None and self.python == sys.executable

    async def deliver(
        self,
        event: Mapping[str, Any] | bytes,
        *,
        to: Daemon | None = None,
        secret: str = SECRET,
        at: int | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> httpx.Response:
        """Send one signed webhook, to the daemon that was started last if nothing else is said."""
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        return await self.http.post(
            f"{(to or self.daemons[-1]).webhooks}/webhooks/shop",
            content=body,
            headers={**headers, **signed(body, secret=secret, at=at)},
        )

    async def outcome(self, event: Mapping[str, Any], *, to: Daemon | None = None) -> str:
        """
        Deliver *event*, which must be acknowledged; what it came to.

        A scan that came between the change and its webhook would be right to apply it first.
        """
        delivery = asyncio.create_task(self.deliver(event, to=to))
        self.sender.telling.add(delivery)
        delivery.add_done_callback(self.sender.telling.discard)
        answer = await delivery
        assert 200 == answer.status_code, answer.text
        return str(answer.json()["outcome"])

    async def all_at_once(self, events: Iterable[Mapping[str, Any]]) -> list[httpx.Response]:
        """Deliver all of *events* at the same time; their answers, in order."""
        async with asyncio.TaskGroup() as deliveries:
            sent = [deliveries.create_task(self.deliver(event)) for event in events]
        return [one.result() for one in sent]

    async def command(
        self, *words: str, stdin: bytes = b"", **environment: str
    ) -> tuple[int, str, str]:
        """Run `reconciler`: exit code, stdout, stderr."""
        words = (*words, "--config", str(self.config))
        environment = {**self.environment, **environment}
        if self.is_forked:
            return await self.forked(words, stdin=stdin, environment=environment)
        started = await asyncio.create_subprocess_exec(
            *(self.python, "-m", "reconciler", *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd=self.directory,
        )
        out, err = await started.communicate(stdin)
        assert started.returncode is not None
        return started.returncode, out.decode(), err.decode()

    async def forked(
        self, words: Sequence[str], *, stdin: bytes, environment: Mapping[str, str]
    ) -> tuple[int, str, str]:
        with tempfile.TemporaryDirectory(prefix="command-") as name:
            given, out, err = (Path(name) / stream for stream in ("in", "out", "err"))
            given.write_bytes(stdin)
            child = await spawned(
                words,
                at=nursery.at_hand(),
                env=environment,
                cwd=self.directory,
                log=err,
                input=given,
                output=out,
            )
            return await child.wait(), out.read_text(), err.read_text()

    async def document(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Run `reconciler ... --json`, which must exit with *code*; its document."""
        found, out, err = await self.command(*words, "--json")
        assert code == found, out + err
        document = json.loads(out)
        assert "reconciler.cli/1" == document["schema"]
        return dict(document)

    async def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        async with await psycopg.AsyncConnection.connect(
            self.database_url, row_factory=dict_row, autocommit=True
        ) as connection:
            cursor = await connection.execute(statement, values or None)  # type: ignore[arg-type]
            return await cursor.fetchall() if cursor.description else []

    async def value(self, statement: str, *values: Any) -> Any:
        """The one value that *statement* comes to."""
        (row,) = await self.rows(statement, *values)
        (value,) = row.values()
        return value

    async def counts(self) -> dict[str, int]:
        """Rows of every table, ours and the user's."""
        tables = await self.rows(
            "select schemaname, tablename from pg_tables"
            " where schemaname in ('reconciler', 'public') order by 1, 2"
        )
        return {
            row["tablename"]: await self.value(
                f"select count(*) from {row['schemaname']}.{row['tablename']}"  # noqa: S608
            )
            for row in tables
        }

    async def outbox(self) -> list[dict[str, Any]]:
        """Every entry, oldest first."""
        return await self.rows("select * from reconciler.outbox order by created_at, id")

    async def time_passes(self, *, hours: float = 0) -> None:
        """
        Leases and back-offs of the relay are over; with *hours*, everything that it waits for
        began so long ago. (The database's clock cannot be moved, so what it wrote is.)
        """
        await self.rows(
            "update reconciler.outbox set due_at = now() - interval '1 ms',"
            " first_attempt_at = first_attempt_at - make_interval(secs => %s * 3600),"
            " created_at = created_at - make_interval(secs => %s * 3600)"
            " where state = 'pending' and due_at is not null",
            hours,
            hours,
        )

    async def baseline_over(self) -> None:
        """Wait until every kind's first full scan is complete."""

        async def over() -> bool:
            return not await self.rows(
                "select 1 from reconciler.baselines where completed_at is null"
            )

        await eventually(over)

    async def scans(self, times: int = 2) -> None:
        """Wait until *times* more listings have been read from their first page."""
        before = self.sender.pages.count("")

        async def read() -> bool:
            return self.sender.pages.count("") >= before + times

        await eventually(read)

    async def settled(self) -> None:
        """Wait until the relay has nothing left to do."""

        async def idle() -> bool:
            return not await self.rows(
                "select 1 from reconciler.outbox where state = 'pending' and due_at is not null"
            )

        await eventually(idle)

    async def performed(self, *expected: str) -> None:
        """Once the relay has nothing left to do, exactly these effects have been performed."""
        await self.settled()
        assert sorted(expected) == self.destination.effects

    async def effects(self, *expected: str) -> None:
        """Wait for exactly these effects to have been performed."""

        async def there() -> bool:
            return sorted(expected) == self.destination.effects

        try:
            await eventually(there)
        except AssertionError:
            assert sorted(expected) == self.destination.effects
            raise


@asynccontextmanager
async def a_world(
    directory: Path,
    database_url: str,
    *,
    configuration: str = CONFIGURATION,
    interval: str = "1s",
    around: Callable[[Answering], Answering] = lambda answering: answering,
) -> AsyncIterator[World]:
    """
    A world with its servers listening and its user's tables made; the daemon is not started.

    *around* stands before both servers, and may do other things to a request than they would.
    """
    sender, destination = Sender(), Destination()
    api, pay = await listen(around(sender.answer)), await listen(around(destination.answer))
    config = directory / "reconciler.toml"
    database = make_url(database_url)._replace(password=None)
    places = {
        "@database@": database.render_as_string(hide_password=False),
        "@sender@": api.url,
        "@destination@": pay.url,
        "@interval@": interval,
    }
    for mark, place in places.items():
        configuration = configuration.replace(mark, place)
    config.write_text(configuration)
    many = httpx.Limits(max_connections=250, max_keepalive_connections=0)
    http = httpx.AsyncClient(trust_env=False, verify=PLAIN, timeout=30, limits=many)
    world = World(
        directory=directory,
        database_url=database_url,
        sender=sender,
        destination=destination,
        config=config,
        http=http,
    )
    await world.rows(TABLES)
    try:
        yield world
    finally:
        await http.aclose()
        for daemon in world.daemons:
            if daemon.process.returncode is None:
                daemon.process.kill()
                await daemon.process.wait()
        await api.close()
        await pay.close()


def signed(body: bytes, *, secret: str = SECRET, at: int | None = None) -> dict[str, str]:
    """Headers as the guide's sender makes them."""
    moment = str(int(time.time()) if at is None else at)
    mac = hmac.new(secret.encode(), moment.encode() + b"." + body, hashlib.sha256)
    return {"X-Signature": mac.hexdigest(), "X-Signature-Timestamp": moment}


def stamp(*, age: float = 0.0) -> str:
    """A time as the sender writes it, *age* seconds ago."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age))


def order_event(
    event_id: str, data: Mapping[str, Any], *, type_: str = "order.updated"
) -> dict[str, Any]:
    return {"id": event_id, "type": type_, "created_at": stamp(), "data": dict(data)}


def refund_event(
    event_id: str, *, order_id: str = "ord_42", amount: int = 4200, age: float = 0.0
) -> dict[str, Any]:
    data = {"order_id": order_id, "amount": amount, "currency": "EUR"}
    return {"id": event_id, "type": "refund.succeeded", "created_at": stamp(age=age), "data": data}


async def eventually(look: Callable[[], Awaitable[Any]], *, within: float = 30) -> Any:
    """Await *look* until it returns something true; the wait is bounded, never a guess."""
    deadline = time.monotonic() + within
    while True:
        found = await look()
        if found:
            return found
        name = getattr(look, "__qualname__", str(look))
        assert time.monotonic() < deadline, f"{name} did not come true"
        await asyncio.sleep(0.02)
