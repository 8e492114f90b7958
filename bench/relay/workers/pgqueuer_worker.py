"""pgqueuer, as its documentation advises, with the driver that it recommends."""

import asyncio
import json
import os
import signal
import sys
import time

import aiohttp
import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job

CONCURRENCY = int(os.environ["CONCURRENCY"])


def payload(number: int) -> bytes:
    told = {"key": f"key-{number}", "number": number, "amount": 1250, "note": "x" * 200}
    return json.dumps(told).encode()


async def work(driver: AsyncpgDriver) -> None:
    pgq = PgQueuer(driver)
    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    async with aiohttp.ClientSession(connector=connector) as session:

        @pgq.entrypoint("call")
        async def call(job: Job) -> None:
            body = json.loads(job.payload or b"{}")
            headers = {"Idempotency-Key": body.pop("key")}
            url = f"{os.environ['DESTINATION_URL']}/v1/calls"
            async with session.post(url, json=body, headers=headers) as answer:
                answer.raise_for_status()
                await answer.read()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, pgq.shutdown.set)
        await pgq.run(batch_size=CONCURRENCY)


async def main(words: list[str]) -> None:
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    match words:
        case ["setup"]:
            await queries.install()
        case ["enqueue", start, count]:
            last = int(start) + int(count)
            for first in range(int(start), last, 1000):
                numbers = range(first, min(first + 1000, last))
                await queries.enqueue(
                    ["call"] * len(numbers), [payload(n) for n in numbers], [0] * len(numbers)
                )
        case ["work"]:
            await work(driver)
        case ["trickle", count]:
            for number in range(int(count)):
                await asyncio.sleep(0.05 + number % 7 / 100)
                await queries.enqueue("call", payload(number))
                print(json.dumps({"key": f"key-{number}", "committed": time.time()}), flush=True)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
