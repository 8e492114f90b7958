"""
The private PostgreSQL: it survives whatever kills it, and has one owner at a time.

Each story is told as every user who may run it: an ordinary one, and, where the tests run as
root, root itself, root where no user namespaces are to be had, and root on a user's directory.
"""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from reconciler import embedded, embedded_leftovers
from reconciler.embedded_account import CHILD, Account, can_reach, is_allowed
from reconciler.embedded_binaries import binaries_directory

HERE = Path(__file__).parent
DAEMON = [sys.executable, str(HERE / "embedded_daemon.py")]
LIMIT = 60.0

USERS = ["ordinary", "root", "root without namespaces", "root on a user's directory"]
USERS_HERE = USERS if os.geteuid() == 0 else USERS[:1]

NOBODY = pwd.getpwnam("nobody")
IN_NAMESPACE = Account(argument=f"namespace:{NOBODY.pw_uid}:0:0", uid=0, gid=0)
AS_NOBODY = Account(
    argument=f"user:{NOBODY.pw_uid}:{NOBODY.pw_gid}", uid=NOBODY.pw_uid, gid=NOBODY.pw_gid
)


def until(met: Callable[[], object], *, what: str) -> None:
    """Wait for *met*; the only clock in this file is its limit."""
    deadline = time.monotonic() + LIMIT
    while not met():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


@dataclass
class Machine:
    """A state directory and the user who runs daemons on it."""

    who: str
    state: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def run(self, how: str) -> subprocess.Popen[str]:
        return self.spawn([*DAEMON, how, str(self.state)])

    def spawn(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*self.wrapper(), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
        self.running.append(process)
        return process

    def wrapper(self) -> list[str]:
        if self.who == "ordinary" and os.geteuid() == 0:
            return ordinary().command([])
        if self.who == "root without namespaces":
            return [sys.executable, str(HERE / "without_namespaces.py")]
        return []

    def daemon(self, how: str = "start") -> "Daemon":
        process = self.run(how)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        return Daemon(process=process, url=json.loads(line)["url"], data=self.data)

    def refusal(self, how: str = "start") -> tuple[int, str]:
        process = self.run(how)
        said = process.communicate(timeout=LIMIT)[1]
        return process.returncode, said

    @property
    def data(self) -> Path:
        return next(iter(self.state.glob("pg[0-9]*")), self.state / "pg18")

    def clean_up(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()
        embedded_leftovers.stop_orphan(self.data)


@dataclass
class Daemon:
    process: subprocess.Popen[str]
    url: str
    data: Path

    @property
    def server(self) -> int | None:
        return embedded_leftovers.postmaster_pid(self.data)

    def execute(self, statement: str) -> Any:
        with psycopg.connect(self.url, autocommit=True) as connection:
            result = connection.execute(statement)
            return result.fetchall() if result.description else None

    def answers(self) -> bool:
        try:
            return self.execute("select 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=LIMIT)
        return self.process.returncode


def ordinary() -> Account:
    """How root becomes an ordinary user who can still read this checkout and its Python."""
    if can_reach(AS_NOBODY, Path(sys.executable)) and can_reach(AS_NOBODY, CHILD):
        return AS_NOBODY
    assert is_allowed(IN_NAMESPACE), "run the tests as an ordinary user, or from a readable place"
    return IN_NAMESPACE


@pytest.fixture(params=USERS_HERE)
def machine(request: pytest.FixtureRequest, new_directory: Callable[[], Path]) -> Iterator[Machine]:
    place = new_directory()
    place.chmod(0o711)
    state = place / "state"
    if request.param == "root on a user's directory" or (
        request.param == "ordinary" and os.geteuid() == 0 and ordinary() is AS_NOBODY
    ):
        state.mkdir(mode=0o700)
        os.chown(state, NOBODY.pw_uid, NOBODY.pw_gid)
    machine = Machine(who=request.param, state=state)
    try:
        yield machine
    finally:
        machine.clean_up()
        shutil.rmtree(place)


@pytest.fixture
def state(new_directory: Callable[[], Path]) -> Iterator[Path]:
    place = new_directory()
    yield place
    shutil.rmtree(place)


def remember(daemon: Daemon) -> None:
    daemon.execute("create table if not exists kept (id int primary key)")
    daemon.execute("insert into kept select coalesce(max(id), 0) + 1 from kept")


def remembered(daemon: Daemon) -> int:
    return int(daemon.execute("select count(*) from kept")[0][0])


def test_what_is_committed_is_there_after_a_restart(machine):
    """
    The first start makes the server, the second finds it; psql of this host takes the URL; no
    port is open; nothing is left running.
    """
    daemon = machine.daemon()
    remember(daemon)
    assert [("on", "on", "on", "")] == daemon.execute(
        "select current_setting('fsync'), current_setting('synchronous_commit'),"
        " current_setting('full_page_writes'), current_setting('listen_addresses')"
    )
    psql = machine.spawn([str(binaries_directory() / "psql"), daemon.url, "-Atc", "table kept"])
    assert ("1\n", "") == psql.communicate(timeout=LIMIT)
    here = subprocess.run(
        [binaries_directory() / "psql", daemon.url, "-Atc", "table kept"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("1\n", "") == (here.stdout, here.stderr)
    assert 0 == daemon.stop()
    assert [] == list(embedded_leftovers.servers_of(machine.data))

    again = machine.daemon()
    assert 1 == remembered(again)
    assert 0 == again.stop()


def test_the_server_ends_with_a_killed_daemon_and_the_next_one_starts(machine):
    """kill -9 of the daemon: the kernel tells the server, which stops by itself."""
    daemon = machine.daemon()
    remember(daemon)
    daemon.process.kill()
    until(lambda: not list(embedded_leftovers.servers_of(machine.data)), what="the server ended")

    again = machine.daemon()
    assert 1 == remembered(again)
    assert 0 == again.stop()


def test_a_killed_server_is_started_again_under_a_running_daemon(machine):
    """kill -9 of the server, three times: the daemon lives, and so does what was committed."""
    daemon = machine.daemon()
    for round_number in (1, 2, 3):
        remember(daemon)
        killed = daemon.server
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        until(lambda k=killed: daemon.server not in {None, k}, what="another server")
        until(daemon.answers, what="it answers")
        assert round_number == remembered(daemon)
    assert 0 == daemon.stop()


def test_daemon_and_server_killed_together(machine):
    """kill -9 of both: the next daemon clears away what they left and recovers."""
    daemon = machine.daemon()
    remember(daemon)
    server = daemon.server
    assert server is not None
    daemon.process.kill()
    os.kill(server, signal.SIGKILL)
    daemon.process.communicate()

    again = machine.daemon()
    assert 1 == remembered(again)
    assert 0 == again.stop()


@pytest.mark.parametrize("impostor", ["a sleeper", "a zombie", "another server", "nothing"])
def test_a_process_that_got_the_old_servers_number_fools_nobody(machine, impostor, state):
    """
    The server was killed, its pid file stayed, and its number now belongs to somebody else (or,
    where pid 1 does not reap, to a zombie; or the file was empty yet). Nobody is waited for or
    signalled, and the daemon starts.
    """
    daemon = machine.daemon()
    remember(daemon)
    pid_file = machine.data / "postmaster.pid"
    written = pid_file.read_text().splitlines()
    server = daemon.server
    assert server is not None
    os.kill(daemon.process.pid, signal.SIGSTOP)  # it must not start another one
    os.kill(server, signal.SIGKILL)
    daemon.process.kill()
    daemon.process.communicate()

    with impersonated(impostor, state) as number:
        lines = [str(number), *written[1:]] if number else []
        pid_file.write_text("\n".join(lines))
        again = machine.daemon()
        assert 1 == remembered(again)
        assert number is None or Path(f"/proc/{number}").exists()
        assert 0 == again.stop()


@contextmanager
def impersonated(kind: str, another: Path) -> Iterator[int | None]:
    """The process id of somebody who is not our server; *another* is there for a server of theirs."""
    match kind:
        case "a sleeper":
            with subprocess.Popen(["sleep", "600"]) as process:
                yield process.pid
                process.kill()
        case "a zombie":
            with subprocess.Popen(["true"]) as process:
                status = Path(f"/proc/{process.pid}/stat")
                until(lambda: " Z " in status.read_text(), what="a zombie")
                yield process.pid
        case "another server":
            other = embedded.start(another, fast=True)
            yield embedded_leftovers.postmaster_pid(next(another.glob("pg[0-9]*")))
            other.stop()
        case _:
            yield None


def test_a_second_daemon_is_refused_and_told_who_is_first(machine):
    """Exit 75, naming the process; the first one does not notice."""
    daemon = machine.daemon()
    code, said = machine.refusal()
    assert 75 == code
    assert str(daemon.process.pid) in said
    assert daemon.answers()
    assert 0 == daemon.stop()


def test_commands_join_a_running_server(machine):
    """A command uses the daemon's server and leaves it running."""
    daemon = machine.daemon()
    command = machine.daemon("attach")
    assert daemon.url == command.url
    assert 0 == command.stop()
    assert daemon.answers()
    assert 0 == daemon.stop()


def test_commands_alone_start_the_server_for_their_own_duration(machine):
    """
    The first command starts it, the second joins; the first, told to end, keeps it up for the
    second. Then it is gone.
    """
    first = machine.daemon("attach")
    second = machine.daemon("attach")
    first.process.send_signal(signal.SIGTERM)
    until(lambda: waits_for_others(first), what="the first waits")
    assert second.answers()
    assert 0 == second.stop()
    first.process.communicate(timeout=LIMIT)
    assert 0 == first.process.returncode
    assert [] == list(embedded_leftovers.servers_of(machine.data))


def waits_for_others(daemon: Daemon) -> bool:
    assert daemon.process.stderr is not None
    return "embedded.waiting" in daemon.process.stderr.readline()


def test_a_daemon_waits_for_a_command_that_runs_the_server(machine):
    """`serve` is started while a command is at work: it takes over when that has ended."""
    command = machine.daemon("attach")
    starting = machine.run("start")
    assert starting.poll() is None
    assert 0 == command.stop()
    assert starting.stdout is not None
    assert json.loads(starting.stdout.readline())["url"] == command.url


def test_a_path_too_long_for_a_socket(machine):
    """A socket's path holds 107 bytes; the state directory's may hold more."""
    deep = machine.state / ("d" * (120 - len(str(machine.state)) - 1))
    if machine.state.exists():
        deep.mkdir(mode=0o700)
        shutil.copystat(machine.state, deep)
        os.chown(deep, machine.state.stat().st_uid, machine.state.stat().st_gid)
    machine.state = deep
    daemon = machine.daemon()
    assert daemon.answers()
    assert embedded.join(deep) == daemon.url
    assert 0 == daemon.stop()
    shutil.rmtree(embedded_socket(daemon.url))


def embedded_socket(url: str) -> Path:
    return Path(url.partition("host=")[2])
