"""P17, content never causes a 5xx: the whole catalogue, at three senders, against the daemon."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.stories.conftest import UNHEALED
from tests.world import CONFIGURATION, SECRET, World, a_world, eventually

pytestmark = pytest.mark.anyio

OTHERS = """
[senders.std]
preset = "standard-webhooks"
secrets = ["env:STD_SECRET"]
[senders.std.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"

[senders.pay]
preset = "stripe"
secrets = ["env:PAY_SECRET"]
[senders.pay.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
"""
STD_KEY = b"twenty-four bytes of key"
SECRETS = {"STD_SECRET": "whsec_" + base64.b64encode(STD_KEY).decode(), "PAY_SECRET": SECRET}

Headers = list[tuple[bytes, bytes]]


def shop(body: bytes, at: str, _id: str) -> Headers:
    mac = hmac.new(SECRET.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
    return [(b"X-Signature", mac.encode()), (b"X-Signature-Timestamp", at.encode())]


def std(body: bytes, at: str, id_: str) -> Headers:
    text = f"{id_}.{at}.".encode() + body
    mac = base64.b64encode(hmac.new(STD_KEY, text, hashlib.sha256).digest())
    return [
        (b"webhook-signature", b"v1," + mac),
        (b"webhook-timestamp", at.encode()),
        (b"webhook-id", id_.encode()),
    ]


def pay(body: bytes, at: str, _id: str) -> Headers:
    mac = hmac.new(SECRET.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
    return [(b"Stripe-Signature", f"t={at},v1={mac}".encode())]


SENDERS: dict[str, Callable[[bytes, str, str], Headers]] = {"shop": shop, "std": std, "pay": pay}


def event(number: int | str, **data: Any) -> dict[str, Any]:
    about = {"order_id": f"ord_{number}", "version": 1, "status": "paid", **data}
    return {"id": f"evt_{number}", "type": "order.updated", "data": about}


def as_bytes(document: object) -> bytes:
    return document if isinstance(document, bytes) else json.dumps(document).encode()


def raw(number: int | str, member: bytes) -> bytes:
    """An event whose data has *member* as it is written."""
    return as_bytes(event(number)).replace(b'"status": "paid"', member)


SQL = "'); drop table orders; --"
INJECTIONS = [
    SQL,
    "%s %(x)s {0.__class__}",
    "{{ 7 * 7 }}{% for x in y %}",
    "${jndi:ldap://x}",
    "a\r\nX-Evil: 1",
    "\x1b[2J\x1b]0;x\x07",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "../../etc/passwd",
    "//host/?#%2f",
    "__proto__",
    "\ufeff\u202e\u0000"[:2],
]

#: What must be applied all the same: it only looks dangerous.
HARMLESS: dict[str, object] = {
    **{f"injection {n}": event(f"i{n}", status=text) for n, text in enumerate(INJECTIONS)},
    **{f"as a key {n}": event(f"k{n}", order_id=text) for n, text in enumerate(INJECTIONS)},
    "members of every object": event("m1", __proto__={"a": 1}, constructor=None, toString=1),
    "a member twice": raw("m2", b'"status": "a", "status": "paid"'),
    "a number of many digits": raw("m3", b'"status": "x", "amount": 12.%b' % (b"3" * 90)),
    "the largest version": event("m4", version=2**63 - 1),
    "the least version": event("m5", version=-(2**63)),
    "ten thousand members": event("m6", **{f"x{n}": n for n in range(10_000)}),
    "half a megabyte of text": event("m7", status="\u20ac" * 170_000),
    "a time that is none": {**event("m8"), "created_at": "infinity", "created": 1e30},
    "a time in the year 20000": {**event("m9"), "created_at": "20000-01-01T00:00:00Z"},
    "every space there is": b" \r\n\t" + as_bytes(event("m10")) + b"\r\n ",
}

#: What is beyond use: kept, and acknowledged, so that nobody sends it for days.
BEYOND_USE: dict[str, object] = {
    "null": b"null",
    "a list": b"[]",
    "a text": b'"x"',
    "zero": b"0",
    "nothing": b"",
    "half": b'{"id": "evt_half", ',
    "two": as_bytes(event("two")) * 2,
    "HTML": b"<html><h1>502</h1></html>",
    "an endless list": b"[" * 100_000,
    "a deep one": raw("b1", b'"x": ' + b"[" * 5000 + b"]" * 5000),
    "NUL": event("b2", status="a\u0000b"),
    "NUL in a name": event("b3", **{"a\u0000b": 1}),
    "half a character": raw("b4", b'"status": "\\ud800"'),
    "not UTF-8": raw("b5", b'"status": "\xff\xfe"'),
    "an overlong slash": raw("b6", b'"status": "\xc0\xaf"'),
    "UTF-16": json.dumps(event("b7")).encode("utf-16"),
    "NaN": raw("b8", b'"status": NaN'),
    "Infinity": raw("b9", b'"status": -Infinity'),
    "5000 digits": raw("b10", b'"status": "x", "amount": ' + b"9" * 5000),
    "an exponent without an end": raw("b11", b'"status": "x", "amount": 1e200000'),
    "an exponent below": raw("b12", b'"status": "x", "amount": 1e-200000'),
    "a version of 64 bits": event("b13", version=2**63),
    "a version that is true": event("b14", version=True),
    "a version of a half": event("b15", version=1.5),
    "a padded version": event("b16", version="007"),
    "a version in Arabic": event("b17", version="\u0661"),
    "a version that is a list": event("b18", version=[1]),
    "a key that is a list": event("b19", order_id=["x"]),
    "an empty key": event("b20", order_id=""),
    "a key of 8 KiB": event("b21", order_id="k" * 8192),
    "no type": {"id": "evt_b22", "data": {}},
    "data that is a number": {"id": "evt_b23", "type": "order.updated", "data": 7},
}

#: The same, of ids; they stand in the body, but for Standard Webhooks.
IDS: dict[str, object] = {
    "an id of 8 KiB": {**event("d1"), "id": "x" * 8192},
    "an empty id": {**event("d2"), "id": ""},
    "an id with NUL": {**event("d3"), "id": "a\u0000b"},
    "an id that is true": {**event("d4"), "id": True},
    "an id of a half": {**event("d5"), "id": 1.5},
    "an id that is an object": {**event("d6"), "id": {"a": 1}},
    "no id": {"type": "order.updated", "data": {}},
    "an id like a correction's": {**event("d7"), "id": "correction:order:x:1"},
}

TIMES = [
    "",
    "-1",
    "0",
    "+5",
    "1e9",
    " 1",
    "1_000",
    "\u0661\u0662",
    "2147483648",
    str(2**63),
    "9" * 40,
]


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    async with a_world(tmp_path, database_url, configuration=CONFIGURATION + OTHERS) as world:
        yield world


async def posted(world: World, sender: str, body: bytes, headers: Headers) -> tuple[int, str]:
    answer = await world.http.post(
        f"{world.daemons[-1].webhooks}/webhooks/{sender}", content=body, headers=headers
    )
    outcome = answer.json().get("outcome", "") if answer.content else ""
    return answer.status_code, outcome


async def test_p17_no_content_of_an_authentic_delivery_is_answered_with_a_5xx(world: World):
    """
    What databases, parsers and templates choke on, rightly signed: applied where it only looks
    strange, else kept and acknowledged. The daemon is the same at the end, and has noted nothing
    that it did not expect.
    """
    at = str(int(time.time()))
    async with world.serving(*UNHEALED, **SECRETS) as daemon:
        for sender, sign in SENDERS.items():
            cases = {name: ("applied", content) for name, content in HARMLESS.items()}
            beyond = BEYOND_USE | ({} if sender == "std" else IDS)
            cases |= {name: ("quarantined", content) for name, content in beyond.items()}
            for number, (name, (expected, content)) in enumerate(cases.items()):
                body = as_bytes(content)
                found = await posted(world, sender, body, sign(body, at, f"msg_{number}"))
                assert (sender, name, 200, expected) == (sender, name, *found)
        kept = await world.rows("select sender, count(*) from reconciler.quarantine group by 1")
        both = len(BEYOND_USE) + len(IDS)
        counts = {row["sender"]: row["count"] for row in kept}
        assert {"shop": both, "pay": both, "std": len(BEYOND_USE)} == counts
        told = [json.loads(line) for line in daemon.log.splitlines()]
        assert [] == [line for line in told if "exception" in line]


async def test_p17_no_signature_and_no_time_is_answered_with_a_5xx(world: World):
    """Missing, empty, doubled, foreign, altered, of another alphabet: refused, and nothing kept."""
    now = int(time.time())
    body = as_bytes(event("forged"))
    async with world.serving(*UNHEALED, **SECRETS):
        for sender, sign in SENDERS.items():
            right = sign(body, str(now), "msg_1")
            name, value = right[0]
            others = right[1:]
            foreign = SENDERS["pay" if sender != "pay" else "std"](body, str(now), "msg_1")
            forgeries: dict[str, Headers] = {
                "none": [],
                "no signature": others,
                "empty": [(name, b""), *others],
                "not ASCII": [(name, "\u00e9\u00ff".encode("latin-1")), *others],
                "backwards": [(name, value[::-1]), *others],
                "shortened": [(name, value[:-1]), *others],
                "of another sender": [(name, foreign[0][1]), *others],
                "many": [(name, b",".join([b"v1=00"] * 2000)), *others],
                "many lines": [(name, b"v1=00")] * 50 + others,
                "only commas": [(name, b",,,===,,"), *others],
            }
            for stamp in TIMES:
                forgeries[f"signed at {stamp!r}"] = signed_at(sign, body, stamp)
            for moved in (-301, 400, -(10**9)):
                forgeries[f"signed {moved} s off"] = sign(body, str(now + moved), "msg_1")
            for case, headers in forgeries.items():
                status, _ = await posted(world, sender, body, headers)
                assert (sender, case, 401) == (sender, case, status)
            for position in range(0, len(body), 7):
                altered = bytearray(body)
                altered[position] ^= 1
                assert (401, "") == await posted(world, sender, bytes(altered), right)
            assert (200, "applied") == await posted(world, sender, body, right)
    counts = await world.counts()
    assert (3, 0) == (counts["processed_events"], counts["quarantine"])


def signed_at(sign: Callable[[bytes, str, str], Headers], body: bytes, stamp: str) -> Headers:
    """Signed over a time that is none, which then stands in its header as UTF-8."""
    return [(name, value.strip()) for name, value in sign(body, stamp, "msg_1")]


async def test_p17_what_a_listing_says_is_content_too(world: World):
    """The same in a page of the listing: the scan completes, and the neighbours are corrected."""
    for number in range(3):
        world.sender.sets(f"good_{number}", age=3600)
    for number, (_, content) in enumerate(BEYOND_USE.items()):
        if isinstance(content, dict) and isinstance(content.get("data"), dict):
            item = {"updated_at": "2026-01-01T00:00:00Z", **content["data"]}
            world.sender.orders[f"bad_{number}"] = {**item, "id": item.pop("order_id", None)}
    async with world.serving("--role", "reconciler", **SECRETS):

        async def completed() -> object:
            return await world.rows(
                "select 1 from reconciler.baselines where sender = 'shop' and completed_at < now()"
            )

        await eventually(completed)
    held = await world.rows("select key from reconciler.resources order by key")
    assert [f"good_{n}" for n in range(3)] == [row["key"] for row in held]
