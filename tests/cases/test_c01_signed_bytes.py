"""The signature is over the bytes that came: however a sender writes its JSON, it is heard."""

import gzip
import hmac
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.receiver.receiving import receiving
from tests.receiver.senders import NOW, SECRET, SHOP, signed

pytestmark = pytest.mark.anyio

EVENT = (
    b'{"type":"order.paid",  "id":"%b","created_at":"2026-12-01T10:00:00Z",'
    b'"data":{"version":1,"order_id":"%b","status":"paid"%b}}'
)
SPELLINGS = {
    "members in another order, two spaces": b"",
    "a number with a trailing zero": b', "amount": 12.50',
    "a number with an exponent": b', "amount": 1.25E1',
    "minus nothing": b', "amount": -0.0',
    "an escaped letter": b', "note": "caf\\u00e9 \\/ \\ud83c\\udf89"',
    "the same letter as it is": ', "note": "café / 🎉"'.encode(),
    "spaces that JSON knows": b' ,\r\n\t"note"\t:\r\n"x" ',
    "a name twice": b', "status": "draft", "status": "paid"',
    "letters that look alike": ', "note": "e\u0301"'.encode(),
    "separators of lines": ', "note": "\u2028\u2029"'.encode(),
}

COMPOUND = """
[senders.shop.signature]
signed = "{{ timestamp }}.{{ body }}"
item_separator = ","
value_separator = "="
timestamp_field = "t"
signature_field = "v1"
"""


def spelled(number: int, more: bytes) -> bytes:
    return EVENT % (b"evt_%d" % number, b"ord_%d" % number, more)


def compound(body: bytes) -> dict[str, str]:
    mac = hmac.new(SECRET.encode(), b"%d.%b" % (NOW, body), "sha256").hexdigest()
    return {"X-Signature": f"t={NOW},v1={mac}"}


@pytest.mark.parametrize("scheme", ["two headers", "one header"])
async def test_every_spelling_is_accepted_and_kept_to_the_byte(
    engine: AsyncEngine, tmp_path: Path, scheme: str
) -> None:
    """
    A sender changes its serialiser. Reading and writing its JSON again would give other bytes
    each time; we check, and keep, those that came. A byte that was added on the way is refused.
    """
    configuration = SHOP if scheme == "two headers" else SHOP + COMPOUND
    sign = signed if scheme == "two headers" else compound
    if scheme == "one header":  # the preset says a header of its own for the time
        configuration = configuration.replace(
            "[senders.shop]\n", '[senders.shop]\npreset = "stripe"\n', 1
        ).replace("[senders.shop.signature]\n", '[senders.shop.signature]\nheader="X-Signature"\n')
        configuration += '\n[senders.shop.event]\nid = "id"\ntype = "type"\n'
    async with receiving(engine, tmp_path, configuration) as shop:
        sent = {}
        for number, more in enumerate(SPELLINGS.values()):
            body = spelled(number, more)
            sent[f"evt_{number}"] = body
            answer = await shop.post(body, headers=sign(body))
            assert (200, "applied") == (answer.status_code, answer.json()["outcome"])
            for altered in (body + b"\n", b" " + body, body.replace(b"  ", b" ")):
                assert 401 == (await shop.post(altered, headers=sign(body))).status_code

        kept = await shop.rows("select event_id, body from reconciler.event_bodies")
        assert sent == {event_id: bytes(body) for event_id, body in kept}


async def test_what_surrounds_the_json_is_signed_with_it(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    Line endings before and after, a body in chunks, a body that is no UTF-8 or begins with a
    byte order mark: authentic all of them. What can be read is applied, the rest is kept; never
    is a rightly signed body called a forgery.
    """
    async with receiving(engine, tmp_path) as shop:
        padded = b"\r\n " + spelled(1, b"") + b"\r\n\r\n"
        assert "applied" == (await shop.deliver(padded)).json()["outcome"]

        chunked = spelled(2, b', "note": "in pieces"')

        async def pieces():
            for start in range(0, len(chunked), 7):
                yield chunked[start : start + 7]

        headers = signed(chunked)
        answer = await shop.http.post("/webhooks/shop", content=pieces(), headers=headers)
        assert "applied" == answer.json()["outcome"]

        for strange in (b"\xef\xbb\xbf" + spelled(3, b""), spelled(3, b', "n": "\xff"'), b"\x00"):
            assert "quarantined" == (await shop.deliver(strange)).json()["outcome"]
            forged = await shop.post(strange, headers=signed(strange + b" "))
            assert 401 == forged.status_code
        assert 3 == (await shop.counts())["quarantine"]


async def test_items_of_a_signed_batch_need_no_signature_of_their_own(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """The delivery is signed as a whole: compressed, as the bytes on the wire."""
    batch = SHOP + '\n[senders.shop.event]\nitems = "events"\n'
    batch += '\n[senders.shop.signature]\nencodings = ["gzip"]\n'
    body = b'{ "events" : [ %b , %b ] }' % (spelled(1, b""), spelled(2, b', "amount":1.0E1'))
    wire = gzip.compress(body)
    async with receiving(engine, tmp_path, batch) as shop:
        gzipped = {"Content-Encoding": "gzip"}
        forged = await shop.post(wire, headers=signed(body) | gzipped)
        right = await shop.post(wire, headers=signed(wire) | gzipped)

        assert 401 == forged.status_code
        assert ["applied"] * 2 == [each["outcome"] for each in right.json()["results"]]
