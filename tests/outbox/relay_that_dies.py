"""A relay in a process of its own that kills itself at a named point."""

import asyncio
import os
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from reconciler.database import engine_for
from tests.outbox.pretend import Pretend
from tests.outbox.world import World


class Elsewhere(Pretend):
    """A destination that somebody else serves."""

    address = ""

    @property
    def url(self) -> str:
        return self.address


async def main(database_url: str, destination_url: str, point: str) -> None:
    def die(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    elsewhere = Elsewhere()
    elsewhere.address = destination_url
    world = World(engine=engine_for(database_url), pretend=elsewhere)
    await world.relay_once(point=die)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
