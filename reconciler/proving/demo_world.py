"""The demo's own configuration and processes: the daemon, a pretend sender, a destination."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from reconciler.errors import ReconcilerError
from reconciler.proving.judge import RECEIPT_FROM

SECRETS = {"PRETEND_SECRET": "pretend-secret-for-the-demo", "PRETEND_TOKEN": "pretend-token"}
START_SECONDS = 40

CONFIGURATION = """\
[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
state_directory = "{state}"

[relay]
poll = "100ms"
lease = "8s"
backoff_base = "100ms"
backoff_cap = "1s"

[polling]
poll = "200ms"

[senders.shop]
preset = "generic"
secrets = ["env:PRETEND_SECRET"]
grace = "1s"

[senders.shop.api]
base_url = "{sender}"
bearer = "env:PRETEND_TOKEN"
allow_private = ["127.0.0.0/8"]

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
fields = {{ status = "status", paid = "paid", amount = "amount", currency = "currency" }}

[senders.shop.resources.order.list]
path = "/v1/orders"
items = "data"
key = "id"
changed_at = "updated_at"
created_at = "created_at"
order = "oldest"
pagination = {{ style = "cursor", next = "next_cursor", param = "cursor" }}
since = {{ param = "updated_since", format = "rfc3339", lookback = "10s" }}
interval = "1s"

[senders.shop.resources.order.get]
path = "/v1/orders/{{{{ key }}}}"
key = "id"
absent = "deleted"

[[senders.shop.apply]]
on = ["refund.succeeded"]
sql = "INSERT INTO refunds (source_event, amount) VALUES (:event_id, :amount)"
params = {{ event_id = "event_id", amount = "body.data.amount" }}

[destinations.payments]
base_url = "{destination}"
timeout = "5s"
max_attempts = 40
allow_private = ["127.0.0.0/8"]

[effects.capture]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /v1/charges"
json = {{ amount = "{{{{ state.amount }}}}", reference = "capture {{{{ key }}}}" }}

[effects.receipt]
on = ["shop:refund.succeeded"]
when = "body.data.amount >= {receipt_from}"
destination = "payments"
request = "POST /v1/receipts"
json = {{ amount = "{{{{ body.data.amount }}}}", reference = "receipt {{{{ event_id }}}}" }}
idempotency_key = "{{{{ event_id }}}}:receipt"
"""


def write_configuration(directory: Path, *, sender: str, destination: str) -> Path:
    path = directory / "demo.toml"
    text = CONFIGURATION.format(
        state=directory / "state",
        sender=sender,
        destination=destination,
        receipt_from=RECEIPT_FROM,
    )
    path.write_text(text, encoding="utf-8")
    return path


async def make_tables(directory: Path, config: Path, *, log: Path) -> None:
    """The user's own table, by `reconciler sql`: without a constraint that would hide a double."""
    script = directory / "refunds.sql"
    script.write_text("CREATE TABLE public.refunds (source_event text, amount integer);\n")
    words = ("reconciler", "sql", str(script), "--config", str(config))
    async with process(*words, log=log) as making:
        code = await making.wait()
    if code:
        raise ReconcilerError(f"the demo's table could not be made; see {log}")


def environment() -> dict[str, str]:
    """Ours, with the pretend secrets, and without any setting that is not the demo's."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("RECONCILER_")
    }
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == "RECONCILER_PG_BINDIR" or name.startswith("RECONCILER_TEST_")
    }
    return {**inherited, **kept, **SECRETS}


@asynccontextmanager
async def process(
    *words: str, log: Path, stdin: int | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of ours with its stderr in *log*; ended, gently and then not, when we leave."""
    with log.open("ab") as errors:
        started = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *words,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=environment(),
        )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.terminate()
            try:
                async with asyncio.timeout(30):
                    await started.wait()
            except TimeoutError:
                started.kill()
                await started.wait()


async def first_line(started: asyncio.subprocess.Process, *, log: Path) -> str:
    """The address that a pretend world prints when it listens."""
    assert started.stdout is not None
    async with asyncio.timeout(START_SECONDS):
        line = (await started.stdout.readline()).decode().strip()
    if not line:
        raise ReconcilerError(f"a pretend world did not start; see {log}")
    return line


async def ready_line(started: asyncio.subprocess.Process, *, log: Path) -> Mapping[str, Any]:
    """The daemon's `daemon.ready` line, with the addresses that it listens on."""
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        for line in written(log).splitlines():
            if line.startswith("{") and (facts := json.loads(line))["event"] == "daemon.ready":
                return dict(facts)
        if started.returncode is not None:
            break
        await asyncio.sleep(0.05)
    raise ReconcilerError("the daemon did not become ready", hint=written(log)[-1500:])


def written(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")
