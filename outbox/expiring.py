"""Until when an entry is worth calling."""

from typing import Any

from sqlalchemy import ColumnElement, func

from outbox.store import SECOND


def expires_at(given: Any) -> ColumnElement[Any]:
    """
    Until when an entry may be called.

    From when its cause happened; from now where nobody says when, or a clock was ahead.
    """
    now = func.clock_timestamp()
    since = func.least(func.coalesce(given.happened_at, now), now)
    until: ColumnElement[Any] = since + given.expires * SECOND
    return until
