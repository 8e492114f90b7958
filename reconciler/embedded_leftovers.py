"""What a killed server left behind: told from what still lives, and cleared away."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from reconciler.errors import BusyError

log = structlog.get_logger()

PATIENCE: Final = 15.0  #: seconds that a server may take to stop before it is told less politely


def postmaster_lines(data: Path) -> list[str]:
    """
    What the server wrote about itself: pid, data directory, start time, port, socket directory,
    address, shared memory, and `ready` once it is; [] where no server is, or none that began.
    """
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line.strip() for line in lines]


def postmaster_pid(data: Path) -> int | None:
    """
    The process id of the server that runs on *data*; None where none does.

    A process of that number proves nothing: it may be a zombie, or another program that got the
    number since. The server's program is `postgres`, and it works in its data directory.
    """
    lines = postmaster_lines(data)
    pid = int(lines[0]) if lines and lines[0].isdigit() else None
    return pid if pid is not None and is_server_of(pid, data) else None


def is_server_of(pid: int, data: Path) -> bool:
    """Whether process *pid* is a PostgreSQL process that works in *data*."""
    process = Path(f"/proc/{pid}")
    if not Path("/proc/self").exists():  # no /proc on this system: the number must do
        with suppress(OSError):
            os.kill(pid, 0)
            return True
        return False
    try:
        # A replaced program (an upgrade of the wheel) reads "postgres (deleted)".
        program = (process / "exe").readlink().name.removesuffix(" (deleted)")
        return program == "postgres" and (process / "cwd").samefile(data)
    except OSError:
        return False


def servers_of(data: Path) -> Iterator[int]:
    """Every PostgreSQL process that works in *data*, the children of a dead server included."""
    for entry in Path("/proc").glob("[0-9]*"):
        if is_server_of(int(entry.name), data):
            yield int(entry.name)


def stop_orphan(data: Path) -> None:
    """
    Stop a server on *data* that outlived its owner, and what a killed one left running.

    Raises BusyError when it does not stop.
    """
    orphan = postmaster_pid(data)
    if orphan is not None:
        log.warning("embedded.orphan_stopped", pid=orphan)
        for how, seconds in (
            (signal.SIGINT, PATIENCE),
            (signal.SIGQUIT, PATIENCE / 3),
            (signal.SIGKILL, PATIENCE / 3),
        ):
            if has_ended(orphan, data, how=how, seconds=seconds):
                break
        else:
            raise BusyError(f"a PostgreSQL on {data} does not stop: pid {orphan}")
    for child in list(servers_of(data)):
        has_ended(child, data, how=signal.SIGQUIT, seconds=PATIENCE / 3)


def has_ended(pid: int, data: Path, *, how: signal.Signals, seconds: float) -> bool:
    """Send *how* to process *pid* and wait for it to be gone from *data*."""
    with suppress(ProcessLookupError):
        os.kill(pid, how)
    deadline = time.monotonic() + seconds
    while is_server_of(pid, data):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def clear(data: Path, socket: Path) -> None:
    """
    Take away the lock files of a server that is gone. Only for who holds the owner's lock.

    PostgreSQL would do it itself, were it not fooled by a reused or a zombie's process id. Its
    other safeguard, the shared memory of processes still attached to *data*, stays.
    """
    if postmaster_pid(data) is not None:
        return
    leftovers = (
        data / "postmaster.pid",
        socket / ".s.PGSQL.5432",
        socket / ".s.PGSQL.5432.lock",
    )
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
