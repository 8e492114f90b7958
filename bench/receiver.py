"""Measure the receiver against a naive one that does the same work, and one that does none."""

# ruff: noqa: PLC0415 - each process imports what it measures

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

SECRET = "bench-secret"  # noqa: S105
CONFIGURATION = """
[senders.shop]
secrets = ["env:SHOP_SECRET"]

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
fields = { status = "status", amount = "amount", currency = "currency" }
first_seen = "fire"

[destinations.payments]
base_url = "http://127.0.0.1:9"

[effects.capture]
on_change = ["shop:order"]
becomes = "state.status == 'paid'"
destination = "payments"
request = "POST /v1/charges"
json = { amount = "{{ state.amount }}", reference = "{{ key }}" }
"""


def main() -> None:
    """Run by hand: `python -m bench.receiver`; every figure is a median of alternating runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4, help="how long one run takes")
    parser.add_argument("--rounds", type=int, default=3, help="how often they alternate")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--serve", choices=list(SERVERS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help="a PostgreSQL that may be used; absent: a private one")
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(SERVERS[arguments.serve](arguments.url))
        return
    with database(arguments.url) as url:
        asyncio.run(compare(url, arguments))


async def compare(url: str, arguments: argparse.Namespace) -> None:
    runs: dict[str, list[Run]] = {name: [] for name in SERVERS}
    for number in range(arguments.rounds):
        for name, done in runs.items():
            prefix = f"{name}-{number}-{os.getpid()}"
            async with serving(name, url) as (port, pid):
                before = cpu_seconds(pid)
                run = await load(
                    port,
                    prefix=prefix,
                    connections=arguments.connections,
                    seconds=arguments.seconds,
                )
                run.cpu = (cpu_seconds(pid) - before) / run.count * 1e6
                done.append(run)
            print(f"{name:>6} {done[-1]}", flush=True)
    ours, naive, bare = (median(runs[name]) for name in ("ours", "naive", "bare"))
    print(f"\nmedians of {arguments.rounds}, {arguments.connections} connections")
    print(f"  ours   {ours}\n  naive  {naive}\n  bare   {bare}")
    print(
        f"  ratio  {ours.rate / naive.rate:.1f} x the deliveries,"
        f" p50 1/{naive.p50 / ours.p50:.1f}, p99 1/{naive.p99 / ours.p99:.1f},"
        f" CPU 1/{naive.cpu / ours.cpu:.1f}"
    )


@dataclass(slots=True)
class Run:
    """What one run came to."""

    count: int  #: deliveries
    rate: float  #: of them a second
    p50: float  #: milliseconds
    p99: float  #: milliseconds
    cpu: float = 0  #: microseconds of the server's process a delivery: hardly moved by others

    def __str__(self) -> str:
        return (
            f"{self.rate:8.0f}/s  p50 {self.p50:6.1f} ms  p99 {self.p99:6.1f} ms"
            f"  {self.cpu:5.0f} us CPU each"
        )


def median(runs: list[Run]) -> Run:
    names = ("count", "rate", "p50", "p99", "cpu")
    return Run(*(statistics.median(getattr(run, name) for run in runs) for name in names))


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far (proc(5): utime and stime, in ticks)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(port: int, *, prefix: str, connections: int, seconds: float) -> Run:
    """Deliver different events over *connections* for so long; every answer must be 200."""
    times: list[float] = []
    begun = time.perf_counter()

    async def deliver(lane: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        number = 0
        while time.perf_counter() - begun < seconds:
            number += 1
            request = delivery(f"{prefix}-{lane}-{number}")
            sent = time.perf_counter()
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(answer)
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            await reader.readexactly(length)
            times.append(time.perf_counter() - sent)
        writer.close()

    async with asyncio.TaskGroup() as lanes:
        for lane in range(connections):
            lanes.create_task(deliver(lane))
    elapsed = time.perf_counter() - begun
    cuts = statistics.quantiles(times, n=100)
    return Run(len(times), len(times) / elapsed, cuts[49] * 1000, cuts[98] * 1000)


def delivery(event_id: str) -> bytes:
    body = json.dumps(
        {
            "id": event_id,
            "type": "order.paid",
            "created_at": "2026-12-01T10:00:00Z",
            "data": {
                "order_id": f"ord-{event_id}",
                "version": 1,
                "status": "paid",
                "amount": 1250,
                "currency": "EUR",
                "note": "x" * 200,
            },
        }
    ).encode()
    stamp = int(time.time())
    mac = hmac.digest(SECRET.encode(), b"%d.%b" % (stamp, body), "sha256").hex()
    return (
        f"POST /webhooks/shop HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"X-Signature: {mac}\r\nX-Signature-Timestamp: {stamp}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


@contextlib.asynccontextmanager
async def serving(name: str, url: str) -> AsyncIterator[tuple[int, int]]:
    """Run one of the receivers in a process of its own; yield its port and its pid."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.receiver", "--serve", name, "--url", url,
        stdout=subprocess.PIPE, env={**os.environ, "SHOP_SECRET": SECRET},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline()), process.pid
    finally:
        process.terminate()
        await process.wait()


@contextlib.contextmanager
def database(url: str | None) -> Iterator[str]:
    """Yield a migrated database with fsync on: the given one, or a private one."""
    from reconciler import embedded, migrate

    if url is not None:
        asyncio.run(migrate.upgrade(url))
        yield url
        return
    directory = Path(tempfile.mkdtemp(prefix="rb-", dir="/tmp"))
    server = embedded.start(directory)
    try:
        asyncio.run(migrate.upgrade(server.url))
        yield server.url
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


async def serve_ours(url: str) -> None:
    """Our receiver in its default configuration, composed as the daemon composes it."""
    from reconciler import listening, logs
    from reconciler.database import engine_for
    from reconciler.ledger.commit import commit
    from reconciler.operations.assembly import assemble
    from reconciler.receiver import server
    from reconciler.receiver.app import WebhookApp
    from reconciler.receiver.group_commit import GroupCommit
    from reconciler.receiver.keeping import keeper

    logs.configure(stream=Path(os.devnull).open("w"))  # noqa: ASYNC230, SIM115 - as fast as a pipe
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "reconciler.toml"
        file.write_text(CONFIGURATION)
        assembly = assemble(file)
    engine = engine_for(url)
    settings = assembly.loaded.settings.receiver
    app = WebhookApp(
        contracts=assembly.contracts,
        committer=GroupCommit(
            commit=partial(commit, engine, assembly.rules),
            batch_max=settings.batch_max,
            waiting_max=settings.waiting_max,
        ),
        keep=keeper(engine),
        settings=settings,
    )
    listeners = listening.listen_on("127.0.0.1:0")
    print(listeners.sockets[0].getsockname()[1], flush=True)
    await server.run(app, listeners, drain=timedelta(seconds=1), stop=asyncio.Event())


async def serve_bare(_: str) -> None:
    """The ceiling: our HTTP server with an application that reads the body and says yes."""
    from reconciler import http_server, listening

    async def app(_: http_server.Scope, receive: http_server.Receive, send: http_server.Send):
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    listeners = listening.listen_on("127.0.0.1:0")
    print(listeners.sockets[0].getsockname()[1], flush=True)
    limits = http_server.Limits(drain=timedelta(seconds=1))
    await http_server.run(app, listeners, limits=limits, stop=asyncio.Event())


async def serve_naive(url: str) -> None:
    """What one writes first: Starlette, a pool of psycopg connections, a transaction an event."""
    import psycopg
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from reconciler import listening

    pool: asyncio.Queue[psycopg.AsyncConnection] = asyncio.Queue()
    for _ in range(10):
        pool.put_nowait(await psycopg.AsyncConnection.connect(url))

    async def receive(request: Request) -> JSONResponse:
        body = await request.body()
        stamp = request.headers["x-signature-timestamp"]
        expected = hmac.digest(SECRET.encode(), f"{stamp}.".encode() + body, "sha256").hex()
        if not hmac.compare_digest(expected, request.headers["x-signature"]):
            return JSONResponse({"error": "signature"}, status_code=401)
        event = json.loads(body)
        connection = await pool.get()
        try:
            async with connection.transaction():
                outcome = await apply(connection, event, body, dict(request.headers))
        finally:
            pool.put_nowait(connection)
        return JSONResponse({"outcome": outcome, "event_id": event["id"]})

    app = Starlette(routes=[Route("/webhooks/shop", receive, methods=["POST"])])
    config = uvicorn.Config(app, port=0, log_level="warning", access_log=False, lifespan="off")
    listener = listening.bind("127.0.0.1:0")
    print(listener.getsockname()[1], flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


async def apply(connection, event, body: bytes, headers: dict[str, str]) -> str:
    """Claim, keep the body, write the state under the guard, ask for the effect: six statements."""
    import uuid

    data, event_id = event["data"], event["id"]
    claimed = await connection.execute(
        "insert into reconciler.processed_events (sender, event_id, event_type, kind, key, version,"
        " outcome, body_digest) values ('shop', %s, %s, 'order', %s, %s, 'applied', %s)"
        " on conflict do nothing",
        (event_id, event["type"], data["order_id"], data["version"], "digest"),
    )
    if not claimed.rowcount:
        return "duplicate"
    await connection.execute(
        "insert into reconciler.event_bodies (sender, event_id, body, headers)"
        " values ('shop', %s, %s, %s)",
        (event_id, body, json.dumps(headers)),
    )
    previous = await connection.execute(
        "select state from reconciler.resources"
        " where (sender, kind, key) = ('shop', 'order', %s) for update",
        (data["order_id"],),
    )
    held = await previous.fetchone()
    written = await connection.execute(
        "insert into reconciler.resources (sender, kind, key, version, state, origin, updated_at)"
        " values ('shop', 'order', %s, %s, %s, 'webhook', now()) on conflict (sender, kind, key)"
        " do update set version = excluded.version, state = excluded.state"
        " where resources.version < excluded.version",
        (data["order_id"], data["version"], json.dumps(data)),
    )
    if not written.rowcount:
        return "stale"
    if data["status"] == "paid" and (held is None or held[0]["status"] != "paid"):
        charge = {"amount": data["amount"], "reference": data["order_id"]}
        key = f"shop:order:{data['order_id']}:{data['version']}:capture"
        entry = str(uuid.uuid4())
        await connection.execute(
            "insert into reconciler.effect_keys (destination, idempotency_key, effect, entry_id,"
            " sender) values ('payments', %s, 'capture', %s, 'shop')",
            (key, entry),
        )
        await connection.execute(
            "insert into reconciler.outbox (id, sender, event_id, effect, destination,"
            " idempotency_key, method, path, body, state, due_at)"
            " values (%s, 'shop', %s, 'capture', 'payments', %s, 'POST', '/v1/charges', %s,"
            " 'pending', now())",
            (entry, event_id, key, json.dumps(charge).encode()),
        )
    return "applied"


SERVERS = {"ours": serve_ours, "naive": serve_naive, "bare": serve_bare}

if __name__ == "__main__":
    main()
