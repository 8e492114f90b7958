"""P19, health is progress: a loop that stands still is told, whatever port is open."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from reconciler.proving.misbehaving_http import Answer
from tests.stories.conftest import UNHEALED
from tests.world import CONFIGURATION, PLAIN, Daemon, a_world, eventually, order_event, refund_event

pytestmark = pytest.mark.anyio

BOUND = 2.0  #: seconds, instead of a minute

#: A module of handlers can do anything: this one stops the relay's loop while a file is there.
FREEZER = f"""\
import asyncio
from datetime import timedelta
from pathlib import Path

from outbox import relay
from reconciler import handler
from reconciler.lifecycle import Progress

FROZEN = Path(__file__).with_name("frozen")
lease_free, loop = relay.Relay.lease_free, Progress.loop


async def freeze(self):
    while FROZEN.exists():
        await asyncio.sleep(0.02)
    return await lease_free(self)


relay.Relay.lease_free = freeze


def shorter(self, name, *, bound):
    return loop(self, name, bound=timedelta(seconds={BOUND}) if name == "relay" else bound)


Progress.loop = shorter


@handler("shop", on="nothing.at.all")
async def nothing(event, tx):
    pass
"""


async def test_p19_a_frozen_loop_is_told_and_a_long_call_is_none(tmp_path: Path, database_url: str):
    """
    A call takes twice as long as a loop may stand still: nobody minds, it has a bound of its
    own. Then the relay's loop freezes. The listeners go on answering, webhooks are committed,
    and the service manager hears nothing any more; /livez names the loop. It thaws: all is well.
    """
    (tmp_path / "freezer.py").write_text(FREEZER)
    frozen = tmp_path / "frozen"
    configuration = f'handlers = ["freezer"]\n{CONFIGURATION}'
    async with a_world(tmp_path, database_url, configuration=configuration) as world:
        with service_manager(tmp_path / "notify") as told:
            patient = {"RECONCILER_DESTINATIONS__PAYMENTS__TIMEOUT": "8s"}
            async with world.serving(
                *UNHEALED, NOTIFY_SOCKET=str(tmp_path / "notify"), **patient
            ) as daemon:
                world.destination.troubles = [Answer(delay=2 * BOUND)]
                paid = world.sender.sets("ord_1", status="paid", paid=True)
                await world.outcome(order_event("evt_1", paid))
                assert (200, "ok") == await health(daemon, unlike="ok", within=2 * BOUND)
                assert told.pings() > 0
                await world.effects("capture ord_1")
                await world.settled()

                frozen.touch()
                found = await health(daemon, unlike="ok", within=BOUND + 10)
                assert (503, "stalled: relay") == found
                told.pings()
                assert "applied" == await world.outcome(refund_event("evt_2"))
                assert (503, "stalled: relay") == await health(daemon, unlike="", within=1.5)
                assert 0 == told.pings(), "systemd was told that all is well"

                frozen.unlink()
                assert (200, "ok") == await health(daemon, unlike="stalled: relay", within=20)
                await world.effects("capture ord_1", "receipt evt_2")

                async def heard() -> int:
                    return told.pings()

                await eventually(heard)


async def health(daemon: Daemon, *, unlike: str, within: float) -> tuple[int, str]:
    """What /livez says, as soon as that is something else than *unlike* or *within* is over."""
    deadline = time.monotonic() + within
    async with httpx.AsyncClient(trust_env=False, verify=PLAIN) as client:
        while True:
            answer = await client.get(f"{daemon.admin}/livez")
            text = answer.text.strip()
            if (unlike and text != unlike) or time.monotonic() > deadline:
                return answer.status_code, text
            await asyncio.sleep(0.05)


class ServiceManager:
    """Hears what a service tells systemd."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel

    def pings(self) -> int:
        """How often the watchdog was told to wait, since the last time that this was asked."""
        count = 0
        while True:
            try:
                count += self.channel.recv(4096).split(b"\n").count(b"WATCHDOG=1")
            except BlockingIOError:
                return count


@contextmanager
def service_manager(place: Path) -> Iterator[ServiceManager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(place))
        channel.setblocking(False)
        yield ServiceManager(channel)
