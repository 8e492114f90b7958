"""What one call tells of its destination, beside what it means for its entry."""

from datetime import timedelta

from outbox.backoff import read_retry_after
from outbox.breaker import Seen
from outbox.destinations import Destination
from outbox.entry import Verdict, bounded
from outbox.leasing import Leased
from outbox.look_leases import Unknown
from outbox.verdict import Answer, Failure, Reply, Ruling

OUR_CREDENTIALS = 401
TOO_MANY = 429
CLOSES_DOWN = 421  # of a mail server (RFC 5321, 4.2.3)
SLOWED = timedelta(seconds=1)  # fewer calls after a 429 that says not for how long


def seen_of(leased: Leased, ruling: Ruling, result: Answer | Reply | Failure) -> Seen:
    """Only 429 slows a destination; what any other answer asks for is asked for its entry."""
    slowed = None
    if isinstance(result, Answer) and result.status == TOO_MANY:
        slowed = SLOWED if ruling.retry_after is None else ruling.retry_after.wait
    return Seen(
        destination=leased.destination,
        entry=leased.id,
        trouble=is_trouble(ruling, result),
        opens=ruling.slowly,
        probe=leased.probe,
        slowed=slowed,
        reason=ruling.reason or None,
    )


def seen_in(look: Unknown, destination: Destination, result: Answer | Reply | Failure) -> Seen:
    """
    The same of one look-up, which is a call too, though nothing becomes of an entry by it.

    A 4xx other than 401 and 429 says only that there is nothing.
    """
    status = result.status if isinstance(result, Answer) else None
    slowed = None
    if isinstance(result, Answer) and status == TOO_MANY:
        most = destination.rules.retry_after_max
        asked = read_retry_after(result.headers, now=look.leased_at, most=most)
        slowed = SLOWED if asked is None else asked.wait
    refused = status == OUR_CREDENTIALS
    reason = result.reason if isinstance(result, Failure) else f"a look-up was answered {status}"
    return Seen(
        destination=look.destination,
        entry=look.id,
        trouble=status is None or status >= 500 or refused,
        opens=refused,
        probe=look.probe,
        slowed=slowed,
        reason=bounded(reason),
    )


def is_trouble(ruling: Ruling, result: Answer | Reply | Failure) -> bool:
    """Whether others may fare no better: no answer, a broken one, or our credentials."""
    match result:
        case Failure():
            return True
        case Reply():
            return ruling.slowly or result.status == CLOSES_DOWN
        case Answer():
            sick = ruling.slowly or result.status >= 500
            return sick and ruling.verdict is not Verdict.DELIVERED


def is_well(seen: Seen) -> bool:
    """Whether a call told nothing of its destination that would make one call less."""
    return not seen.trouble and seen.slowed is None
