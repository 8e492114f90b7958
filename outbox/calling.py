"""One call: made, judged, and told."""

import random as randomness
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import structlog

from outbox.backoff import Backoff, delay
from outbox.destinations import Destination, Request
from outbox.entry import State, Verdict
from outbox.leasing import GivenUp, Leased
from outbox.resting import Follow
from outbox.settling import Mark
from outbox.telling import seen_of
from outbox.verdict import Answer, Failure, Reply, Ruling, Sent

log = structlog.get_logger()


async def call(destination: Destination, leased: Leased) -> Answer | Reply | Failure:
    """Send *leased* once; whatever goes wrong is a Failure."""
    request = Request(
        method=leased.method,
        path=leased.path,
        headers=leased.headers,
        body=leased.body,
        idempotency_key=leased.idempotency_key,
        idempotent=leased.idempotent,
    )
    try:
        return await destination.channel.send(request, timeout=destination.timeout)
    except Exception as error:  # noqa: BLE001  # a channel that breaks must not take the others along
        log.error(  # noqa: TRY400  # a traceback may show what was sent
            "relay.channel_broke", destination=leased.destination, error=type(error).__name__
        )
        return Failure(kind=Sent.MAYBE_SENT, reason=f"the channel broke: {type(error).__name__}")


def mark_of(
    leased: Leased,
    ruling: Ruling,
    backoff: Backoff,
    *,
    jitter: float,
    result: Answer | Reply | Failure | None = None,
) -> Mark:
    """What is written down of a call that was ruled upon; *jitter* is random, from [0, 1)."""
    return Mark(
        id=leased.id,
        attempt=leased.attempt,
        started_at=leased.leased_at,
        state=_state_after(ruling.verdict),
        wait=delay(
            leased.tries,
            backoff,
            jitter=jitter,
            asked=ruling.retry_after,
            slowly=ruling.slowly,
        ),
        maybe_sent=ruling.maybe_sent,
        refusals=leased.refusals + 1 if ruling.refused else 0,
        ordered=leased.ordered,
        verdict=ruling.verdict,
        status=ruling.status,
        error=ruling.reason or None,
        effect=leased.effect,
        answer=None if isinstance(result, Failure) else result,
        seen=None if result is None else seen_of(leased, ruling, result),
    )


def tell(leased: Leased, ruling: Ruling, *, seconds: float) -> "Attempted":
    """Log what one call came to."""
    facts = {
        "entry": str(leased.id),
        "destination": leased.destination,
        "effect": leased.effect,
        "attempt": leased.attempt,
        "verdict": ruling.verdict.value,
        "status": ruling.status,
        "reason": ruling.reason or None,
    }
    log.info("relay.attempted", **facts, ms=round(seconds * 1000, 1))
    if ruling.slowly and ruling.status is None:
        log.warning("relay.connection_blocked", **facts)
    elif ruling.slowly:
        log.warning("relay.refused_repeatedly", **facts, refusals=leased.refusals + 1)
    if ruling.verdict in {Verdict.DEAD, Verdict.UNCERTAIN}:
        log.warning("relay.given_up", **facts)
    return Attempted(
        id=leased.id,
        destination=leased.destination,
        effect=leased.effect,
        attempt=leased.attempt,
        verdict=ruling.verdict,
        status=ruling.status,
        seconds=seconds,
    )


def tell_given_up(given_up: Sequence[GivenUp]) -> None:
    """Log what was due and will not be called any more."""
    for gone in given_up:
        log.warning(
            "relay.given_up",
            entry=str(gone.id),
            destination=gone.destination,
            effect=gone.effect,
            state=gone.state.value,
            reason=gone.reason,
        )


def since_boot() -> float:
    """Seconds that also pass while the machine is suspended, where the system counts those."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


def nothing_happens(_: object) -> None:
    return


async def no_time_passes() -> None:
    return


def _state_after(judged: Verdict) -> State:
    match judged:
        case Verdict.DELIVERED:
            return State.DELIVERED
        case Verdict.RETRY:
            return State.PENDING
        case Verdict.DEAD:
            return State.DEAD
        case Verdict.UNCERTAIN:
            return State.UNCERTAIN


class Attempted(NamedTuple):
    """One attempt, for whoever counts them."""

    id: UUID
    destination: str
    effect: str
    attempt: int
    verdict: Verdict
    status: int | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Where a relay touches what tests put something else in the place of."""

    metrics: Callable[[Attempted], None] = nothing_happens
    point: Callable[[str], None] = nothing_happens
    turn: Callable[[], Awaitable[None]] = no_time_passes
    clock: Callable[[], float] = since_boot
    random: Callable[[], float] = randomness.random  # it spreads retries, nothing more
    follow: Follow | None = None  #: writes what follows when entries come to rest
