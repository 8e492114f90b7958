"""P16, bounded: what strangers send, ask for and leave open costs no more than it may."""

import asyncio
import json
import resource
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from reconciler.proving.misbehaving_http import Answer
from tests.stories.conftest import UNHEALED
from tests.world import Daemon, World, eventually, order_event, refund_event, signed

pytestmark = pytest.mark.anyio

MEBIBYTE = 2**20


async def test_p16_a_body_has_a_size_and_memory_a_limit(world: World):
    """
    32 senders at once send 3 MiB each where 64 KiB are allowed, declared and in chunks, rightly
    signed. All are told 413, nothing is stored, and the daemon has not grown by what they sent.
    """
    body = json.dumps(refund_event("evt_big") | {"pad": "x" * 3 * MEBIBYTE}).encode()
    async with world.serving(*UNHEALED, RECONCILER_SENDERS__SHOP__MAX_BODY="64KiB") as daemon:
        before = peak_memory(daemon)

        async def in_chunks():
            for start in range(0, len(body), MEBIBYTE):
                yield body[start : start + MEBIBYTE]

        async def send(number: int) -> int:
            content = in_chunks() if number % 2 else body
            answer = await world.http.post(
                f"{daemon.webhooks}/webhooks/shop", content=content, headers=signed(body)
            )
            return answer.status_code

        async with asyncio.TaskGroup() as senders:
            sent = [senders.create_task(send(number)) for number in range(32)]
        assert {413: 32} == Counter(one.result() for one in sent)
        assert 0 == await world.value("select count(*) from reconciler.quarantine")
        assert peak_memory(daemon) - before < 48 * MEBIBYTE
        assert "applied" == await world.outcome(refund_event("evt_1"))


async def test_p16_a_log_that_is_full_keeps_nobody_waiting(world: World):
    """
    The disk that the log is on is full. Events are applied and their effects called as ever;
    when there is room again, so are the lines.
    """
    async with world.serving(*UNHEALED) as daemon:
        written = daemon.log_file.stat().st_size
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (written, -1))
        for number in range(60):  # more than any buffer takes
            assert "applied" == await world.outcome(refund_event(f"evt_{number}"))
        await world.effects(*(f"receipt evt_{number}" for number in range(60)))
        assert written == daemon.log_file.stat().st_size

        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (-1, -1))
        await world.outcome(refund_event("evt_60"))
        await eventually(lambda: logged(daemon, "evt_60"))


async def logged(daemon: Daemon, event_id: str) -> bool:
    return event_id in daemon.log


def peak_memory(daemon: Daemon) -> int:
    """The most bytes that the process has held."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


async def test_p16_a_crowd_holds_no_more_connections_than_are_allowed(world: World):
    """
    120 deliveries at once, with room for 40 to wait and two server connections. Some are told
    503 and when to come again, none waits for ever, and the database has seen two connections.
    """
    few = {"RECONCILER_DATABASE__POOL_SIZE": "2", "RECONCILER_RECEIVER__WAITING_MAX": "40"}
    seen: list[int] = []
    async with world.serving("--role", "receiver", **few):

        async def count() -> None:
            while True:
                seen.append(
                    await world.value(
                        "select count(*) from pg_stat_activity where datname = current_database()"
                        " and application_name = 'reconciler'"
                    )
                )

        counting = asyncio.create_task(count())
        answers = await world.all_at_once(refund_event(f"evt_{n}") for n in range(120))
        counting.cancel()
    statuses = Counter(answer.status_code for answer in answers)
    assert {200, 503} >= statuses.keys()
    assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 503)
    assert statuses[200] == await world.value("select count(*) from refunds")
    assert 0 < max(seen) <= 2


async def test_p16_a_head_without_an_end_is_cut_off(world: World):
    """A header of more than 64 KiB that goes on and on: 431; and the next delivery is served."""
    async with world.serving(*UNHEALED) as daemon:
        place = urlsplit(daemon.webhooks)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(b"POST /webhooks/shop HTTP/1.1\r\nHost: x\r\nX-Long: ")
        writer.write(b"x" * 70_000)
        await writer.drain()
        answer = await reader.read(100)
        writer.close()
        assert b"431" in answer
        assert "applied" == await world.outcome(refund_event("evt_1"))


async def test_p16_what_others_ask_for_is_clamped(world: World):
    """
    The destination wants to be asked again in thirty years, the listing sends a page without
    end: an hour, and an error that is told, while webhooks go on.
    """
    # more than one: the page is made in this process too, and a call may time out meanwhile
    later = Answer(status=429, headers={"Retry-After": "1000000000"})
    world.destination.troubles = [later, later, later]
    world.sender.broken = Answer(body={"data": ["x" * 40 * MEBIBYTE]})
    paid = order_event("evt_1", world.sender.sets("ord_1", status="paid", paid=True))
    async with world.serving():
        await world.outcome(paid)

        async def noted() -> list[object]:
            return await world.rows("select 1 from reconciler.outbox_attempts where status = 429")

        await eventually(noted)
        wait = await world.value("select extract(epoch from due_at - now()) from reconciler.outbox")
        assert 0 < wait <= 3600

        async def told() -> str | None:
            return await world.value("select last_error from reconciler.scans where mode = 'full'")

        assert "large" in str(await eventually(told))
        assert "applied" == await world.outcome(refund_event("evt_2"))
