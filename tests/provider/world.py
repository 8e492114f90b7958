"""The pretend provider and the relays as processes, and the entries that are put between them."""

import asyncio
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.enqueue import enqueue
from outbox.entry import NewEntry
from reconciler.database import engine_for, transact
from tests import nursery
from tests.history.waiting import until
from tests.mutants import ROOT
from tests.nursery import Child, Nursery

READY = 90.0  #: seconds
STOP = 40.0
LEASE = 5.0
TIMEOUT = 1.5
KEY_LIFE = 14.0 - LEASE - TIMEOUT  #: of the forgetful: its key_ttl less the margin by default

CONFIGURATION = """\
[database]
url = "{database}"

[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
state_directory = "{state}"

[relay]
poll = "50ms"
lease = "5s"
backoff_base = "50ms"
backoff_cap = "400ms"
"""
BREAKER = 'breaker = { after = 5, pause = "100ms", pause_max = "500ms" }'
DESTINATION = """
[destinations.{name}]
base_url = "{provider}/{name}"
bearer = "env:RELAY_NAME"
timeout = "1500ms"
retry_after_max = "400ms"
concurrency = {concurrency}
allow_private = ["127.0.0.0/8"]
{more}
"""
MAIL = """
[destinations.mail]
kind = "smtp"
host = "127.0.0.1"
port = {port}
tls = "none"
from = "orders@shop.example"
ehlo_name = "{caller}"
timeout = "1500ms"
max_attempts = 200
concurrency = {concurrency}
allow_private = ["127.0.0.0/8"]
{breaker}
"""
MANNERS: Mapping[str, str] = {
    "payments": f"max_attempts = 200\n{BREAKER}",
    "lanes": f"max_attempts = 1000\nordered = true\n{BREAKER}",
    "steps": f"max_attempts = 1000\n{BREAKER}",
    "turns": f"max_attempts = 1000\n{BREAKER}",
    "letters": f"max_attempts = 200\nidempotent = false\n{BREAKER}",
    "forgetful": f'max_attempts = 200\nkey_ttl = "14s"\n{BREAKER}',
    # half of its keys never get another answer than an error: a breaker would stay open
    "strict": "max_attempts = 8\nbreaker = { after = 0 }",
}


#: What each of three in a named lane is: other effects, kinds and destinations than the next.
NAMED = (("reserve", "steps", "stock"), ("charge", "turns", "order"), ("ship", "steps", "parcel"))
IN_LANES = ("lanes", "named")


def an_entry(what: str, number: int, *, blocked: bool = False) -> NewEntry:
    """The *number*-th entry of *what*; three in a row of `lanes` and of `named` make one lane."""
    match what:
        case "named":
            return a_named_one(number, blocked=blocked)
        case "mail":
            return a_mail(number)
        case _:
            return a_call(what, number, blocked=blocked)


def a_named_one(number: int, *, blocked: bool) -> NewEntry:
    lane, place = divmod(number, 3)
    effect, destination, kind = NAMED[place]
    told = {"reference": f"{destination} {number}", "place": f"order:{lane}/{place + 1}"}
    return NewEntry(
        sender="shop",
        event_id=f"evt_{destination}_{number}",
        effect=effect,
        destination=destination,
        idempotency_key=f"key_{destination}_{number}",
        kind=kind,
        key=f"{kind}_{lane}",
        lane=f"order:{lane}",
        method="POST",
        path=f"/v1/{effect}",
        headers={"Content-Type": "application/json"},
        body=json.dumps({**told, "blocked": blocked}).encode(),
    )


def a_mail(number: int) -> NewEntry:
    to = f"mail-{number}@customer.example"
    head = f"From: orders@shop.example\r\nTo: {to}\r\nSubject: Your order\r\n\r\n"
    return NewEntry(
        sender="shop",
        event_id=f"evt_mail_{number}",
        effect="mail",
        destination="mail",
        idempotency_key=f"key_mail_{number}",
        idempotent=False,
        method="MAIL",
        path=to,
        headers={"mail-from": "orders@shop.example"},
        body=f"{head}Number {number}.\r\n.\r\n".encode(),
    )


def key_at_the_provider(entry: NewEntry) -> str:
    """What the provider knows *entry* by: a mail by the Message-ID that follows from its key."""
    assert entry.idempotency_key is not None
    if entry.destination != "mail":
        return entry.idempotency_key
    return f"<{hashlib.sha256(entry.idempotency_key.encode()).hexdigest()[:32]}@shop.example>"


def a_call(destination: str, number: int, *, blocked: bool) -> NewEntry:
    lane, place = divmod(number, 3)
    told = {"reference": f"{destination} {number}", "blocked": blocked}
    if destination == "lanes":
        told["place"] = f"{lane}/{place + 1}"
    return NewEntry(
        sender="shop",
        event_id=f"evt_{destination}_{number}",
        effect=destination,
        destination=destination,
        idempotency_key=f"key_{destination}_{number}",
        idempotent=destination != "letters",
        kind="order" if destination == "lanes" else None,
        key=f"lane_{lane}" if destination == "lanes" else None,
        revision=place + 1 if destination == "lanes" else None,
        ordered=destination == "lanes",
        method="POST",
        path="/v1/charges",
        headers={"Content-Type": "application/json"},
        body=json.dumps(told).encode(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """When a relay was killed."""

    caller: str
    at: float


@dataclass(slots=True, kw_only=True)
class Relay:
    """One `reconciler serve --role relay`, which has a new name in each of its lives."""

    name: str
    lives: int = 0
    child: Child | asyncio.subprocess.Process | None = None
    log: Path = Path()
    idle: int = 0  #: KiB in memory when it was ready
    most: int = 0  #: KiB in memory at the worst moment so far
    ready: bool = False

    @property
    def caller(self) -> str:
        return f"{self.name}.{self.lives}"

    def memory(self, what: str) -> int:
        """VmRSS or VmHWM (proc(5)) in KiB; 0 where it has ended."""
        assert self.child is not None
        try:
            said = Path(f"/proc/{self.child.pid}/status").read_text()
        except OSError:
            return 0
        found = re.search(rf"{what}:\s+(\d+)", said)
        return int(found[1]) if found else 0

    def look(self) -> None:
        """Take note of whether it is ready, and of its memory."""
        if not self.ready and '"daemon.ready"' in self.log.read_text():
            self.ready, self.idle = True, self.memory("VmRSS")
        if self.ready:
            self.most = max(self.most, self.memory("VmHWM") - self.idle)


@dataclass(slots=True, kw_only=True)
class World:
    """Everything that a scenario needs."""

    directory: Path
    database_url: str
    seed: int
    engine: AsyncEngine
    warm: Nursery | None  #: None: the one that all tests share
    packages: Path | None
    concurrency: int
    calm: bool
    port: int = 0
    provider: asyncio.subprocess.Process | None = None
    mail_port: int = 0
    mail_server: asyncio.subprocess.Process | None = None
    relays: dict[str, Relay] = field(default_factory=dict)
    deaths: list[Death] = field(default_factory=list)
    provider_deaths: list[float] = field(default_factory=list)
    freezes: list[tuple[str, float, float]] = field(default_factory=list)
    expected: list[NewEntry] = field(default_factory=list)
    grown: int = 0  #: KiB by which a relay has grown at the most

    @property
    def store(self) -> Path:
        return self.directory / "provider.sqlite"

    async def provide(self) -> None:
        """Start the provider, at the place where it was before."""
        self.provider, self.port = await self.server("provider", f"--port={self.port}")

    async def serve_mail(self) -> None:
        """Start the mail server, which shares the provider's store."""
        self.mail_server, self.mail_port = await self.server("mail_server")

    async def server(self, name: str, *words: str) -> tuple[asyncio.subprocess.Process, int]:
        """Start a server of ours; the process and its port."""
        with (self.directory / f"{name}.log").open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"tests.provider.{name}"),
                *(f"--store={self.store}", f"--seed={self.seed}", *words),
                *(["--calm"] if self.calm else []),
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
            )
        assert process.stdout is not None
        async with asyncio.timeout(READY):
            return process, int(await process.stdout.readline())

    async def kill_provider(self) -> None:
        assert self.provider is not None
        self.provider_deaths.append(time.time())
        self.provider.kill()
        await self.provider.wait()

    async def tell(self, name: str, value: str) -> None:
        """Say to the provider how to be from now on."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"POST /_/{name}/{value} HTTP/1.1\r\nHost: provider\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()

    def configure(self, name: str, *, database_url: str | None = None) -> Path:
        url = make_url(database_url or self.database_url)._replace(password=None)
        text = CONFIGURATION.format(
            database=url.render_as_string(hide_password=False), state=self.directory / name
        )
        for destination, more in MANNERS.items():
            text += DESTINATION.format(
                name=destination,
                provider=f"http://127.0.0.1:{self.port}",
                concurrency=self.concurrency,
                more=more,
            )
        if self.mail_port:
            text += MAIL.format(
                port=self.mail_port,
                caller=self.relays[name].caller,
                concurrency=self.concurrency,
                breaker=BREAKER,
            )
        file = self.directory / f"{name}.toml"
        file.write_text(text)
        return file

    async def start(
        self,
        name: str,
        *,
        database_url: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Relay:
        """Start the relay *name*, for the first time or again; it need not be ready yet."""
        relay = self.relays.setdefault(name, Relay(name=name))
        relay.lives += 1
        relay.ready = False
        relay.log = self.directory / f"{relay.caller}.log"
        config = self.configure(name, database_url=database_url)
        clean = {n: v for n, v in os.environ.items() if not n.startswith("RECONCILER_")}
        password = make_url(self.database_url).password
        relay.child = await self.spawn(
            ["serve", "--role", "relay", "--config", str(config)],
            env={
                **clean,
                "RELAY_NAME": relay.caller,
                **({"PGPASSWORD": str(password)} if password else {}),
                **({"PYTHONPATH": str(self.packages)} if self.packages else {}),
                **(environment or {}),
            },
            log=relay.log,
            cold=environment is not None,
        )
        return relay

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cold: bool
    ) -> Child | asyncio.subprocess.Process:
        """A `reconciler` process: forked, or *cold* where a library must be loaded before it."""
        if cold:
            with log.open("ab") as errors:
                return await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "reconciler", *argv),
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=errors,
                    env=env,
                    cwd=self.directory,
                )
        if self.warm is not None:
            return await self.warm.start(argv, env=env, cwd=self.directory, log=log)
        assert nursery.at_hand is not None
        return await nursery.spawned(
            argv, at=nursery.at_hand(), env=env, cwd=self.directory, log=log
        )

    async def ready(self, *names: str) -> None:
        """Wait until these relays are ready."""
        for name in names:
            relay = self.relays[name]

            def is_ready(relay: Relay = relay) -> bool:
                assert relay.child is not None
                assert relay.child.returncode is None, relay.log.read_text()[-2000:]
                relay.look()
                return relay.ready

            assert await until(is_ready, within=READY), relay.log.read_text()[-2000:]

    async def kill(self, name: str) -> None:
        """kill -9."""
        relay = self.relays[name]
        self.look()
        assert relay.child is not None
        self.deaths.append(Death(caller=relay.caller, at=time.time()))
        relay.child.send_signal(signal.SIGKILL)
        await relay.child.wait()

    def told(self, event: str, *words: str) -> int:
        """How often relays have logged *event*, in a line with all of *words*."""
        return self.tellers(event, *words).total()

    def tellers(self, event: str, *words: str) -> Counter[str]:
        """The same, by relay and life."""
        wanted = (f'"{event}"', *words)
        found = Counter[str]()
        for log in self.directory.glob("r*.log"):
            lines = log.read_text().splitlines()
            found[log.stem] = sum(all(word in line for word in wanted) for line in lines)
        return found

    def look(self) -> None:
        for relay in self.relays.values():
            if relay.child is not None and relay.child.returncode is None:
                relay.look()
                self.grown = max(self.grown, relay.most)

    async def stop(self, *names: str) -> None:
        """SIGTERM to these relays, or to all, once they are ready; each must end with 0."""
        relays = [self.relays[name] for name in names or self.relays]
        await self.ready(*(relay.name for relay in relays))
        for relay in relays:
            assert relay.child is not None
            relay.child.send_signal(signal.SIGTERM)
        for relay in relays:
            assert relay.child is not None
            async with asyncio.timeout(STOP):
                code = await relay.child.wait()
            assert code == 0, f"{relay.caller} ended with {code}: {relay.log.read_text()[-2000:]}"

    async def enqueue(self, entries: Iterable[NewEntry]) -> None:
        wanted = list(entries)
        await transact(self.engine, lambda connection: enqueue(connection, wanted))
        self.expected += wanted

    async def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        async with await psycopg.AsyncConnection.connect(
            self.database_url, row_factory=dict_row, autocommit=True
        ) as connection:
            # the server may have been told to refuse writes to everybody but us
            await connection.execute("set default_transaction_read_only = off")
            cursor = await connection.execute(statement.encode(), values or None)
            return await cursor.fetchall() if cursor.description else []

    async def waiting(self) -> int:
        """How many entries have still to be called."""
        (row,) = await self.rows(
            "select count(*) as n from reconciler.outbox where state = 'pending'"
        )
        return int(row["n"])


@asynccontextmanager
async def a_world(
    directory: Path,
    database_url: str,
    *,
    seed: int,
    packages: Path | None = None,
    concurrency: int = 8,
    calm: bool = False,
) -> AsyncIterator[World]:
    """A world with its provider running, and no relay yet; *packages* is a copy to run."""
    async with AsyncExitStack() as stack:
        warm = None
        if packages is not None or nursery.at_hand is None:
            warm = await stack.enter_async_context(nursery.nursery(packages=packages, cold=False))
        engine = engine_for(database_url)
        stack.push_async_callback(engine.dispose)
        world = World(
            directory=directory,
            database_url=database_url,
            seed=seed,
            engine=engine,
            warm=warm,
            packages=packages,
            concurrency=concurrency,
            calm=calm,
        )
        await world.provide()
        try:
            yield world
        finally:
            for relay in world.relays.values():
                if relay.child is not None and relay.child.returncode is None:
                    relay.child.send_signal(signal.SIGCONT)
                    relay.child.send_signal(signal.SIGKILL)
                    await relay.child.wait()
            if world.provider is not None and world.provider.returncode is None:
                await world.kill_provider()
            if world.mail_server is not None:
                world.mail_server.kill()
                await world.mail_server.wait()
