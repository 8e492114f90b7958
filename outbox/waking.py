"""An event that can be set in a moment, so that what comes until then is done in one go."""

import asyncio

GATHER = 0.005  # seconds for which what has little worth alone waits for more of its kind


class Wake(asyncio.Event):
    """Set at once, or soon; whoever clears it has seen to what was to come soon, too."""

    _soon: asyncio.TimerHandle | None = None

    def set(self) -> None:
        self._forget()
        super().set()

    def set_soon(self) -> None:
        """Set it within GATHER, however often that is asked for until then."""
        if self._soon is None and not self.is_set():
            self._soon = asyncio.get_running_loop().call_later(GATHER, self.set)

    def clear(self) -> None:
        self._forget()
        super().clear()

    def _forget(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
