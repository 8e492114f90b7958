"""A pretend webhook sender: signs, repeats, reorders, loses, delays and gives up on answers."""

import asyncio
import hashlib
import hmac
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import click
import httpx

from reconciler.proving.history import History
from reconciler.proving.misbehaving_http import Answer, Request, listen
from reconciler.proving.pretend_shop import Shop

LOST_OF_LAST, LATE_OF_LAST, LOST, REPEATED = 0.25, 0.2, 0.06, 0.25
IN_FLIGHT = 24
ATTEMPTS = 40


class Sender:
    """A shop with an API, and webhooks with a fate drawn from a seed."""

    def __init__(self, *, seed: int, history: History, secret: bytes, token: str) -> None:
        self.fate = random.Random(f"sender {seed}")  # noqa: S311 - a seed, not a secret
        self.shop = Shop(fate=self.fate)
        self.history = history
        self.secret = secret
        self.token = token
        self.listed: dict[str, tuple[int, float]] = {}  #: order -> version, when first listed

    async def answer(self, request: Request) -> Answer:
        """The sender's API: `/v1/orders` and `/v1/orders/{id}`."""
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return Answer(status=401, body={"error": "token"})
        if request.path == "/v1/orders":
            page = self.shop.listing(
                since=request.query.get("updated_since", ""),
                cursor=request.query.get("cursor", ""),
            )
            for order in page["data"]:
                if self.listed.get(order["id"], (0, 0.0))[0] < order["version"]:
                    self.listed[order["id"]] = (order["version"], time.monotonic())
            self.history.write("listed", items=len(page["data"]))
            return Answer(body=page)
        found = self.shop.orders.get(request.path.removeprefix("/v1/orders/"))
        return Answer(body=found) if found else Answer(status=404, body={"error": "unknown"})

    async def emit(self, *, events: int, target: str, pace: float, timeout: float) -> None:
        """Let *events* things happen, and deliver or lose what tells of them."""
        slots = asyncio.Semaphore(IN_FLIGHT)
        limits = httpx.Limits(max_connections=IN_FLIGHT)
        async with (
            httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False) as client,
            asyncio.TaskGroup() as deliveries,
        ):
            for _ in range(events):
                event, last = self.shop.step()
                self.history.write("event", id=event["id"], type=event["type"], data=event["data"])
                for delay, late in self.fates(event, last=last):
                    deliveries.create_task(
                        self.deliver(client, slots, event, target=target, delay=delay, late=late)
                    )
                await asyncio.sleep(pace)
        self.history.write("done", orders=list(self.shop.orders.values()))

    def fates(self, event: dict[str, Any], *, last: bool) -> list[tuple[float, bool]]:
        """
        How often and how late *event* is delivered: a (delay in seconds, late) per delivery.

        Only what the listing can make good is lost: a refund is a fact that no state shows.
        """
        order = event["type"].startswith("order.")
        draw = self.fate.random()
        lost, late = (LOST_OF_LAST, LATE_OF_LAST) if last else (LOST, 0.0)
        if order and draw < lost:
            self.history.write("lost", id=event["id"])
            return []
        if order and draw < lost + late:
            return [(0.0, True)]
        times = self.fate.choice([2, 2, 3]) if self.fate.random() < REPEATED else 1
        return [(self.fate.random() ** 2 * 1.0, False) for _ in range(times)]

    async def deliver(  # noqa: PLR0913 - one delivery, and its fate
        self,
        client: httpx.AsyncClient,
        slots: asyncio.Semaphore,
        event: dict[str, Any],
        *,
        target: str,
        delay: float,
        late: bool,
    ) -> None:
        """Send *event* until it is acknowledged; an answer that comes too late counts as none."""
        await asyncio.sleep(delay)
        if late:
            await self.until_listed(event["data"]["order_id"], event["data"]["version"])
        body = json.dumps(event).encode()
        for attempt in range(1, ATTEMPTS + 1):
            async with slots:
                stamp = str(int(time.time()))
                signed = hmac.new(self.secret, stamp.encode() + b"." + body, hashlib.sha256)
                headers = {
                    "Content-Type": "application/json",
                    "X-Signature": signed.hexdigest(),
                    "X-Signature-Timestamp": stamp,
                }
                try:
                    answer = await client.post(target, content=body, headers=headers)
                    status = answer.status_code
                except httpx.HTTPError:
                    status = 0
            self.history.write("sent", id=event["id"], attempt=attempt, status=status, late=late)
            if 200 <= status < 300:
                return
            await asyncio.sleep(min(2.0, 0.1 * 2**attempt) * self.fate.random())

    async def until_listed(self, order_id: str, version: int) -> None:
        """Hold a late webhook back until the listing has told of it some time ago."""
        deadline = time.monotonic() + 25
        while time.monotonic() < deadline:
            seen, at = self.listed.get(order_id, (0, 0.0))
            if seen >= version and time.monotonic() - at > 4:
                return
            await asyncio.sleep(0.1)


async def run(*, seed: int, events: int, history: Path, pace: float, timeout: float) -> None:
    sender = Sender(
        seed=seed,
        history=History(history),
        secret=os.environ["PRETEND_SECRET"].encode(),
        token=os.environ["PRETEND_TOKEN"],
    )
    listener = await listen(sender.answer)
    sys.stdout.write(listener.url + "\n")
    sys.stdout.flush()
    target = (await asyncio.to_thread(sys.stdin.readline)).strip()
    if target:
        await sender.emit(events=events, target=target, pace=pace, timeout=timeout)
    await asyncio.Event().wait()


@click.command()
@click.option("--seed", type=int, required=True)
@click.option("--events", type=int, required=True)
@click.option("--history", type=click.Path(path_type=Path), required=True)
@click.option("--pace", type=float, default=0.02, help="Seconds between two events.")
@click.option("--timeout", type=float, default=2.0, help="Seconds to wait for an answer.")
def main(*, seed: int, events: int, history: Path, pace: float, timeout: float) -> None:
    """
    Serve the listing at once; emit to the URL that comes on standard input.

    The first line of output is the address of the listing.
    """
    asyncio.run(run(seed=seed, events=events, history=history, pace=pace, timeout=timeout))


if __name__ == "__main__":
    main()
