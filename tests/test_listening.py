"""Stories of sockets that somebody else holds: nothing is refused while we are away."""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from reconciler import http_server, listening
from reconciler.errors import ConfigError
from reconciler.http_server import Limits, Receive, Scope, Send
from reconciler.listening import Listeners
from reconciler.settings import load
from tests.world import PLAIN, Daemon, World, a_world, eventually, order_event, signed

pytestmark = pytest.mark.anyio

FIRST = 200  #: a stretch of descriptors that nothing else uses


@asynccontextmanager
async def passed_to(
    world: World, sockets: Sequence[socket.socket], names: str, *words: str
) -> AsyncIterator[Daemon]:
    """The real daemon, started as the service manager would; it must end with 0."""
    log_file = world.directory / f"passed-{len(world.daemons) + 1}.log"
    descriptors = [one.fileno() for one in sockets]
    with log_file.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.passing_sockets"),
            *(",".join(map(str, descriptors)), names),
            *(sys.executable, "-m", "reconciler", "serve", "--config", str(world.config)),
            *words,
            stderr=errors,
            pass_fds=descriptors,
            env={**world.environment, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
    daemon = Daemon(process=process, log_file=log_file)
    world.daemons.append(daemon)
    ready = await eventually(daemon.ready_line, within=40)
    daemon.webhooks, daemon.admin = ready["webhooks"], ready["admin"]
    try:
        yield daemon
    finally:
        await daemon.stops()


@dataclass
class Load:
    """Senders that do not wait for us: a new connection for each delivery, or one for all."""

    url: str
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    answers: list[str] = field(default_factory=list)

    async def deliver(self, name: str, *, connections_kept: int) -> None:
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=connections_kept)
        async with httpx.AsyncClient(
            base_url=self.url, trust_env=False, verify=PLAIN, timeout=60, limits=limits
        ) as http:
            for number in itertools.count():
                data = {"order_id": f"{name}-{number}", "version": 1, "status": "new"}
                body = json.dumps(order_event(f"{name}-{number}", data)).encode()
                answer = await http.post("/webhooks/shop", content=body, headers=signed(body))
                self.answers.append(f"{answer.status_code} {answer.json().get('outcome')}")
                if self.stopping.is_set():
                    return

    async def answered(self, count: int) -> None:
        """Wait for *count* more answers."""
        enough = len(self.answers) + count

        async def come() -> bool:
            return len(self.answers) >= enough

        await eventually(come)


async def test_restarts_under_load_refuse_and_reset_nothing(
    database_url: str, tmp_path: Path
) -> None:
    """
    Somebody holds the socket while the daemon is started and stopped, three times, and six
    senders never pause: each of their deliveries is answered with 200 and is in the database.
    """
    async with a_world(tmp_path, database_url) as world:
        with listening.bind("127.0.0.1:0") as held:
            load = Load(listening.url_of(held))
            async with asyncio.TaskGroup() as senders:
                for number in range(6):
                    sender = load.deliver(f"sender-{number}", connections_kept=number % 2)
                    senders.create_task(sender)
                for _ in range(3):
                    async with passed_to(world, [held], "webhooks") as daemon:
                        assert load.url == daemon.webhooks
                        await load.answered(60)
                async with passed_to(world, [held], "webhooks"):
                    load.stopping.set()
                    await load.answered(6)
        assert {"200 applied"} == set(load.answers)
        claims = await world.value(
            "select count(*) from reconciler.processed_events where event_id like 'sender-%'"
        )
        assert len(load.answers) == claims


async def test_two_daemons_share_one_socket(database_url: str, tmp_path: Path) -> None:
    """Whoever is free accepts: both have their part of the deliveries, and none has one twice."""
    async with a_world(tmp_path, database_url) as world:
        with listening.bind("127.0.0.1:0") as held:
            load = Load(listening.url_of(held))
            async with (
                passed_to(world, [held], "webhooks") as one,
                passed_to(world, [held], "webhooks") as other,
                asyncio.TaskGroup() as senders,
            ):
                for number in range(8):
                    sender = load.deliver(f"sender-{number}", connections_kept=0)
                    senders.create_task(sender)
                while not (await applied(one) and await applied(other)):
                    await load.answered(20)
                load.stopping.set()
        assert {"200 applied"} == set(load.answers)


async def applied(daemon: Daemon) -> bool:
    """Whether *daemon* has applied any event."""
    metrics = await daemon.shown("/metrics") or ""
    return 'outcome="applied"' in metrics


async def test_files_and_several_sockets_of_one_name(database_url: str, tmp_path: Path) -> None:
    """
    A proxy on this host may use a file: two sockets for webhooks and one for operators, in
    any order. The file is still there, and still somebody's, when the daemon has gone.
    """
    async with a_world(tmp_path, database_url) as world:
        with (
            in_file(tmp_path / "admin") as admin,
            in_file(tmp_path / "webhooks") as webhooks,
            listening.bind("127.0.0.1:0") as another,
        ):
            sockets, names = [admin, webhooks, another], "admin:webhooks:webhooks"
            async with passed_to(world, sockets, names) as daemon:
                assert f"http+unix://{quote(str(tmp_path / 'admin'), safe='')}" == daemon.admin
                assert (
                    f"http+unix://{quote(str(tmp_path / 'webhooks'), safe='')}" == daemon.webhooks
                )
                body = json.dumps(order_event("e1", world.sender.sets("ord_1"))).encode()
                for given, outcome in [(webhooks, "applied"), (another, "duplicate")]:
                    async with client_of(given) as http:
                        answer = await http.post("/webhooks", content=body, headers=signed(body))
                    assert (200, outcome) == (answer.status_code, answer.json()["outcome"])
                async with client_of(admin) as http:
                    assert 200 == (await http.get("/livez")).status_code
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "webhooks"))


def client_of(given: socket.socket) -> httpx.AsyncClient:
    name = given.getsockname()
    path = name if isinstance(name, str) else None
    url = "http://here" if path else listening.url_of(given)
    transport = httpx.AsyncHTTPTransport(uds=path, verify=PLAIN)
    return httpx.AsyncClient(base_url=url, transport=transport, timeout=20)


@contextlib.contextmanager
def in_file(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


async def test_a_socket_that_is_none_of_ours_is_a_matter_of_configuration(
    database_url: str, tmp_path: Path
) -> None:
    """Restarting would not help, so the unit must not: exit code 78, and why."""
    async with a_world(tmp_path, database_url) as world:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
            pytest.raises(AssertionError, match="ListenStream="),
        ):
            async with passed_to(world, [datagrams], "webhooks"):
                pass
        assert 78 == await world.daemons[-1].process.wait()


@contextlib.contextmanager
def given(*sockets: socket.socket, names: str = "", **wrong: str) -> Iterator[dict[str, str]]:
    """An environment as if the service manager had passed *sockets*, from FIRST on."""
    with contextlib.ExitStack() as passed:
        for number, one in enumerate(sockets):
            os.dup2(one.fileno(), FIRST + number)
            passed.callback(closed, FIRST + number)
        told = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(sockets))}
        told |= {"LISTEN_FDNAMES": names} if names else {}
        yield {**told, **wrong, "HOME": "/"}


def closed(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def test_no_child_gets_a_passed_socket() -> None:
    """Our private PostgreSQL would hold the port, and a program would think it meant for it."""
    with listening.bind("127.0.0.1:0") as held, given(held) as environ:
        assert os.get_inheritable(FIRST)
        (taken,) = listening.taken(environ, first=FIRST).values()
        assert {"HOME": "/"} == environ
        assert not os.get_inheritable(FIRST)
        assert (True, listening.url_of(held)) == (taken.passed, taken.url)
        taken.close()


@pytest.mark.parametrize("wrong", [{"LISTEN_PID": "1"}, {"LISTEN_PID": ""}, {"LISTEN_FDS": ""}])
def test_sockets_of_another_process_are_left_alone(wrong: dict[str, str]) -> None:
    """The variables may have come through a shell: sd_listen_fds(3) says whose they are."""
    with listening.bind("127.0.0.1:0") as held, given(held, **wrong) as environ:
        assert {} == listening.taken(environ, first=FIRST)
        assert {"HOME": "/"} == environ


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"LISTEN_FDS": "one"}, "LISTEN_FDS is 'one', not a number of sockets"),
        ({"LISTEN_FDS": "0"}, "LISTEN_FDS is '0', not a number of sockets"),
        ({"LISTEN_FDS": "99999999999"}, "LISTEN_FDS is '99999999999', not a number of sockets"),
        ({"LISTEN_FDNAMES": "webhooks:admin"}, "names 2 sockets, LISTEN_FDS passes 1"),
        ({"LISTEN_FDS": "2"}, "'unknown' .descriptor 201. is not a socket"),
    ],
)
def test_what_a_service_manager_would_never_say_is_refused(
    wrong: dict[str, str], told: str
) -> None:
    """Listening elsewhere instead would be worse: nobody would notice."""
    with (
        listening.bind("127.0.0.1:0") as held,
        given(held, **wrong) as environ,
        pytest.raises(ConfigError, match=told),
    ):
        listening.taken(environ, first=FIRST)


def test_a_socket_too_many_is_refused() -> None:
    with (
        listening.bind("127.0.0.1:0") as held,
        given(held, held, held) as environ,
        pytest.raises(ConfigError, match="one too many"),
    ):
        listening.taken(environ, first=FIRST)


def test_what_does_not_listen_is_refused() -> None:
    """A connection, say, which a socket unit with Accept=yes would pass."""
    ours, theirs = socket.socketpair()
    with ours, theirs, given(ours) as environ, pytest.raises(ConfigError, match="Accept=no"):
        listening.taken(environ, first=FIRST)


def test_operators_have_a_token_on_a_passed_socket_too(tmp_path: Path) -> None:
    """As for `admin_listen`: what strangers can reach asks for a token."""
    config = tmp_path / "reconciler.toml"
    config.write_text("")
    with (
        listening.bind("0.0.0.0:0") as held,
        given(held, names="admin") as environ,
        pytest.raises(ConfigError, match=r"server\.admin_token: needed"),
        listening.opened(load(config), listening.taken(environ, first=FIRST), receives=False),
    ):
        pass


async def answers_ok(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def served(listeners: Listeners, **limits: timedelta) -> AsyncIterator[asyncio.Event]:
    """An HTTP server; it has stopped within moments when this ends."""
    stop, ready = asyncio.Event(), asyncio.Event()
    settings = Limits(**{"drain": timedelta(seconds=5), "connections": 1000, **limits})
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        running = http_server.run(
            answers_ok, listeners, limits=settings, stop=stop, ready=lambda _: ready.set()
        )
        group.create_task(running)
        await ready.wait()
        yield stop
        stop.set()


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_what_was_sent_while_we_stopped_is_answered() -> None:
    """
    A client that has just connected, and one between two requests, cannot know that we stop.
    Their requests are answered, and told that the connection ends; who says nothing is let go.
    """
    listeners = listening.listen_on("127.0.0.1:0")
    place = listeners.sockets[0].getsockname()
    async with served(listeners) as stop:
        clients = [await asyncio.open_connection(*place) for _ in range(3)]
        (new, kept, quiet) = clients
        kept[1].write(GET)
        assert b"close" not in await kept[0].readuntil(b"ok")
        stop.set()
        await asyncio.sleep(0.05)
        for reader, writer in (new, kept):
            writer.write(GET)
            assert b"connection: close" in await reader.read()
        assert b"" == await quiet[0].read()
        for _, writer in clients:
            writer.close()


async def test_the_queue_of_a_passed_socket_is_for_our_successor() -> None:
    """What the kernel took in while we stop is not ours: the next server answers it."""
    with listening.bind("127.0.0.1:0") as held:
        place = held.getsockname()
        shared = Listeners(sockets=[held.dup()], passed=True)
        shared.sockets[0].setblocking(False)
        async with served(shared) as stop:
            client = socket.create_connection(place)  # the loop does not turn meanwhile
            client.sendall(GET)
            stop.set()
        client.setblocking(False)
        with client:
            with pytest.raises(BlockingIOError):
                client.recv(1000)
            async with served(Listeners(sockets=[held.dup()], passed=True)):
                loop = asyncio.get_running_loop()
                assert (await loop.sock_recv(client, 1000)).startswith(b"HTTP/1.1 200")


async def test_the_queue_of_our_own_socket_is_answered() -> None:
    """Nobody comes after us: who is in the queue already would be reset."""
    listeners = listening.listen_on("127.0.0.1:0")
    place = listeners.sockets[0].getsockname()
    clients = []
    async with served(listeners) as stop:
        for _ in range(50):
            client = socket.create_connection(place)  # the loop does not turn meanwhile
            client.sendall(GET)
            clients.append(client)
        stop.set()
    for client in clients:
        client.settimeout(5)
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.close()
