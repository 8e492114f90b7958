"""When a destination is left alone for a while: what calls tell of it, and what follows."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

SPREAD = 0.25  # of a pause is added at most, so that replicas and destinations drift apart
GROWTH_LIMIT = 30  # doubling beyond this only makes numbers that no clock holds


def after_calls(
    standing: "Standing",
    seen: "Iterable[Seen]",
    breaker: "Breaker | None",
    *,
    now: datetime,
    jitter: float,
) -> "Standing":
    """
    How a destination stands after calls ended, in their order; *jitter* is random, from [0, 1).

    One that fails in a row with others opens the breaker, and so does one that says that our
    credentials are wrong. Failures of one entry alone count once: what is wrong with it need not
    be wrong with others. While it is open only a probe counts; any answer that makes sense
    closes it.
    """
    for one in seen:
        if one.slowed is not None:
            until = now + one.slowed
            standing = replace(standing, slowed_until=max(standing.slowed_until or until, until))
        if breaker is None:
            continue
        if not one.trouble:
            standing = replace(CLOSED, slowed_until=standing.slowed_until)
        elif not standing.open:
            standing = _failed(standing, one, breaker, now=now, jitter=jitter)
        elif one.probe:
            pause = breaker.pause_after(standing.failures + 1, jitter=jitter)
            standing = replace(
                standing,
                failures=standing.failures + 1,
                probe_at=now + pause,
                reason=one.reason,
            )
    return standing


def _failed(
    standing: "Standing", one: "Seen", breaker: "Breaker", *, now: datetime, jitter: float
) -> "Standing":
    failures = standing.failures + (one.entry != standing.failing)
    if one.opens:
        failures = max(failures, breaker.after)
    counted = replace(standing, failures=failures, failing=one.entry, reason=one.reason)
    if failures < breaker.after:
        return counted
    probe_at = now + breaker.pause_after(failures, jitter=jitter)
    return replace(counted, open=True, opened_at=now, probe_at=probe_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """After how many failures in a row a destination is left alone, and for how long."""

    after: int
    pause: timedelta  #: until the first probe; after each that fails twice as long
    pause_max: timedelta

    def pause_after(self, failures: int, *, jitter: float) -> timedelta:
        """How long to wait for the next probe after so many *failures*."""
        grown = self.pause * 2.0 ** min(max(failures - self.after, 0), GROWTH_LIMIT)
        return min(grown, self.pause_max) * (1 + SPREAD * jitter)


class Seen(NamedTuple):
    """What one call told of its destination."""

    destination: str
    entry: UUID
    trouble: bool  #: no answer, or one that says that the destination is not well
    opens: bool  #: it will not get better by calling again: our credentials, for instance
    probe: bool  #: the one call that an open breaker let through
    slowed: timedelta | None  #: it asked us to call less
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a destination stands."""

    open: bool = False
    failures: int = 0  #: in a row
    failing: UUID | None = None
    opened_at: datetime | None = None
    probe_at: datetime | None = None
    reason: str | None = None
    slowed_until: datetime | None = None


CLOSED = Standing()
