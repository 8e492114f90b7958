"""Stories of a daemon's life: parts that fail, outages that pass, and stops."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from outbox.marking import Marking
from outbox.relay import Relay
from reconciler import daemon, listening
from reconciler.daemon_database import DatabaseWatch
from reconciler.daemon_parts import Parts
from reconciler.http_server import _Server
from reconciler.lifecycle import run_parts
from reconciler.operations import purging
from reconciler.operations.assembly import assemble
from reconciler.polling import schedule
from reconciler.polling.fetching import Reader
from reconciler.polling.schedule import Turns
from reconciler.proving.misbehaving_http import Answer, Request
from reconciler.receiver.group_commit import GroupCommit
from tests.postgres_proxy import PostgresProxy
from tests.world import CONFIGURATION, Daemon, World, a_world, eventually, order_event

pytestmark = pytest.mark.anyio

HASTY = CONFIGURATION.replace('grace = "0s"', 'grace = "0s"\nanswer_within = "3s"')


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    async with a_world(tmp_path, database_url) as world:
        yield world


# ---- parts


async def part_that_lives(stop: asyncio.Event) -> None:
    await stop.wait()


async def part_that_fails(_stop: asyncio.Event) -> None:
    raise ValueError("broken")


async def part_that_returns(_stop: asyncio.Event) -> None:
    return


async def part_that_is_cancelled(_stop: asyncio.Event) -> None:
    raise asyncio.CancelledError


async def part_that_fails_inside(_stop: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as inner:
        inner.create_task(part_that_fails(_stop))


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (part_that_fails, "broken"),
        (part_that_fails_inside, "broken"),
        (part_that_returns, "odd ended by itself"),
        (part_that_is_cancelled, "odd was cancelled by itself"),
    ],
)
async def test_a_part_that_ends_takes_the_others_with_it(part: Any, told: str) -> None:
    """
    However it ends: by an error, in a task of its own, in silence, or by a cancellation that
    nobody asked for, over which a group of tasks would pass as if nothing had happened.
    """
    others: list[str] = []

    async def other(stop: asyncio.Event) -> None:
        try:
            await stop.wait()
        finally:
            others.append("ended")

    with pytest.raises((ValueError, RuntimeError), match=told):
        async with asyncio.timeout(5):
            await run_parts({"other": other, "odd": part}, asyncio.Event(), drain=lambda: 1.0)
    assert ["ended"] == others


async def test_a_stop_waits_for_every_part_and_not_for_ever() -> None:
    """Who ends in time is waited for; who does not is cancelled when the drain is over."""
    stop, ended = asyncio.Event(), []

    async def quick(stop: asyncio.Event) -> None:
        await stop.wait()
        await asyncio.sleep(0.02)
        ended.append("quick")

    async def endless(stop: asyncio.Event) -> None:
        await stop.wait()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    stop.set()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await run_parts({"quick": quick, "endless": endless}, stop, drain=lambda: 0.2)
    assert ["quick", "endless"] == ended
    assert 2.0 > time.monotonic() - began


#: A loop of each part, and what it cannot do without.
LOOPS: dict[str, tuple[Any, str]] = {
    "database": (DatabaseWatch, "look"),
    "admin": (_Server, "main_loop"),
    "gauges": (Parts, "count"),
    "receiver": (GroupCommit, "_work"),
    "relay": (Relay, "lease_free"),
    "marks": (Marking, "run"),
    "scans": (Turns, "start_due"),
    "reads": (Reader, "read_due"),
    "retention": (purging, "waited"),
}


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_bug_in_any_loop_ends_the_daemon(
    world: World, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    C138: an exception outside of everything that is caught. It is raised to the top, and ends
    the process with 1, so that systemd starts it afresh; nothing limps on with green health.
    """

    async def broken(*_words: Any, **_named: Any) -> None:
        raise ZeroDivisionError(f"a bug of ours in {loop}")

    monkeypatch.setattr(*LOOPS[loop], broken)
    with pytest.raises(ZeroDivisionError, match=loop):
        await served(world)


async def test_a_scheduler_that_stops_ticking_ends_the_daemon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """APScheduler swallows what its jobs raise, and may just stop: then the part has failed."""
    monkeypatch.setattr(AsyncIOScheduler, "start", lambda _self: None)
    monkeypatch.setattr(AsyncIOScheduler, "shutdown", lambda _self, **_: None)
    monkeypatch.setattr(schedule, "TICKS_WITHIN", timedelta(milliseconds=300))
    with pytest.raises(RuntimeError, match="the scheduler has stopped ticking"):
        await served(world)


async def served(world: World) -> None:
    """The whole daemon, in this process, until it ends by itself."""
    assembly = assemble(world.config, environ={"SHOP_SECRET": "s" * 20, "SHOP_TOKEN": "t" * 20})
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(30):
            await daemon.serve(
                assembly,
                roles=("receiver", "relay", "reconciler"),
                private=None,
                webhooks=listening.listen_on("127.0.0.1:0"),
                admin=listening.listen_on("127.0.0.1:0"),
            )
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signum)


async def test_the_process_ends_with_one_and_says_why(world: World) -> None:
    """The same as a process: exit code 1, and the error in the log."""
    (world.directory / "breaks.py").write_text(
        "from outbox.relay import Relay\n"
        "from reconciler import handler\n"
        "async def broken(relay):\n"
        "    raise ZeroDivisionError('a bug of ours')\n"
        "Relay.lease_free = broken\n"
        "@handler('shop', on='refund.succeeded')\n"
        "async def nothing(event, tx):\n"
        "    pass\n"
    )
    world.config.write_text('handlers = ["breaks"]\n' + world.config.read_text())
    log_file = world.directory / "serve.log"
    process = await world.serve(log_file, PYTHONPATH=str(world.directory))
    serving = Daemon(process=process, log_file=log_file)
    world.daemons.append(serving)
    assert 1 == await asyncio.wait_for(process.wait(), 40), serving.log
    assert "ZeroDivisionError: a bug of ours" in serving.log


# ---- outages


async def test_an_outage_is_waited_out_without_a_restart(tmp_path: Path, database_url: str) -> None:
    """
    The database is away when the serving starts, comes, falls silent behind a connection that
    looks alive, and comes back: one process all the time. It is alive throughout, ready exactly
    while it can commit, and answers 503 in time while it cannot. Within about a second of the
    database's coming back it is ready again, and everything is called that was asked for.
    """
    async with (
        PostgresProxy(database_url) as proxy,
        a_world(tmp_path, database_url, configuration=HASTY) as world,
    ):
        lines = world.config.read_text().splitlines()
        lines[1] = f'url = "{proxy.url}"'
        world.config.write_text("\n".join(lines))
        world.sender.unlisted |= {"e0", "e1", "after-0", "after-1"}  # a scan could be first
        proxy.refuse()
        serving = await one_that_listens(world)
        assert (200, 503) == (await health(serving, "/livez"), await health(serving, "/readyz"))
        assert 503 == (await world.deliver(paid(world, "e0"))).status_code

        proxy.accept()
        await ready_within(serving, 5)
        assert "applied" == await world.outcome(paid(world, "e1"))
        await world.effects("capture e1")

        for turn in range(2):
            proxy.freeze()
            sent = time.monotonic()
            answers = await world.all_at_once(paid(world, f"lost-{turn}-{n}") for n in range(5))
            assert {503} == {answer.status_code for answer in answers}
            assert {"retry-after"} <= set(answers[0].headers)
            assert 8.0 > time.monotonic() - sent
            await eventually(lambda: unready(serving))
            assert 200 == await health(serving, "/livez")
            proxy.thaw()
            await ready_within(serving, 5)
            assert "applied" == await world.outcome(paid(world, f"after-{turn}"))
        await world.baseline_over()

        async def all_called() -> bool:
            return {"capture after-0", "capture after-1"} <= set(world.destination.effects)

        await eventually(all_called)
        assert 200 == await health(serving, "/livez")
        assert "stalled" not in serving.log
        await serving.stops()


async def test_tables_that_are_gone_for_a_while_are_waited_for(world: World) -> None:
    """
    Our schema goes away under a serving, as `pg_restore --clean` has it, and is made anew a
    little later. That passes like an outage: alive, not ready, 503 to the senders, and said once
    why. Then it goes on, the same process, with the scans that the new database knows nothing of;
    and what it remembers tells it that the database went back.
    """
    async with world.serving() as serving:
        assert "applied" == await world.outcome(paid(world, "before"))
        await world.effects("capture before")
        await world.baseline_over()
        # out of the way at once; to drop it takes locks that may meet those of the serving
        await world.rows("alter schema reconciler rename to dropped")
        assert 503 == (await world.deliver(paid(world, "meanwhile"))).status_code
        await eventually(lambda: unready(serving))
        assert 503 == (await world.deliver(paid(world, "meanwhile"))).status_code
        # longer than any loop of it rests
        await eventually(lambda: told(serving, "relay.database_away"))
        await eventually(lambda: told(serving, "schedule.database_away"))
        await eventually(lambda: told(serving, "fetch.database_away"))
        assert 200 == await health(serving, "/livez")
        assert serving.process.returncode is None

        code, _, err = await world.command("migrate")
        assert 0 == code, err
        await ready_within(serving, 5)
        assert "applied" == await world.outcome(paid(world, "after"))
        await eventually(lambda: told(serving, "nothing is left of what this daemon has written"))
        await world.baseline_over()  # its scans run again
        assert 1 == serving.log.count('"daemon.database_away"')
        assert "the tables are not there: is a restore under way?" in serving.log
        assert "Traceback" not in serving.log

        await world.rows("drop table orders")  # the user's own: that is no outage
        assert 500 == (await world.deliver(paid(world, "lacking"))).status_code
        assert "ledger.event_quarantined" in serving.log
        assert await serving.is_usable()


def paid(world: World, key: str) -> dict[str, Any]:
    return order_event(f"evt_{key}", world.sender.sets(key, paid=True), type_="order.created")


async def one_that_listens(world: World) -> Daemon:
    """A serving that listens, its database away or not."""
    log_file = world.directory / f"serve-{len(world.daemons)}.log"
    serving = Daemon(process=await world.serve(log_file), log_file=log_file)
    world.daemons.append(serving)
    ready = await eventually(serving.ready_line, within=40)
    serving.webhooks, serving.admin = ready["webhooks"], ready["admin"]
    return serving


async def health(serving: Daemon, path: str) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        return (await client.get(serving.admin + path)).status_code


async def unready(serving: Daemon) -> bool:
    return 503 == await health(serving, "/readyz")


async def ready_within(serving: Daemon, seconds: float) -> None:
    began = time.monotonic()
    await eventually(serving.is_usable)
    assert seconds > time.monotonic() - began


# ---- stops


async def test_a_stop_answers_finishes_and_gives_back(world: World) -> None:
    """
    C137: SIGTERM, with an idle connection kept open, a delivery inside its transaction, a call at
    a destination that takes six seconds, entries in line behind it, and a page of a listing on
    its way. The delivery is answered, the call is made once and marked, what was not called is due
    and has used no attempt, the scan's slot is free; nothing is asked for once we have heard the
    signal, and nobody gets in any more. Exit 0.
    """
    written = world.config.read_text()
    world.config.write_text(written.replace('timeout = "3s"', 'timeout = "8s"\nconcurrency = 1'))
    async with world.serving() as serving:
        await world.baseline_over()
        idle_reader, idle_writer = await asyncio.open_connection(*place(serving.webhooks))
        idle_writer.write(b"POST /webhooks/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert b"404" in await idle_reader.readline()
        listing = await hanging_listing(world)
        await asyncio.wait_for(listing.wait(), 20)
        world.destination.troubles = [Answer(body={}, delay=6.0)]
        for key in ("ord_1", "ord_2", "ord_3"):
            assert "applied" == await world.outcome(paid(world, key))
        await eventually(lambda: called(world))
        async with await psycopg.AsyncConnection.connect(world.database_url) as holder:
            await holder.execute("lock table orders")
            delivery = asyncio.create_task(world.deliver(paid(world, "ord_4")))
            await eventually(lambda: waits_for_a_lock(world))
            asked = len(world.sender.requests)
            began = time.monotonic()
            serving.process.terminate()
            await eventually(lambda: told(serving, "daemon.draining"))
            await holder.rollback()
        assert (200, "applied") == (
            (answer := await delivery).status_code,
            answer.json()["outcome"],
        )
        with pytest.raises(httpx.ConnectError):
            await world.deliver(paid(world, "ord_5"))
        assert 0 == await asyncio.wait_for(serving.process.wait(), 30), serving.log
        assert 25.0 > time.monotonic() - began
        await asyncio.wait_for(idle_reader.read(), 5)  # to its end
        idle_writer.close()
    assert asked == len(world.sender.requests)
    assert 1 == len(world.destination.calls)
    entries = {entry["key"]: entry for entry in await world.outbox()}
    assert ("delivered", 1) == (entries["ord_1"]["state"], entries["ord_1"]["attempts"])
    for key in ("ord_2", "ord_3", "ord_4"):
        assert ("pending", 0) == (entries[key]["state"], entries[key]["attempts"])
    assert 3 == await world.value(
        "select count(*) from reconciler.outbox where state = 'pending' and due_at <= now()"
    )
    assert [] == await world.rows("select 1 from reconciler.scans where lease_until is not null")


async def hanging_listing(world: World) -> asyncio.Event:
    """From now on listings are not answered; set when the first has been asked for."""
    asked = asyncio.Event()

    async def hang(request: Request) -> None:
        if request.path == "/v1/orders":
            asked.set()
            await asyncio.sleep(60)

    world.sender.before = hang
    return asked


async def called(world: World) -> bool:
    return bool(world.destination.calls)


async def waits_for_a_lock(world: World) -> bool:
    return bool(await world.rows("select 1 from pg_locks where not granted"))


def place(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


async def test_a_stop_ends_a_long_wait_between_two_attempts(world: World) -> None:
    """
    C136: the sender's API asks for fourteen seconds of patience, and gets them, from a loop
    that tries again whatever is raised in it. A stop ends that wait at once: exit 0, and no
    further request.
    """
    world.sender.broken = Answer(status=503, body={}, headers={"Retry-After": "14"})
    async with world.serving() as serving:

        async def asked() -> bool:
            return bool(world.sender.pages)

        await eventually(asked)
        await asyncio.sleep(0.2)
        asked_for = len(world.sender.requests)
        began = time.monotonic()
        await serving.stops()
        assert 10.0 > time.monotonic() - began
    assert asked_for == len(world.sender.requests)


async def test_a_second_signal_does_not_wait(world: World) -> None:
    """A call hangs, and whoever stops the serving has no time: again SIGTERM, and it is gone."""
    world.config.write_text(world.config.read_text().replace('"3s"', '"8s"'))
    world.destination.troubles = [Answer(body={}, delay=20.0)]
    async with world.serving("--role", "receiver,relay") as serving:
        assert "applied" == await world.outcome(paid(world, "ord_1"))
        await eventually(lambda: called(world))
        began = time.monotonic()
        serving.process.send_signal(signal.SIGTERM)
        await eventually(lambda: told(serving, "daemon.draining"))
        serving.process.send_signal(signal.SIGTERM)
        assert 0 == await asyncio.wait_for(serving.process.wait(), 10), serving.log
        assert 12.0 > time.monotonic() - began
    assert "daemon.drain_broken_off" in serving.log
    (entry,) = await world.outbox()
    assert ("pending", 1) == (entry["state"], entry["attempts"])


async def told(serving: Daemon, event: str) -> bool:
    return event in serving.log
