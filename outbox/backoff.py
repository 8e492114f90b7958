"""How long to wait before the next attempt."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

EXPONENT_LIMIT = 62  # doubling beyond this only makes numbers that no clock holds
SPREAD = 0.25  # how much of a Retry-After is added at most, so that not all come back at once

_SECONDS = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)", re.ASCII)


def delay(
    attempt: int,
    backoff: "Backoff",
    *,
    jitter: float,
    asked: "RetryAfter | None" = None,
    slowly: bool = False,
) -> timedelta:
    """
    How long to wait after *attempt* (1 is the first) failed.

    Exponential with full jitter: anything from nothing to the base doubled for each attempt,
    never more than the cap; *jitter* is a random number from [0, 1). *slowly* waits about the
    cap whatever the attempt. What the destination *asked* for is a floor: jitter only lengthens
    it, and not beyond the longest that is respected.
    """
    base, cap = backoff.base.total_seconds(), backoff.cap.total_seconds()
    exponent = min(max(attempt - 1, 0), EXPONENT_LIMIT)
    wait = cap * (0.5 + jitter / 2) if slowly else jitter * min(cap, base * 2.0**exponent)
    if asked is not None:
        floor = asked.wait.total_seconds()
        spread = min(floor * (1 + SPREAD * jitter), asked.most.total_seconds())
        wait = max(wait, floor, spread)
    return timedelta(seconds=wait)


def read_retry_after(
    headers: Sequence[tuple[str, str]], *, now: datetime, most: timedelta
) -> "RetryAfter | None":
    """
    What a `Retry-After` header asks for, between nothing and *most*; None when unreadable.

    Seconds (RFC 9110, 10.2.3), also fractional as some services send them, or any of the three
    HTTP dates (5.6.7), which count from the answer's own `Date` where it has one: the
    destination's clock need not be ours. *headers* have names in lower case. Never raises.
    """
    asked = next((value for name, value in headers if name == "retry-after"), None)
    if asked is None:
        return None

    if _SECONDS.fullmatch(said := asked.strip()):
        seconds = float(said)  # however many digits there are: at worst it is infinite
    else:
        then = _read_date(asked)
        if then is None:
            return None
        date = next((_read_date(value) for name, value in headers if name == "date"), None)
        seconds = (then - (date or now)).total_seconds()

    within = min(max(seconds, 0.0), most.total_seconds())
    return RetryAfter(wait=timedelta(seconds=within), most=most)


def _read_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text.strip())
        return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    base: timedelta  #: the first retry waits up to this long, each further one up to twice as long
    cap: timedelta  #: no retry waits longer, unless the destination asks for it


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAfter:
    wait: timedelta  #: what was asked for, already within the limit
    most: timedelta  #: the limit
