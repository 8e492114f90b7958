"""`python -m tests.outbox.mail_server STORE`: aiosmtpd as a process, which may lose its answers."""

import asyncio
import json
import sys
from pathlib import Path

from aiosmtpd.smtp import SMTP, Envelope, Session


class Keeping:
    """Writes every mail down; a recipient called `lost@...` never gets the answer to hers."""

    def __init__(self, store: Path) -> None:
        self.store = store

    async def handle_DATA(self, server: SMTP, _: Session, envelope: Envelope) -> str:  # noqa: N802
        told = {"from": envelope.mail_from, "to": envelope.rcpt_tos}
        told["content"] = bytes(envelope.original_content or b"").decode()
        with self.store.open("a") as store:
            store.write(json.dumps(told) + "\n")
        if envelope.rcpt_tos[0].startswith("lost@"):
            assert server.transport is not None
            server.transport.abort()
            await asyncio.Event().wait()
        return "250 2.0.0 Queued as 4711"


async def serve(store: Path) -> None:
    loop = asyncio.get_running_loop()
    handler = Keeping(store)
    server = await loop.create_server(
        lambda: SMTP(handler, hostname="mail.example", loop=loop), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
