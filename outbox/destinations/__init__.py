"""Where calls go: what a destination is to the relay, whatever it is reached by."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, NamedTuple, Protocol

from outbox.breaker import Breaker
from outbox.flow import Rate
from outbox.looking_up import LookUp
from outbox.verdict import Answer, AnswerRules, Failure, Reply

CLOSING_LIMIT = 1.0  # seconds for an orderly end of a connection, where there is one


class Request(NamedTuple):
    """One call as it goes out, but for the host and the credentials."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    idempotency_key: str | None
    idempotent: bool


class Channel(Protocol):
    """The way to a destination."""

    async def send(self, request: Request, *, timeout: timedelta) -> Answer | Reply | Failure:
        """Make one call, taking *timeout* in all at the most; whatever goes wrong is a Failure."""

    async def close(self) -> None:
        """Let go of every connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """One destination: how it is reached, how it answers, and what may be asked of it."""

    channel: Channel
    rules: AnswerRules
    concurrency: int  #: calls under way at once, over all processes
    timeout: timedelta  #: of one call, in all
    max_attempts: int
    key_ttl: timedelta  #: how long it remembers a key
    key_margin: timedelta | None  #: repeat no more so long before that; None: lease plus timeout
    after_dead: Literal["continue", "hold"]  #: whether a dead entry lets its successors go
    rate: Rate | None = None  #: how many calls it takes, over all processes; None: any number
    breaker: Breaker | None = None  #: when it is left alone; None: never

    look_up: LookUp | None = None  #: how an unknown outcome is found out; None: by a person
    look_ups: Mapping[str, LookUp | None] = field(default_factory=dict)  #: of single effects

    def look_up_of(self, effect: str) -> LookUp | None:
        """How the outcome of a call of *effect* is found out."""
        return self.look_ups.get(effect, self.look_up)

    def key_life(self, *, lease: timedelta) -> timedelta:
        """How long after the first attempt that may have been sent a call may be repeated."""
        margin = lease + self.timeout if self.key_margin is None else self.key_margin
        return self.key_ttl - margin
