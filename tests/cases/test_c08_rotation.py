"""Rotation: any secret that we know, with any signature that is listed."""

import base64
import hmac
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.settings import load
from tests.receiver.receiving import Receiving, receiving
from tests.receiver.senders import NOW, body_of

pytestmark = pytest.mark.anyio

OLD, NEW, OTHER = "whispered-old", "whispered-new", "whispered-elsewhere"


def mac(key: str | bytes, signed: bytes) -> bytes:
    return hmac.digest(key if isinstance(key, bytes) else key.encode(), signed, "sha256")


def stamped(secret: str, body: bytes) -> str:
    return mac(secret, b"%d.%b" % (NOW, body)).hex()


def told(number: int) -> bytes:
    return body_of({"id": f"evt_{number}", "type": "refund.succeeded", "object": "event"})


async def answers(
    shop: Receiving, path: str, cases: list[tuple[bytes, dict[str, str]]]
) -> list[int]:
    return [(await shop.post(body, path, headers)).status_code for body, headers in cases]


def knowing(
    monkeypatch: pytest.MonkeyPatch, directory: Path, preset: str, *secrets: str, more: str = ""
) -> None:
    """Let the receiver know *secrets*, the way that a person who rotates says them."""
    config = directory / "rotating.toml"
    references = ", ".join(f'"env:S{number}"' for number, _ in enumerate(secrets))
    config.write_text(f'[senders.it]\npreset = "{preset}"\nsecrets = [{references}]\n{more}')
    environ = {f"S{number}": secret for number, secret in enumerate(secrets)}
    monkeypatch.setattr(
        "tests.receiver.receiving.loaded", lambda *_, **__: load(config, environ=environ)
    )


async def test_a_compound_header_lists_old_and_new(
    engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The sender has switched and signs with both; we know the old one only. Schemes that we do
    not know are passed over, wherever they stand, and prove nothing by themselves.
    """
    knowing(monkeypatch, tmp_path, "stripe", OLD)
    body = told(1)
    old, new = stamped(OLD, body), stamped(NEW, body)
    listed = {
        f"t={NOW},v1={new},v1={old}": 200,
        f"t={NOW},v1={old},v1={new}": 200,
        f"v1={old},t={NOW}": 200,
        f"v0={new},t={NOW}, v1={new} , v1={old}": 200,
        f"t={NOW},v1=rubbish,v1={old}": 200,
        f"t={NOW},v1={old},v2={new},v1=": 200,
        f"t={NOW},v1={old.upper()}": 200,
        f"t={NOW},v1={new}": 401,
        f"t={NOW},v0={old}": 401,
        f"t={NOW},v1={old[:-2]}": 401,
        f"t={NOW},v1={old}00": 401,
        f"t={NOW},{old}": 401,
        f"t={NOW},t={NOW + 1},v1={old}": 401,
        f"v1={old}": 401,
    }
    async with receiving(engine, tmp_path) as shop:
        cases = [(body, {"Stripe-Signature": line}) for line in listed]
        assert [*listed.values()] == await answers(shop, "/webhooks/it", cases)


async def test_a_retry_from_before_the_switch(
    engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """We know old and new: deliveries by either come through, in any header, one line or two."""
    knowing(monkeypatch, tmp_path, "generic", NEW, OLD)
    stamp = ("X-Signature-Timestamp", str(NOW))
    async with receiving(engine, tmp_path) as shop:
        for number, secret in enumerate((OLD, NEW)):
            body = told(number)
            headers = dict([stamp]) | {"X-Signature": stamped(secret, body)}
            assert 200 == (await shop.post(body, "/webhooks", headers)).status_code
        body = told(9)
        other = dict([stamp]) | {"X-Signature": stamped(OTHER, body)}
        assert 401 == (await shop.post(body, "/webhooks", other)).status_code
        for pair in ((OTHER, OLD), (NEW, OTHER)):
            lines = [stamp, *(("X-Signature", stamped(secret, body)) for secret in pair)]
            answer = await shop.http.post("/webhooks/it", content=body, headers=lines)
            assert 200 == answer.status_code


async def test_signatures_separated_by_spaces(
    engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard Webhooks lists them with a version each; one of another version is passed over."""
    keys = [b"an old key of 24 bytes..", b"a new key of 24 bytes..."]
    old, new = (f"whsec_{base64.b64encode(key).decode()}" for key in keys)
    body = told(1)

    def sign(key: bytes) -> str:
        return base64.b64encode(mac(key, b"msg_1.%d.%b" % (NOW, body))).decode()

    by_old, by_new = (sign(key) for key in keys)
    listed = {
        f"v1,{by_new} v1,{by_old}": (200, 200),
        f"v1a,{by_new} v1,{by_old}": (200, 200),
        f"v1,{by_new}": (401, 200),
        f"v1,{by_old}": (200, 200),
        f"v1a,{by_old}": (401, 401),
        f"v2,{by_old} v1,": (401, 401),
    }
    ids = {"webhook-id": "msg_1", "webhook-timestamp": str(NOW)}
    for place, known in enumerate(((old,), (new, old))):
        knowing(monkeypatch, tmp_path, "standard-webhooks", *known)
        async with receiving(engine, tmp_path) as shop:
            cases = [(body, {**ids, "webhook-signature": line}) for line in listed]
            expected = [codes[place] for codes in listed.values()]
            assert expected == await answers(shop, "/webhooks/it", cases)


async def test_a_prefix_before_each_signature(
    engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GitHub signs with one secret; who rotates knows two. Its older header does not count."""
    knowing(monkeypatch, tmp_path, "github", NEW, OLD)
    body = b'{"action": "opened"}'
    event = {"X-GitHub-Event": "issues", "X-GitHub-Delivery": "d1"}

    def by(secret: str, prefix: str = "sha256=") -> dict[str, str]:
        return {**event, "X-Hub-Signature-256": prefix + mac(secret, body).hex()}

    sha1 = {**event, "X-Hub-Signature": "sha1=" + hmac.new(OLD.encode(), body, "sha1").hexdigest()}
    async with receiving(engine, tmp_path) as shop:
        cases = [
            (body, headers)
            for headers in (by(OLD), by(NEW), by(OTHER), by(OLD, ""), by(OLD, "sha1="), sha1)
        ]
        assert [200, 200, 401, 401, 401, 401] == await answers(shop, "/webhooks/it", cases)
