"""What a delivery is answered, as bytes: the closed list of section 9 and its JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from reconciler.receiver.handshake import Greeting

RETRY_AFTER = "5"  #: seconds; every sender waits longer by itself

_AGAIN = (("Retry-After", RETRY_AFTER),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One HTTP answer, and what is said about it in the log and in the metrics."""

    status: int
    body: bytes
    outcome: str
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    reason: str | None = None
    event_id: str | None = None
    outcomes: tuple[str, ...] = ()  #: of each event that it carried


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of one event of a delivery."""

    status: int
    outcome: str
    event_id: str | None


def for_events(told: Sequence[Told], *, batch: bool) -> Answer:
    """
    Answer for the events of one delivery, in its order.

    The sender sees one status: the worst, because it repeats the delivery as a whole.
    """
    items = [{"outcome": each.outcome, "event_id": each.event_id} for each in told]
    document = {"results": items} if batch else items[0]
    status = max((each.status for each in told), default=200)
    return Answer(
        status=status,
        body=json.dumps(document).encode(),
        headers=_AGAIN if status == 503 else (),
        outcome="batch" if batch else told[0].outcome,
        event_id=None if batch else told[0].event_id,
        outcomes=tuple(each.outcome for each in told),
    )


def for_handshake(greeting: Greeting) -> Answer:
    return Answer(
        status=greeting.status,
        body=b"" if greeting.status == 204 else greeting.text.encode(),
        content_type=greeting.content_type,
        headers=(("X-Content-Type-Options", "nosniff"),),
        outcome="handshake",
    )


def refused(status: int, error: str, *, reason: str | None = None) -> Answer:
    """
    Refuse before anything was stored.

    *error* goes out; *reason* stays with us, so that nobody learns which check failed.
    """
    return Answer(
        status=status,
        body=json.dumps({"error": error}).encode(),
        outcome="refused",
        reason=reason or error,
    )


def wrong_method(allowed: Sequence[str]) -> Answer:
    return Answer(
        status=405,
        body=b'{"error": "method not allowed"}',
        headers=(("Allow", ", ".join(allowed)),),
        outcome="refused",
        reason="method not allowed",
    )


def busy(reason: str) -> Answer:
    """Ask for another try: nothing is stored, or nobody knows."""
    return Answer(
        status=503,
        body=b'{"error": "try again"}',
        headers=_AGAIN,
        outcome="busy",
        reason=reason,
    )


def counted(outcomes: Sequence[str]) -> dict[str, int]:
    return dict(Counter(outcomes))
