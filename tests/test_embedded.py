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
from reconciler.embedded_server import Server
from reconciler.errors import ConfigError, DatabaseAwayError
from reconciler.settings.models import ServerSettings, Settings

HERE = Path(__file__).parent
ROOTS = "/var/lib/reconciler" if os.geteuid() == 0 else None
DAEMON = [sys.executable, str(HERE / "embedded_daemon.py")]
LIMIT = 60.0

USERS = ["ordinary", "root", "root without namespaces", "root on a user's directory"]
USERS_HERE = USERS if os.geteuid() == 0 else USERS[:1]
NAMELESS = ["ordinary without a name"] if os.geteuid() == 0 else []

IMPOSTORS = [
    *((user, "a sleeper") for user in USERS_HERE),
    *((user, kind) for user in USERS_HERE[:2] for kind in ("a zombie", "a server", "nobody yet")),
]

NOBODY = pwd.getpwnam("nobody")
IN_NAMESPACE = Account(argument=f"namespace:{NOBODY.pw_uid}:0:0", uid=0, gid=0)
NAMELESS_IN_NAMESPACE = Account(argument="namespace:54321:0:0", uid=0, gid=0)
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
        if self.who == "ordinary without a name":
            return NAMELESS_IN_NAMESPACE.command([])
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

    def forget(self) -> None:
        """As if there had never been a start."""
        shutil.rmtree(self.data)

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


@pytest.fixture(scope="session")
def made_data(new_directory: Callable[[], Path]) -> Iterator[Path]:
    """A data directory as a first start makes it, to be copied: that is much faster."""
    place = new_directory()
    embedded.start(place).stop()
    yield next(place.glob("pg[0-9]*"))
    shutil.rmtree(place)


@pytest.fixture(params=USERS_HERE)
def machine(
    request: pytest.FixtureRequest, new_directory: Callable[[], Path], made_data: Path
) -> Iterator[Machine]:
    place = new_directory()
    place.chmod(0o711)
    state = place / "state"
    state.mkdir(mode=0o700)
    shutil.copytree(made_data, state / made_data.name)
    if request.param == "root on a user's directory" or (
        request.param == "ordinary" and os.geteuid() == 0 and ordinary() is AS_NOBODY
    ):
        AS_NOBODY.own(state)
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


def servers_of(data: Path) -> list[int]:
    """Every PostgreSQL process that works in *data*."""
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in numbers if embedded_leftovers.is_server_of(pid, data)]


def is_running(pid: int) -> bool:
    """Whether *pid* is a process that has not ended (one that nobody has reaped has)."""
    return " Z " not in Path(f"/proc/{pid}/stat").read_text()


def remember(daemon: Daemon) -> None:
    daemon.execute("create table if not exists kept (id int primary key)")
    daemon.execute("insert into kept select coalesce(max(id), 0) + 1 from kept")


def remembered(daemon: Daemon) -> int:
    return int(daemon.execute("select count(*) from kept")[0][0])


@pytest.mark.parametrize("machine", [*USERS_HERE, *NAMELESS], indirect=True)
def test_what_is_committed_is_there_after_a_restart(machine):
    """
    The first start makes the server, the second finds it; psql of this host takes the URL; no
    port is open; nothing is left running.
    """
    machine.forget()
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
    assert [] == servers_of(machine.data)

    again = machine.daemon()
    assert 1 == remembered(again)
    assert 0 == again.stop()


def test_the_server_ends_with_a_killed_daemon_and_the_next_one_starts(machine):
    """kill -9 of the daemon: the kernel tells the server, which stops by itself."""
    daemon = machine.daemon()
    remember(daemon)
    daemon.process.kill()
    until(lambda: not servers_of(machine.data), what="the server ended")

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


@pytest.mark.parametrize(("machine", "impostor"), IMPOSTORS, indirect=["machine"])
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
        assert number is None or impostor == "a zombie" or is_running(number)
        assert 0 == again.stop()


@contextmanager
def impersonated(kind: str, another: Path) -> Iterator[int | None]:
    """The process id of somebody who is not our server; *another* is a place for theirs."""
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
        case "a server":
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
    assert [] == servers_of(machine.data)


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
    deep = machine.state.with_name("d" * (120 - len(str(machine.state.parent)) - 1))
    assert 120 == len(str(machine.state.rename(deep)))
    machine.state = deep
    daemon = machine.daemon()
    assert daemon.answers()
    assert embedded.join(deep) == daemon.url
    assert 0 == daemon.stop()
    shutil.rmtree(embedded_socket(daemon.url))


def embedded_socket(url: str) -> Path:
    return Path(url.partition("host=")[2])


def test_a_first_start_that_was_killed_leaves_no_half_a_server(machine):
    """kill -9 while the data directory is being made: the next start begins anew."""
    machine.forget()
    killed = machine.run("start")
    until(lambda: list(machine.state.glob("init.*/*")), what="it is being made")
    killed.kill()
    killed.communicate()
    daemon = machine.daemon()
    assert daemon.answers()
    assert [] == list(machine.state.glob("init.*"))
    assert 0 == daemon.stop()


def test_a_server_that_outlived_its_owner_is_stopped(state):
    """Where the kernel does not tell it (not Linux), the next daemon does, and takes over."""
    first = embedded.start(state, fast=True)
    first.stop()
    made = Server.under(state, fast=True)
    made.launch()
    until(made.is_ready, what="an orphan is up")
    orphan = embedded_leftovers.postmaster_pid(made.data)
    second = embedded.start(state, fast=True)
    assert orphan != embedded_leftovers.postmaster_pid(made.data)
    until(made.has_ended, what="the orphan has ended")
    made.stop()
    second.stop()


def test_only_a_server_for_tests_is_fast(state):
    """Even that one acknowledges after the commit; it only survives no power cut."""
    server = embedded.start(state, fast=True)
    with psycopg.connect(server.url) as connection:
        found = connection.execute(
            "select current_setting('fsync'), current_setting('synchronous_commit')"
        ).fetchone()
    server.stop()
    server.stop()  # again: nothing happens
    assert ("off", "on") == found
    assert embedded.join(state) is None


def test_data_of_another_major_version_is_left_alone(state):
    """78, with what to do: never an empty server beside the data of a year."""
    (state / "pg13").mkdir()
    (state / "pg13" / "PG_VERSION").write_text("13\n")
    with pytest.raises(ConfigError) as caught:
        embedded.start(state)
    assert "PostgreSQL 13" in str(caught.value)
    assert "RECONCILER_PG_BINDIR" in str(caught.value.hint)
    assert ["lock", "pg13"] == sorted(path.name for path in state.iterdir())


def test_a_start_that_fails_says_why_and_lets_go(state):
    """The server's own words, and the next start is not refused."""
    embedded.start(state, fast=True).stop()
    data = next(state.glob("pg[0-9]*"))
    (data / "postgresql.conf").write_text("no_such_setting = 1\n")
    for _ in range(2):
        with pytest.raises(DatabaseAwayError, match="no_such_setting"):
            embedded.start(state)


def test_a_state_directory_that_cannot_be_made(state):
    """78, naming the place and the setting."""
    (state / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        embedded.start(state / "file" / "under")
    assert str(state / "file" / "under") in str(caught.value)


def test_a_place_in_tmp_that_somebody_else_took(state):
    """The socket of a long path goes to /tmp, where anybody may have made that directory first."""
    deep = state / ("d" * 120)
    embedded.start(deep, fast=True).stop()
    taken = next(
        path
        for path in Path("/tmp").glob("reconciler-*")  # noqa: S108
        if path.lstat().st_uid == os.geteuid() and not list(path.iterdir()) and newest(path)
    )
    taken.chmod(0o777)
    with pytest.raises(ConfigError, match="somebody else's"):
        embedded.start(deep)
    taken.rmdir()


def newest(path: Path) -> bool:
    return time.time() - path.stat().st_mtime < 5


@pytest.mark.parametrize(
    ("configured", "environ", "expected"),
    [
        ("/srv/r", {"STATE_DIRECTORY": "/var/lib/x"}, "/srv/r"),
        (None, {"STATE_DIRECTORY": "/var/lib/x:/var/lib/y", "XDG_STATE_HOME": "/s"}, "/var/lib/x"),
        (None, {"XDG_STATE_HOME": "/s"}, ROOTS or "/s/reconciler"),
        (None, {"XDG_STATE_HOME": "relative"}, ROOTS or f"{Path.home()}/.local/state/reconciler"),
        (None, {}, ROOTS or f"{Path.home()}/.local/state/reconciler"),
    ],
)
def test_where_the_state_lives(configured, environ, expected):
    """The configuration, else systemd, else root's place, else the user's."""
    settings = Settings(server=ServerSettings(state_directory=configured))
    assert Path(expected) == embedded.state_directory(settings, environ)


def test_other_programs_by_name(state):
    """RECONCILER_PG_BINDIR names them; a directory without them is a mistake in the setting."""
    shipped = binaries_directory({})
    assert shipped == binaries_directory({"RECONCILER_PG_BINDIR": str(shipped)})
    with pytest.raises(ConfigError, match="RECONCILER_PG_BINDIR"):
        binaries_directory({"RECONCILER_PG_BINDIR": str(state)})


@pytest.mark.parametrize("machine", USERS_HERE[1:2], indirect=True)
def test_root_with_and_without_namespaces_on_the_same_data(machine):
    """A kernel setting changed: the files change hands, and are the same files."""
    for round_number in (1, 2, 3):
        machine.who = "root without namespaces" if round_number == 2 else "root"
        daemon = machine.daemon()
        remember(daemon)
        assert round_number == remembered(daemon)
        assert 0 == daemon.stop()
