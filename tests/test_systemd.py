"""Stories of what the service manager hears: sd_notify(3), sd_watchdog_enabled(3)."""

import asyncio
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from reconciler.systemd import Condition, notify, report, watchdog_interval
from tests.world import Daemon, a_world, eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """What listens to us, in the abstract namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # Linux chooses a name
        listening.setblocking(False)
        yield listening


def address_of(manager: socket.socket) -> str:
    return "@" + manager.getsockname()[1:].decode()


def heard(manager: socket.socket) -> list[str]:
    """All that was said since the last time, a line each."""
    lines: list[str] = []
    while True:
        try:
            lines += manager.recv(4096).decode().splitlines()
        except BlockingIOError:
            return lines


async def test_the_daemon_tells_when_it_serves_and_when_it_stops(
    database_url: str, tmp_path: Path, manager: socket.socket
) -> None:
    """READY only when it listens, a sentence for `systemctl status`, life signs, STOPPING."""
    told: list[str] = []

    async def alive() -> bool:
        told.extend(heard(manager))
        return told.count("WATCHDOG=1") > 2

    async with a_world(tmp_path, database_url) as world:
        async with world.serving(NOTIFY_SOCKET=address_of(manager), WATCHDOG_USEC="600000"):
            told += heard(manager)
            assert "READY=1" in told
            await eventually(alive)
        told += heard(manager)
    stopping = told.index("STOPPING=1")
    assert "STATUS=serving: receiver, relay, reconciler" in told[:stopping]
    assert "STATUS=stopping: what is under way is finished" == told[stopping + 1]


async def test_a_daemon_without_its_database_is_ready_and_says_what_it_waits_for(
    database_url: str, tmp_path: Path, manager: socket.socket
) -> None:
    """An outage is no reason to be restarted: it would not come back any sooner."""
    told: list[str] = []

    async def waiting() -> bool:
        told.extend(heard(manager))
        return "READY=1" in told and any("waiting for the database" in line for line in told)

    async def alive() -> bool:
        told.extend(heard(manager))
        return "WATCHDOG=1" in told

    async with a_world(tmp_path, database_url) as world:
        nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
        environment = {"RECONCILER_DATABASE__URL": nowhere}
        environment |= {"NOTIFY_SOCKET": address_of(manager), "WATCHDOG_USEC": "600000"}
        process = await world.serve(tmp_path / "away.log", **environment)
        world.daemons.append(Daemon(process=process, log_file=tmp_path / "away.log"))
        await eventually(waiting)
        told.clear()
        await eventually(alive)
        await world.daemons[-1].stops()


async def test_life_signs_come_three_times_in_an_interval_and_end_with_life(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that stands still ends them, and its moving again brings them back."""
    monkeypatch.setenv("NOTIFY_SOCKET", address_of(manager))
    monkeypatch.setenv("WATCHDOG_USEC", "1500000")
    conditions = [
        Condition(told="serving"),
        Condition(told="serving"),
        Condition(told="stalled: relay", alive=False),
        Condition(told="stalled: relay", alive=False),
        Condition(told="serving"),
    ]
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == len(conditions):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await report(lambda: conditions[len(slept)], sleep=sleep)
    assert [0.5] * 5 == slept
    assert heard(manager) == [
        *("STATUS=serving", "WATCHDOG=1"),
        "WATCHDOG=1",
        "STATUS=stalled: relay",
        *("STATUS=serving", "WATCHDOG=1"),
    ]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "2000000"}, timedelta(seconds=2)),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, timedelta(seconds=2)),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "9" * 40}, timedelta(microseconds=10**15)),
        ({}, None),
    ],
)
def test_how_often_the_manager_wants_to_hear_from_us(
    environ: dict[str, str], expected: timedelta | None
) -> None:
    assert expected == watchdog_interval(environ)


@pytest.mark.parametrize("address", ["", "@nobody-listens-here", "/nowhere/at/all"])
def test_nobody_listens_and_nothing_happens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without systemd, in a container, in a terminal."""
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")


def test_a_sentence_cannot_say_anything_else(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database's message has several lines; the protocol takes each for a fact of its own."""
    monkeypatch.setenv("NOTIFY_SOCKET", address_of(manager))
    assert notify("STATUS=waiting for the database: gone\nREADY=1")
    assert ["STATUS=waiting for the database: gone READY=1"] == heard(manager)
