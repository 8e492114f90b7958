"""A pretend destination: performs a key once where it knows keys, and loses its answers."""

import asyncio
from collections import Counter

from reconciler.proving.history import History
from reconciler.proving.misbehaving_http import Answer, Request
from tests.history.plan import Plan

TIMEOUT = 0.8  #: seconds that the relay waits, as the configuration says
SLOW = 1.1
REFUSALS = {"busy": 503, "limited": 429, "in_progress": 409}  #: without any effect


class Destination:
    """
    Two providers in one: `/v1/...` knows idempotency keys, `/post/...` performs every call.

    Every arrival is written down with its bytes, every effect, and every answer before it leaves.
    """

    def __init__(self, plan: Plan, history: History) -> None:
        self.plan = plan
        self.history = history
        self.calls: Counter[str] = Counter()
        self.performed: set[str] = set()
        self.under_way: set[str] = set()

    async def answer(self, request: Request) -> Answer:
        key = request.headers.get("idempotency-key", "")
        self.calls[key] += 1
        idempotent = not request.path.startswith("/post/")
        trouble = self.plan.trouble(key, self.calls[key])
        if idempotent and key in self.under_way:
            trouble = "in_progress"
        self.history.write(
            "call",
            key=key,
            n=self.calls[key],
            method=request.method,
            path=request.path,
            body=request.body.decode(),
            trouble=trouble,
        )
        self.under_way.add(key)
        try:
            return await self.meet(request, key, trouble, idempotent=idempotent)
        finally:
            self.under_way.discard(key)

    async def meet(
        self, request: Request, key: str, trouble: str | None, *, idempotent: bool
    ) -> Answer:
        if trouble == "lost_before":
            return Answer(lost=True)
        if trouble in REFUSALS:
            return self.answered(key, REFUSALS[trouble])
        if not idempotent or key not in self.performed:
            self.performed.add(key)
            self.history.write("effect", key=key, reference=request.json()["reference"])
        match trouble:
            case "lost_after":
                return Answer(lost=True)
            case "failed_after":
                return self.answered(key, 500)
            case "slow":
                await asyncio.sleep(SLOW)
        return self.answered(key, 200)

    def answered(self, key: str, status: int) -> Answer:
        self.history.write("answered", key=key, status=status)
        headers = {"Retry-After": "0"} if status == 429 else {}
        return Answer(status=status, body={"ok": status < 300}, headers=headers)
