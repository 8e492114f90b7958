"""Sending an answer so that it arrives, also where the body was not read to its end."""

import asyncio
from datetime import timedelta

from reconciler import faults
from reconciler.http_server import Receive, Send
from reconciler.receiver.answers import Answer

LINGER = timedelta(seconds=1)  #: how long we go on reading what nobody wants
LINGER_BYTES = 4 * 1024**2


async def respond(send: Send, answer: Answer, *, unread: Receive | None = None) -> None:
    """
    Send *answer*; *unread* is given where the client may still be sending its body.

    Closing then at once would reset the connection, and many a client would see that instead of
    the answer. So the answer goes out, a little more is read and dropped, and then we close.
    """
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        *answer.headers,
    ]
    if unread is not None:
        headers.append(("Connection", "close"))
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        }
    )
    if answer.status < 300:
        faults.point("ack-half-sent")
    if unread is None:
        await send({"type": "http.response.body", "body": answer.body})
        return
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    await _drop(unread)
    await send({"type": "http.response.body", "body": b""})


async def _drop(receive: Receive) -> None:
    dropped = 0
    try:
        async with asyncio.timeout(LINGER.total_seconds()):
            while dropped < LINGER_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                dropped += len(message.get("body", b""))
    except TimeoutError:
        return
