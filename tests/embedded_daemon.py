"""A daemon with nothing but the private PostgreSQL: tests run it, as anybody, and kill it."""

import asyncio
import json
import signal
import sys
from pathlib import Path

from reconciler import embedded, logs
from reconciler.errors import ReconcilerError


async def serve(server: embedded.Embedded) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    sys.stdout.write(json.dumps({"url": server.url}) + "\n")
    sys.stdout.flush()
    await server.supervise(stop)


def main(how: str, state: Path) -> int:
    logs.configure()
    try:
        server = {"start": embedded.start, "attach": embedded.attach}[how](state)
    except ReconcilerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    try:
        asyncio.run(serve(server))
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
