"""procrastinate, as its documentation advises."""

import asyncio
import json
import os
import sys
import time

import aiohttp
import procrastinate

CONCURRENCY = int(os.environ["CONCURRENCY"])
app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["DATABASE_URL"])
)
session: aiohttp.ClientSession | None = None


@app.task(
    queue="calls",
    name="call",
    retry=procrastinate.RetryStrategy(max_attempts=12, exponential_wait=2),
)
async def call(key: str, **body: object) -> None:
    assert session is not None
    url = f"{os.environ['DESTINATION_URL']}/v1/calls"
    async with session.post(url, json=body, headers={"Idempotency-Key": key}) as answer:
        answer.raise_for_status()
        await answer.read()


def payload(number: int) -> dict[str, object]:
    return {"key": f"key-{number}", "number": number, "amount": 1250, "note": "x" * 200}


async def main(words: list[str]) -> None:
    global session
    async with app.open_async():
        match words:
            case ["setup"]:
                await app.schema_manager.apply_schema_async()
            case ["enqueue", start, count]:
                last = int(start) + int(count)
                for first in range(int(start), last, 1000):
                    numbers = range(first, min(first + 1000, last))
                    await call.batch_defer_async(*(payload(number) for number in numbers))
            case ["work"]:
                connector = aiohttp.TCPConnector(limit=CONCURRENCY)
                async with aiohttp.ClientSession(connector=connector) as session:
                    await app.run_worker_async(queues=["calls"], concurrency=CONCURRENCY)
            case ["trickle", count]:
                for number in range(int(count)):
                    await asyncio.sleep(0.05 + number % 7 / 100)
                    await call.defer_async(**payload(number))
                    line = {"key": f"key-{number}", "committed": time.time()}
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
