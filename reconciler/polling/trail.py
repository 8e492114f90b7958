"""Finds out that a listing goes in circles, in constant memory."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from reconciler.polling.errors import PageBrokenError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """
    The way that a listing has gone (Brent's algorithm).

    Each step is held against one remembered one, which moves forward at powers of two, so
    that a circle of any length is found within three times its length. It is kept in the
    checkpoint: a circle is found over restarts too.
    """

    anchor: str = ""
    steps: int = 0
    power: int = 1
    meetings: int = 0

    def step(self, digest: str, *, meetings_allowed: int = 0) -> "Trail":
        """
        Go on to *digest*.

        Raises PageBrokenError where the remembered step was met again more than
        *meetings_allowed* times.
        """
        if digest == self.anchor:
            if self.meetings >= meetings_allowed:
                raise PageBrokenError("the listing goes in circles: the same page comes again")
            return self._moved(meetings=self.meetings + 1)
        if not self.anchor or self.steps + 1 >= self.power:
            return Trail(anchor=digest, power=self.power * 2)
        return self._moved(meetings=self.meetings)

    def _moved(self, *, meetings: int) -> "Trail":
        return Trail(anchor=self.anchor, steps=self.steps + 1, power=self.power, meetings=meetings)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Trail":
        return cls(**value)
