"""A primary and a standby on loopback, from the system's own PostgreSQL."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.world import eventually

USER = "postgres"
NOTICED_AFTER = 1.5  #: seconds
SYNCHRONOUS = {"synchronous_commit": "remote_apply", "synchronous_standby_names": "'FIRST 1 (*)'"}
ASYNCHRONOUS = {"synchronous_commit": "on", "synchronous_standby_names": "''"}
SETTINGS = """\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 60
shared_buffers = '32MB'
wal_log_hints = on
wal_keep_size = '128MB'
hot_standby = on
"""


def binaries() -> Path | None:
    """Where the programs of the system's newest PostgreSQL are; None where it has none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_basebackup"))
    return found[-1].parent if found else None


@dataclass(kw_only=True)
class Node:
    """One server: its programs, its data, its port."""

    programs: Path
    data: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    async def start(self) -> None:
        log = self.data.with_suffix(".log")
        await run(self.programs / "pg_ctl", "-s", "-w", "-D", self.data, "-l", log, "start")

    async def stop(self, mode: str = "fast") -> None:
        await run(self.programs / "pg_ctl", "-s", "-w", "-D", self.data, "-m", mode, "stop")

    def configure(self, **settings: str) -> None:
        """Say *settings*, over what was said before; the server reads them when it starts."""
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    async def promote(self) -> None:
        """Make a standby a primary; returns when it takes writes."""
        self.configure(synchronous_standby_names="''")  # there is no standby any more
        await self.asked("select pg_reload_conf()")
        await run(self.programs / "pg_ctl", "-s", "-w", "-D", self.data, "promote")

    async def asked(self, statement: str) -> list[tuple]:
        async with await psycopg.AsyncConnection.connect(
            self.url, autocommit=True, connect_timeout=5
        ) as connection:
            return await (await connection.execute(statement)).fetchall()  # type: ignore[arg-type]

    @property
    def postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def kill(self) -> None:
        """SIGKILL for the postmaster and every process of it, as a power cut would."""
        postmaster = self.postmaster
        family = [postmaster, *children(postmaster)]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def freeze_sending(self) -> None:
        """
        Stop the processes that send WAL to standbys.

        Not the one that receives it: what lies in its socket's buffer would still arrive.
        """
        for pid in children(self.postmaster):
            if b"walsender" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGSTOP)


@dataclass(kw_only=True)
class Cluster:
    """A primary, and a standby that follows it."""

    primary: Node
    standby: Node

    @property
    def url(self) -> str:
        """Both hosts: whoever takes writes is meant."""
        ports = f"{self.primary.port},{self.standby.port}"
        hosts = "127.0.0.1,127.0.0.1"
        wanted = "target_session_attrs=read-write&connect_timeout=2"
        return f"postgresql://{USER}@/postgres?host={hosts}&port={ports}&{wanted}"

    async def fail_over(self) -> None:
        """The primary is killed, and the standby promoted when somebody has noticed."""
        self.primary.kill()
        await asyncio.sleep(NOTICED_AFTER)
        await self.standby.promote()

    async def switch_over(self) -> None:
        """
        As planned: the primary is stopped, which sends the standby all that there is, the standby
        promoted, and the primary follows it.
        """
        await self.primary.stop()
        await self.standby.promote()
        (self.primary.data / "standby.signal").touch()
        shutil.chown(self.primary.data / "standby.signal", user=owner())
        self.primary.configure(primary_conninfo=following(self.standby))
        await self.primary.start()
        self.primary, self.standby = self.standby, self.primary

    async def streams(self) -> None:
        """Wait until the standby has all that the primary has written."""
        await eventually(
            lambda: self.primary.asked(
                "select 1 from pg_stat_replication"
                " where state = 'streaming' and replay_lsn >= pg_current_wal_lsn()"
            )
        )


@asynccontextmanager
async def a_cluster(*, synchronous: bool) -> AsyncIterator[Cluster]:
    """A primary and its standby, for as long as the block runs."""
    programs = binaries()
    assert programs is not None, "apt install postgresql"
    directory = directory_of_the_owner()
    nodes = [
        Node(programs=programs, data=directory / name, port=free_port()) for name in ("a", "b")
    ]
    cluster = Cluster(primary=nodes[0], standby=nodes[1])
    try:
        await _initialised(cluster, SYNCHRONOUS if synchronous else ASYNCHRONOUS)
        yield cluster
    finally:
        for node in nodes:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                node.kill()
        shutil.rmtree(directory, ignore_errors=True)


async def _initialised(cluster: Cluster, how: dict[str, str]) -> None:
    primary, standby = cluster.primary, cluster.standby
    await run(
        primary.programs / "initdb", "-D", primary.data, "-U", USER,
        "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync",
    )  # fmt: skip
    with (primary.data / "postgresql.conf").open("a") as file:
        file.write(SETTINGS)
    primary.configure(port=str(primary.port))
    await primary.start()
    await run(
        standby.programs / "pg_basebackup", "-D", standby.data, "-X", "stream",
        "--checkpoint=fast", "--no-sync", "-d", primary.url,
    )  # fmt: skip
    (standby.data / "standby.signal").touch()
    shutil.chown(standby.data / "standby.signal", user=owner())
    standby.configure(port=str(standby.port), primary_conninfo=following(primary))
    await standby.start()
    await cluster.streams()
    primary.configure(**how)
    standby.configure(**how)  # for when it will be the primary, with a standby of its own
    await primary.asked("select pg_reload_conf()")
    await standby.asked("select pg_reload_conf()")


def directory_of_the_owner() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="failover-"))
    shutil.chown(directory, user=owner())
    directory.chmod(0o755)
    return directory


def following(node: Node) -> str:
    return f"'host=127.0.0.1 port={node.port} user={USER} application_name=follower'"


def owner() -> str | int:
    """Whose the servers are: PostgreSQL refuses to run as root."""
    return USER if os.geteuid() == 0 else os.geteuid()


async def run(program: Path, *words: object) -> None:
    """Run one of PostgreSQL's programs, as the user who owns the data."""
    before = ("runuser", "-u", USER, "--") if os.geteuid() == 0 else ()
    ran = await asyncio.create_subprocess_exec(
        *before,
        str(program),
        *map(str, words),
        stdout=subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
    )
    _, said = await ran.communicate()
    assert 0 == ran.returncode, f"{program.name}: {said.decode()}"


def children(pid: int) -> list[int]:
    """The processes that *pid* has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(status.parent.name))
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
