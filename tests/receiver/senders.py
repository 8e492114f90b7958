"""Senders for the receiver's stories: configured in files, as a user would, and signing."""

import hmac
import json
from collections.abc import Mapping
from pathlib import Path

from reconciler.ledger.projection import compile_kind
from reconciler.receiver.contract import SenderContract, compile_sender
from reconciler.settings import Loaded, load

NOW = 1_796_119_200
SECRET = "It's a Secret to Everybody"  # noqa: S105 - GitHub published it

SHOP = """
[senders.shop]
secrets = ["env:SHOP_SECRET"]
api = { base_url = "http://127.0.0.1:9", allow_private = ["127.0.0.0/8"] }

[senders.shop.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
fields = { status = "status", amount = "amount" }
deleted_on = ["order.deleted"]

[senders.shop.resources.order.list]
path = "/v1/orders"
items = "data"
key = "id"

[senders.shop.resources.order.get]
path = "/v1/orders/{{ key }}"
key = "id"
"""


def loaded(directory: Path, text: str = SHOP, *, secret: str = SECRET) -> Loaded:
    """Load *text* as the configuration of a user whose senders have one secret."""
    file = directory / "reconciler.toml"
    file.write_text(text)
    return load(file, environ={"SHOP_SECRET": secret})


def contracts_of(configuration: Loaded) -> dict[str, SenderContract]:
    return {
        name: compile_sender(
            name,
            sender,
            configuration.secrets,
            {kind: compile_kind(name, kind, each) for kind, each in sender.resources.items()},
        )
        for name, sender in configuration.settings.senders.items()
    }


def contract(directory: Path, text: str = SHOP, *, secret: str = SECRET) -> SenderContract:
    """Compile the first sender of *text*."""
    return next(iter(contracts_of(loaded(directory, text, secret=secret)).values()))


def signed(body: bytes, *, secret: str = SECRET, now: int = NOW) -> dict[str, str]:
    """Sign as the generic preset has it."""
    mac = hmac.new(secret.encode(), b"%d.%b" % (now, body), "sha256").hexdigest()
    return {"X-Signature": mac, "X-Signature-Timestamp": str(now)}


def raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers as a server hands them over."""
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def order(event_id: object = "evt_1", *, version: object = 1, **data: object) -> dict[str, object]:
    return {
        "id": event_id,
        "type": "order.paid",
        "created_at": "2026-12-01T10:00:00Z",
        "data": {"order_id": "ord_42", "version": version, "status": "paid", **data},
    }


def body_of(document: object) -> bytes:
    return json.dumps(document).encode()
