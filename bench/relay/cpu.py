"""CPU time from proc(5): it hardly depends on what else the machine does."""

import os
from collections.abc import Sequence
from pathlib import Path

import psycopg

TICKS = os.sysconf("SC_CLK_TCK")


def of_process(pid: int) -> float:
    """Seconds that a process has used so far."""
    fields = fields_of(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS  # utime, stime


def of_server(postmaster: int | None) -> float:
    """Seconds that a PostgreSQL has used so far: its processes, and those that have ended."""
    if postmaster is None:
        return 0.0
    ticks = sum(map(int, fields_of(postmaster)[11:15]))  # with cutime, cstime
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = fields_of(int(entry.name))
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == postmaster:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def postmaster_of(url: str) -> int | None:
    """The parent of all processes of the server at *url*; None: it runs elsewhere."""
    with psycopg.connect(url) as connection:
        try:
            parent = int(fields_of(connection.info.backend_pid)[1])
            name = Path(f"/proc/{parent}/comm").read_text()
        except OSError:
            return None
    return parent if name.startswith("postg") else None


def fields_of(pid: int) -> Sequence[str]:
    """What /proc/PID/stat tells behind the name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
