"""What one call tells of its destination, beside what it means for its entry."""

from datetime import timedelta

from outbox.breaker import Seen
from outbox.entry import Verdict
from outbox.leasing import Leased
from outbox.verdict import Answer, Failure, Reply, Ruling

TOO_MANY = 429
CLOSES_DOWN = 421  # of a mail server (RFC 5321, 4.2.3)
SLOWED = timedelta(seconds=1)  # a destination is left alone after a 429 that says not how long


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
