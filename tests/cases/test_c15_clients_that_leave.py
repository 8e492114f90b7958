"""Clients that leave in the middle: no row, no error, and the whole delivery later is new."""

import asyncio
import contextlib
import socket
import struct
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from tests.receiver.receiving import Receiving, receiving
from tests.receiver.senders import SHOP, body_of, order, signed

pytestmark = pytest.mark.anyio

BODY = body_of(order(pad="x" * 5000))
BATCH = body_of({"events": [order("evt_1"), order("evt_2", order_id="o2")]})


def head(body: bytes, *lines: str, length: int | None = None) -> bytes:
    said = ["Host: x", *(f"{name}: {value}" for name, value in signed(body).items()), *lines]
    if length is not None:
        said.append(f"Content-Length: {length}")
    return "\r\n".join(["POST /webhooks/shop HTTP/1.1", *said, "", ""]).encode()


CHUNKED = head(BODY, "Transfer-Encoding: chunked")
SENT = {
    "nothing of the body": head(BODY, length=len(BODY)),
    "a part of it": head(BODY, length=len(BODY)) + BODY[:100],
    "all but the last byte": head(BODY, length=len(BODY)) + BODY[:-1],
    "half a head": head(BODY, length=len(BODY))[:80],
    "half a chunk": CHUNKED + b"%x\r\n" % len(BODY) + BODY[:100],
    "all chunks and no end": CHUNKED + b"%x\r\n" % len(BODY) + BODY + b"\r\n",
    "the end without its line": CHUNKED + b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n",
    "a large length": head(BODY, length=900_000) + BODY,
    "a promise": head(BODY, "Expect: 100-continue", length=len(BODY)),
}


async def leave(shop: Receiving, sent: bytes, *, how: str) -> bytes:
    """Send *sent* and go: with a FIN, with a RST, or by closing only our side."""
    reader, writer = await asyncio.open_connection("127.0.0.1", shop.port)
    writer.write(sent)
    await writer.drain()
    if how == "resets":
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        return b""
    if how == "ends its side":
        writer.write_eof()
    else:
        writer.close()
    heard = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(10):
            heard = await reader.read() if how == "ends its side" else b""
    writer.close()
    return heard


@pytest.mark.parametrize("how", ["closes", "resets", "ends its side"])
async def test_what_is_broken_off_never_was(engine: AsyncEngine, tmp_path: Path, how: str) -> None:
    """
    Wherever the line breaks and however it does: nothing is stored, nothing counts as an error
    of ours, no memory stays taken; and what comes whole afterwards is applied.
    """
    with capture_logs() as logs:
        async with receiving(engine, tmp_path) as shop:
            for sent in SENT.values():
                heard = await leave(shop, sent, how=how)
                assert b"HTTP/1.1 5" not in heard
            whole = await shop.deliver(BODY)

            assert "applied" == whole.json()["outcome"]
            assert [200] == [told.status for told in shop.told]
            assert {"processed_events": 1, "event_bodies": 1, "resources": 1} == (
                await shop.counts()
            )
        assert 0 == shop.app.allowance.taken
    assert [] == [line for line in logs if line["log_level"] in {"error", "critical"}]


async def test_a_batch_that_is_broken_off_applies_none_of_its_events(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """Its first event had come whole; the delivery had not."""
    configuration = SHOP + '\n[senders.shop.event]\nitems = "events"\n'
    async with receiving(engine, tmp_path, configuration) as shop:
        await leave(shop, head(BATCH, length=len(BATCH)) + BATCH[:-20], how="closes")
        whole = await shop.deliver(BATCH)

        assert ["applied", "applied"] == [each["outcome"] for each in whole.json()["results"]]


async def test_who_leaves_after_the_last_byte_has_delivered(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    The body is whole, the answer is not waited for: the event happens, once, and the retry
    hears that it did. Who ends only their own side, as `nc -N` does, still gets the answer.
    """
    async with receiving(engine, tmp_path) as shop:
        heard = await leave(shop, head(BODY, length=len(BODY)) + BODY, how="ends its side")
        assert heard.startswith(b"HTTP/1.1 200")
        again = await shop.deliver(BODY)
        assert again.json()["outcome"] in {"applied", "duplicate"}
        for how in ("closes", "resets"):
            body = body_of(order(f"evt_{how}", order_id=how))
            await leave(shop, head(body, length=len(body)) + body, how=how)
            assert (await shop.deliver(body)).json()["outcome"] in {"applied", "duplicate"}
        counts = await shop.counts()
        assert (3, 3) == (counts["processed_events"], counts["resources"])
