"""The sandbox: a pretend shop and a pretend destination to play with, and a configuration."""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reconciler.errors import BusyError
from reconciler.proving.misbehaving_http import Answer, Request, listen
from reconciler.proving.pretend_shop import stamp
from reconciler.proving.sandbox_shop import Shop, not_kept

SECRET, TOKEN = "sandbox-secret", "sandbox-token"
STATE = "sandbox.json"
CONFIGURATION = """\
# Written by `reconciler sandbox`. Yours to change: it is not written again while it is there.

[server]
listen = "127.0.0.1:{webhooks}"
admin_listen = "127.0.0.1:{admin}"
state_directory = {state}

[relay]
backoff_base = "500ms"
backoff_cap = "5s"

[senders.shop]
preset = "generic"
secrets = [{secret}]
grace = "3s"

[senders.shop.api]
base_url = "http://127.0.0.1:{shop}"
bearer = {token}
allow_private = ["127.0.0.0/8"]

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
fields = {{ status = "status", paid = "paid", amount = "amount", currency = "currency" }}
deleted_on = ["order.deleted"]

[senders.shop.resources.order.list]
path = "/v1/orders"
items = "data"
key = "id"
changed_at = "updated_at"
created_at = "created_at"
order = "oldest"
pagination = {{ style = "cursor", next = "next_cursor", param = "cursor" }}
since = {{ param = "updated_since", format = "rfc3339", lookback = "1m" }}
interval = "10s"
full_every = "1m"

[senders.shop.resources.order.get]
path = "/v1/orders/{{{{ key }}}}"
key = "id"
absent = "deleted"

[destinations.payments]
base_url = "http://127.0.0.1:{payments}"
timeout = "5s"
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
json = {{ amount = "{{{{ body.data.amount }}}}", reference = "receipt {{{{ event_id }}}}" }}
idempotency_key = "{{{{ event_id }}}}:receipt"
"""

HELP = {
    "POST /behave": 'what the next calls meet: {"status": 503}, {"lost": true}, {"delay": 3};'
    ' with {"times": 2} only so many; {} is well again',
    "GET /effects": "what took effect, once per idempotency key",
    "GET /calls": "every call, and what it was answered",
}


@dataclass(kw_only=True)
class Destination:
    """A pretend payment provider that is as broken as it was told to be."""

    save: Callable[[], None] = not_kept
    effects: dict[str, Any] = field(default_factory=dict)  #: by idempotency key
    calls: list[dict[str, Any]] = field(default_factory=list)
    behaviour: dict[str, Any] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        return {"effects": self.effects}

    async def answer(self, request: Request) -> Answer:
        if request.path.startswith("/v1/"):
            return self.called(request)
        match request.method, request.path:
            case "GET", "/effects":
                return Answer(body={"items": list(self.effects.values()), "next": None})
            case "GET", "/calls":
                return Answer(body={"items": self.calls, "next": None})
            case "POST", "/behave":
                try:
                    self.behaviour = dict(json.loads(request.body or b"{}"))
                except (ValueError, TypeError):
                    return Answer(status=400, body={"help": HELP})
                return Answer(body=self.behaviour)
        return Answer(body={"help": HELP})

    def called(self, request: Request) -> Answer:
        key, now = request.headers.get("idempotency-key", ""), dict(self.behaviour)
        if times := now.get("times"):
            self.behaviour = {**now, "times": times - 1} if times > 1 else {}
        status, lost = int(now.get("status", 200)), bool(now.get("lost"))
        if status < 400 and key not in self.effects:
            self.effects[key] = {"key": key, "path": request.path, "body": request.json()}
            self.save()
        said = "no answer" if lost else status
        self.calls.append({"at": stamp(), "key": key, "path": request.path, "answer": said})
        del self.calls[:-200]
        delay = min(float(now.get("delay", 0)), 600.0)
        return Answer(status=status, body={"ok": status < 400}, lost=lost, delay=delay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where everything listens, on loopback."""

    shop: int
    payments: int
    webhooks: int
    admin: int


async def run(world: "World", *, stop: asyncio.Event, told: Callable[[], None]) -> None:
    """
    Run shop and destination until *stop*; *told* is called when both listen.

    Raises BusyError where a port is taken.
    """
    shop, destination, ports = world.shop, world.destination, world.ports
    listeners = []
    try:
        for answering, port in (
            (shop.answer, ports.shop),
            (destination.answer, ports.payments),
        ):
            listeners.append(await listen(answering, port=port))
    except OSError as error:
        for listener in listeners:
            await listener.close()
        raise BusyError(
            f"a port is taken: {error.strerror}",
            hint="another sandbox? choose others: --directory elsewhere --first-port 9200",
        ) from None
    world.save()
    shop.resume()
    told()
    await stop.wait()
    for listener in listeners:
        await listener.close()
    for task in tuple(shop.telling):
        task.cancel()


def prepare(directory: Path, *, seed: int, first_port: int) -> "World":
    """
    Make *directory* a sandbox, or go on with the one that it has been.

    What is kept there (the ports, the seed) stands before what is asked for.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / STATE
    held = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    ports = Ports(**(held.get("ports") or ports_from(first_port)))
    shop = Shop(
        seed=held.get("seed", seed),
        target=f"http://127.0.0.1:{ports.webhooks}/webhooks/shop",
        secret=SECRET.encode(),
        token=TOKEN,
        **held.get("shop", {}),
    )
    return World(
        file=file,
        ports=ports,
        config=write_configuration(directory, ports),
        shop=shop,
        destination=Destination(**held.get("destination", {})),
    )


@dataclass(kw_only=True)
class World:
    """What one sandbox is made of."""

    file: Path
    ports: Ports
    config: Path
    shop: Shop
    destination: Destination

    def __post_init__(self) -> None:
        self.shop.save = self.destination.save = self.save

    def save(self) -> None:
        """All or nothing: a kill in the middle leaves what was there before."""
        whole = {
            "seed": self.shop.seed,
            "ports": asdict(self.ports),
            "shop": self.shop.state(),
            "destination": self.destination.state(),
        }
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(whole), encoding="utf-8")
        fresh.replace(self.file)


def ports_from(first: int) -> dict[str, int]:
    """Four ports from *first* on; with 0, four that are free now."""
    names: Sequence[str] = tuple(Ports.__dataclass_fields__)
    if first:
        return {name: first + number for number, name in enumerate(names)}
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in names]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return {name: one.getsockname()[1] for name, one in zip(names, sockets, strict=True)}


def write_configuration(directory: Path, ports: Ports) -> Path:
    """The configuration and the secrets beside it; what is there already stays."""
    config = directory / "reconciler.toml"
    secrets = {"secret": (directory / "secret", SECRET), "token": (directory / "token", TOKEN)}
    for file, text in secrets.values():
        if not file.exists():
            file.touch(mode=0o600)
            file.write_text(text + "\n", encoding="utf-8")
    if not config.exists():
        places = {name: json.dumps(f"file:{file.resolve()}") for name, (file, _) in secrets.items()}
        text = CONFIGURATION.format(
            state=json.dumps(os.fspath((directory / "state").resolve())),
            **places,
            **{name: getattr(ports, name) for name in Ports.__dataclass_fields__},
        )
        config.write_text(text, encoding="utf-8")
    return config
