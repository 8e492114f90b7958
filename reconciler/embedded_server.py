"""The private server itself: its files, its process, its options."""

import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote

import psycopg
import structlog

from reconciler import embedded_leftovers as leftovers
from reconciler.embedded_account import Account, account_for, can_reach
from reconciler.embedded_binaries import binaries_directory, major_version, reachable_binaries
from reconciler.errors import ConfigError, DatabaseAwayError

log = structlog.get_logger()

ROLE: Final = "reconciler_owner"  #: the server's one role
DATABASE: Final = "reconciler"  #: its one database
# The role is not named like our schema: "$user" in a search path would put the user's tables there.
SOCKET_NAME: Final = ".s.PGSQL.5432"
SOCKET_PATH_MAX: Final = 107  #: bytes; the kernel's limit for the path of a socket
STARTED_WITHIN: Final = timedelta(minutes=2)  #: recovery after a crash included
STOPPED_WITHIN: Final = timedelta(seconds=15)
LOOK_EVERY: Final = 0.02  #: seconds

ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}

OPTIONS: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "on",
    "log_filename": "postgresql-%a.log",  # a ring of seven days
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_truncate_on_rotation": "on",
    "log_error_verbosity": "terse",  # DETAIL repeats the values of rows
}
DURABLE: Final = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
FAST: Final = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_connections": "300",
}


@dataclass(slots=True, kw_only=True)
class Server:
    """A PostgreSQL on one data directory. Whoever makes one holds the owner's lock."""

    account: Account
    binaries: Path
    data: Path
    socket: Path
    fast: bool
    process: subprocess.Popen[bytes] | None = None
    said: IO[bytes] = field(default_factory=tempfile.TemporaryFile)  #: before its log is open

    @classmethod
    def under(cls, state: Path, *, fast: bool) -> "Server":
        """
        The server of the state directory *state*, its files made where there are none.

        Raises ConfigError where it cannot run here.
        """
        account = account_for(state)
        if account.peer_checked:
            state.chmod(0o711)
        if account.drops and not can_reach(account, state / SOCKET_NAME):
            name = pwd.getpwuid(account.uid).pw_name
            raise ConfigError(
                f"the private PostgreSQL would run as {name}, who cannot enter {state}",
                hint="set [server] state_directory to a place that everybody may pass through",
            )
        found = binaries_directory()
        major = major_version(found)
        binaries = reachable_binaries(account, found, state=state)
        data = state / f"pg{major}"
        if not (data / "PG_VERSION").exists():
            refuse_other_majors(state, major=major)
            initialise(data, account=account, binaries=binaries, major=major, fast=fast)
        account.own(data)
        return cls(
            account=account,
            binaries=binaries,
            data=data,
            socket=socket_directory(state, account=account),
            fast=fast,
        )

    @property
    def url(self) -> str:
        return url_of(self.socket)

    def start(self) -> None:
        """
        Start it and wait until it takes connections.

        Raises DatabaseAwayError with what it said when it does not start.
        """
        leftovers.stop_orphan(self.data)
        self.launch()
        deadline = time.monotonic() + STARTED_WITHIN.total_seconds()
        while not self.is_ready():
            time.sleep(LOOK_EVERY)
            late = time.monotonic() > deadline
            if late or (self.has_ended() and not self.is_waiting_for_children()):
                raise DatabaseAwayError(f"the private PostgreSQL did not start: {self.complaint()}")
            if self.has_ended():
                self.launch()
        with psycopg.connect(url_of(self.socket, database="postgres"), autocommit=True) as server:
            known = server.execute("select 1 from pg_database where datname = %s", (DATABASE,))
            if known.fetchone() is None:
                server.execute(f"create database {DATABASE}")

    def launch(self) -> None:
        """Start the process, in this thread, and do not wait for it."""
        leftovers.clear(self.data, self.socket)
        self.write_access_rules()
        directory = str(self.socket).replace('"', '""')
        options = {
            **OPTIONS,
            **(FAST if self.fast else DURABLE),
            "unix_socket_directories": f'"{directory}"',
        }
        program: list[str | Path] = [self.binaries / "postgres", "-D", self.data]
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        self.said.truncate(0)
        self.process = subprocess.Popen(  # noqa: S603
            self.account.command([*program, *settings]),
            stdin=subprocess.DEVNULL,
            stdout=self.said,
            stderr=self.said,
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,  # a Ctrl-C is for us; we stop it in our own time
        )

    def write_access_rules(self) -> None:
        """
        Say who may connect: whoever can reach the socket, whose directory is 0700.

        Where the server is `nobody`, others may be too: then root, by the kernel's word.
        """
        root = pwd.getpwuid(0).pw_name
        method = "peer map=owner" if self.account.peer_checked else "trust"
        (self.data / "pg_hba.conf").write_text(f"local all all {method}\n")
        (self.data / "pg_ident.conf").write_text(f"owner {root} {ROLE}\n")

    def is_ready(self) -> bool:
        """Whether this process (not an earlier one) has written that it takes connections."""
        lines = leftovers.postmaster_lines(self.data)
        ours = self.process is not None and lines[:1] == [str(self.process.pid)]
        return ours and lines[7:] == ["ready"]

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def is_waiting_for_children(self) -> bool:
        """Whether it refused to start because a killed server's children are still at work."""
        return "is still in use" in self.complaint()

    def complaint(self) -> str:
        """The last of what it said before it opened its log."""
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").split("\n")
        return " / ".join(line.strip() for line in lines[-6:] if line.strip()) or "it said nothing"

    def stop(self) -> None:
        """Stop it: open transactions are rolled back, committed ones are on disk."""
        for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if self.process is None or self.has_ended():
                break
            self.process.send_signal(how)
            try:
                self.process.wait(STOPPED_WITHIN.total_seconds())
            except subprocess.TimeoutExpired:
                log.warning("embedded.stop_delayed", signal=how.name)
        self.process = None
        self.said.close()


def initialise(data: Path, *, account: Account, binaries: Path, major: int, fast: bool) -> None:
    """Make the data directory: elsewhere first, so that one begun and killed is never used."""
    deadline = time.monotonic() + STOPPED_WITHIN.total_seconds()
    while begun := list(data.parent.glob("init.*")):  # a killed initdb may still be ending
        for place in begun:
            shutil.rmtree(place, ignore_errors=True)
        if time.monotonic() > deadline:
            raise ConfigError(f"{begun[0]} cannot be removed")
    place = Path(tempfile.mkdtemp(prefix=f"init.{data.name}.", dir=data.parent))
    account.own(place)
    # Not the machine's locale: its order of letters changes with the system's libraries.
    locale = ["--locale-provider=builtin", "--locale=C.UTF-8"] if major >= 17 else ["--locale=C"]
    program: list[str | Path] = [binaries / "initdb", "-D", place, "-U", ROLE, "-E", "UTF8"]
    program += [*locale, "-A", "trust", "--data-checksums", *(["--no-sync"] if fast else [])]
    made = subprocess.run(  # noqa: S603
        account.command(program), capture_output=True, env=ENVIRONMENT, cwd="/", check=False
    )
    if made.returncode != 0:
        shutil.rmtree(place, ignore_errors=True)
        last = made.stderr.decode(errors="replace").strip().splitlines()[-3:]
        raise DatabaseAwayError(f"the private PostgreSQL could not be made: {' / '.join(last)}")
    place.rename(data)
    if not fast:
        descriptor = os.open(data.parent, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def refuse_other_majors(state: Path, *, major: int) -> None:
    """Never start empty beside data that another PostgreSQL has made."""
    others = [path.name[2:] for path in state.glob("pg[0-9]*") if (path / "PG_VERSION").exists()]
    if others:
        raise ConfigError(
            f"the data under {state} is PostgreSQL {others[-1]}'s, and the programs are {major}'s",
            hint="name the older programs with RECONCILER_PG_BINDIR, or move the data with"
            " pg_dump and psql",
        )


def socket_directory(state: Path, *, account: Account) -> Path:
    """
    A 0700 directory for the socket: under *state*, or in /tmp where that path is too long.

    (Or has a comma, by which libpq would take it for two.) Raises ConfigError where somebody
    else has taken the one in /tmp.
    """
    near = state / "socket"
    if len(os.fsencode(near / SOCKET_NAME)) <= SOCKET_PATH_MAX and "," not in str(near):
        return account.own(near)
    mark = hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:12]
    far = Path(f"/tmp/reconciler-{account.uid}-{mark}")  # noqa: S108
    try:
        far.mkdir(mode=0o700)
        if account.drops:
            os.chown(far, account.uid, account.gid)
    except FileExistsError:
        status = far.lstat()
        mine = stat.S_ISDIR(status.st_mode) and status.st_uid == account.uid
        if not mine or status.st_mode & 0o077:
            raise ConfigError(
                f"{far} is somebody else's, and {near} is too long for a socket",
                hint="set [server] state_directory to a shorter path",
            ) from None
    return far


def url_of(socket: Path, *, database: str = DATABASE) -> str:
    """A libpq URL without a password: reaching the socket's directory is what lets one in."""
    return f"postgresql://{ROLE}@/{database}?host={quote(str(socket), safe='/')}"
