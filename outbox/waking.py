"""An event that can be set in a moment, so that what comes until then is done in one go."""

import asyncio
from typing import Literal

GATHER = 0.005  # seconds for which what has little worth alone waits for more of its kind


class Wake(asyncio.Event):
    """
    Set at once, or soon; whoever clears it has seen to what was to come soon, too.

    The moment counts from when somebody waits: who was busy until now has just made more of it.
    """

    def __init__(self, *, gather: float = GATHER) -> None:
        super().__init__()
        self._gather = gather
        self._wanted = False
        self._waiting = 0
        self._soon: asyncio.TimerHandle | None = None

    def set(self) -> None:
        self._forget()
        super().set()

    def set_soon(self) -> None:
        """Set it within a moment of somebody's waiting for it, however often that is asked for."""
        self._wanted = True
        if self._waiting and self._soon is None and not self.is_set():
            self._start()

    def clear(self) -> None:
        self._forget()
        super().clear()

    async def wait(self) -> Literal[True]:
        self._waiting += 1
        try:
            if self._wanted and self._soon is None and not self.is_set():
                self._start()
            return await super().wait()
        finally:
            self._waiting -= 1

    def _start(self) -> None:
        self._soon = asyncio.get_running_loop().call_later(self._gather, self.set)

    def _forget(self) -> None:
        self._wanted = False
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
