"""Waiting for what has to come true, with a limit and without a guess."""

import asyncio
import time
from collections.abc import Callable

LOOK_EVERY = 0.01  #: seconds


async def until(look: Callable[[], object], *, within: float) -> bool:
    """Wait until *look* returns something true; False where it did not *within* seconds."""
    deadline = time.monotonic() + within
    while not look():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_EVERY)
    return True
