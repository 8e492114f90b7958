"""What a killed server left behind: told from what still lives, and cleared away."""

import os
import signal
import subprocess
import time
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
    if not Path("/proc/self").exists():  # not Linux: what it was started as must do
        command = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
        return "postgres" in said and str(data) in said
    try:
        # A replaced program (an upgrade of the wheel) reads "postgres (deleted)".
        program = (process / "exe").readlink().name.removesuffix(" (deleted)")
        return program == "postgres" and (process / "cwd").samefile(data)
    except OSError:
        return False


def stop_orphan(data: Path) -> None:
    """
    Stop a server on *data* that outlived its owner. Raises BusyError when it does not stop.

    Nobody else is signalled: what a killed server's children still do ends by itself.
    """
    orphan = postmaster_pid(data)
    if orphan is None:
        return
    log.warning("embedded.orphan_stopped", pid=orphan)
    for how, seconds in (
        (signal.SIGINT, PATIENCE),
        (signal.SIGQUIT, PATIENCE / 3),
        (signal.SIGKILL, PATIENCE / 3),
    ):
        if has_ended(orphan, data, how=how, seconds=seconds):
            return
    raise BusyError(f"a PostgreSQL on {data} does not stop: pid {orphan}")


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
