"""How much one turn of a relay may take, and what it has taken of that."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from outbox.leasing import GivenUp, Leased


class Room(NamedTuple):
    """How much is wanted for one destination: calls for free *slots*, and others *ahead*."""

    slots: int
    ahead: int = 0

    @property
    def total(self) -> int:
        return self.slots + self.ahead

    def within(self, most: int | None) -> "Room":
        """No more than is permitted; what has to be counted one by one is not leased ahead."""
        return self if most is None else Room(min(self.slots, most))

    def less(self, taken: int) -> "Room":
        """What is left when so many were *taken*: slots are filled first."""
        left = self.total - taken
        return Room(max(0, left - self.ahead), min(self.ahead, left))


@dataclass(slots=True, kw_only=True)
class Taken:
    """What one turn has taken so far, and how much more it may."""

    rooms: dict[str, Room]  #: how much more is wanted
    hungry: set[str] = field(default_factory=set)  #: for which more may be due than was taken
    leased: list[Leased] = field(default_factory=list)
    granted: Counter[str] = field(default_factory=Counter)  #: of them, to be called at once
    ahead: Counter[str] = field(default_factory=Counter)  #: and when a call has ended
    bytes: Counter[str] = field(default_factory=Counter)  #: of the bodies of all that is leased
    busy: dict[str, int] = field(default_factory=dict)  #: slots of ours, when it asked last
    slots: dict[str, int] = field(default_factory=dict)  #: of ours in all, as far as others leave
    room: dict[str, int] = field(
        default_factory=dict
    )  #: for how many there was, when it asked last
    given_up: list[GivenUp] = field(default_factory=list)
