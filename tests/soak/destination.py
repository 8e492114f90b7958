"""A pretend destination that performs each key once, and keeps what it did in few bytes."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from reconciler.proving.misbehaving_http import Answer, Request
from tests.soak.trouble import BUSY, CALLS, REFUSED, SLOW, UNANSWERED, UNHEARD, Trouble

TOO_LONG = 3.0  #: seconds; the daemon waits for two


@dataclass
class Destination:
    """What took effect, by key; and how often each reference did."""

    trouble: Trouble
    keys: set[str] = field(default_factory=set)
    effects: Counter[str] = field(default_factory=Counter)
    calls: int = 0

    async def answer(self, request: Request) -> Answer:
        self.calls += 1
        match self.trouble.draw(CALLS):
            case kind if kind == BUSY:
                return Answer(status=503, body={})
            case kind if kind == REFUSED:
                return Answer(status=429, body={}, headers={"Retry-After": "1"})
            case kind if kind == UNHEARD:
                return Answer(lost=True)
            case kind if kind == UNANSWERED:
                self.perform(request)
                return Answer(lost=True)
            case kind if kind == SLOW:
                self.perform(request)
                await asyncio.sleep(TOO_LONG)
        self.perform(request)
        return Answer(body={})

    def perform(self, request: Request) -> None:
        key = request.headers["idempotency-key"]
        if key not in self.keys:
            self.keys.add(key)
            self.effects[request.json()["reference"]] += 1

    def performed(self, reference: str) -> bool:
        return reference in self.effects
