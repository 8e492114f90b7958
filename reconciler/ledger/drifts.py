"""How a listed item stands to what we hold. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from reconciler.ledger.content import is_same
from reconciler.ledger.event import Observation, Origin
from reconciler.ledger.guard import Held


class Found(StrEnum):
    """How a listed item stands to our row."""

    MISSING = "missing"  #: nothing is held
    BEHIND = "behind"  #: something older is held
    CONFLICT = "conflict"  #: equal version, and a field that both declare differs
    AHEAD = "ahead"  #: something newer is held: the listing lags
    BURIED = "buried"  #: something older is held, as deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One listed item that is not in sync; `held` of what is ahead has no state."""

    n: int  #: its place in the page
    observation: Observation
    held: Held | None
    found: Found


def how_it_differs(held: Held | None, seen: Observation, *, declared: bool) -> Found | None:
    """Say how *seen* in a listing stands to what is held; None: in sync."""
    if held is None or held.version is None:
        return Found.MISSING
    same = is_same(held.state, seen, origin=Origin.CORRECTION, declared=declared)
    if seen.version is None:
        newer = held.deleted or not same
    else:
        newer = seen.version > held.version
        if seen.version < held.version:
            return Found.AHEAD
    if newer:
        return Found.BURIED if held.deleted else Found.BEHIND
    return None if same or held.deleted else Found.CONFLICT
