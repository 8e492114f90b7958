"""What a Retry-After header asks for, in all its spellings."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

LONGEST = timedelta(hours=1)


def parse_retry_after(headers: Mapping[str, str], *, now: datetime) -> timedelta | None:
    """
    Return how long to wait, clamped to 0 .. 1 h; None when nothing readable is said.

    Seconds (RFC 9110 section 10.2.3; fractional ones occur) or an HTTP date. A date is
    counted from the answer's own Date header, so that a wrong clock here changes nothing;
    *now* stands in where the answer has none.

    >>> parse_retry_after({"retry-after": "2.5"}, now=datetime.now(UTC))
    datetime.timedelta(seconds=2, microseconds=500000)
    >>> parse_retry_after({"retry-after": "-1"}, now=datetime.now(UTC))
    datetime.timedelta(0)
    >>> parse_retry_after({"retry-after": "soon"}, now=datetime.now(UTC))
    """
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    seconds = _seconds(text)
    if seconds is None:
        at = _date(text)
        if at is None:
            return None
        seconds = (at - (_date(headers.get("date", "")) or now)).total_seconds()
    return timedelta(seconds=min(max(seconds, 0.0), LONGEST.total_seconds()))


def _seconds(text: str) -> float | None:
    if not text.isascii() or "_" in text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    return None if math.isnan(seconds) else seconds


def _date(text: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
