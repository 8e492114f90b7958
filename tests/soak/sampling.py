"""What a running daemon takes: memory, descriptors, threads, rows and bytes, by the clock."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

PROC = Path("/proc")
SIZES = """
select relname, pg_total_relation_size(c.oid) as bytes
  from pg_class c join pg_namespace n on n.oid = relnamespace
 where relkind = 'r' and nspname = 'reconciler' order by relname
"""
BACKLOG = """
select count(*) filter (where state = 'pending') as pending,
       coalesce(extract(epoch from max(now() - created_at) filter (where state = 'pending')), 0)
         as oldest_seconds,
       count(*) filter (where state in ('dead', 'uncertain')) as given_up
  from reconciler.outbox
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at everything."""

    at: float  #: seconds since the load began
    memory: int  #: bytes resident in the processes of ours, without those of PostgreSQL
    descriptors: int
    threads: int
    server_memory: int  #: bytes of PostgreSQL's processes, what they share counted once
    rows: Mapping[str, int]
    sizes: Mapping[str, int]  #: bytes of each table with its indexes
    pending: int
    oldest_seconds: float  #: the age of the oldest pending entry
    given_up: int
    p50: float  #: seconds that a delivery took, since the sample before
    p99: float


def family(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        parents.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += parents.get(one, [])


def processes(daemon: int) -> dict[str, int]:
    """What the daemon's processes take, and those of its private PostgreSQL."""
    taken = {"memory": 0, "descriptors": 0, "threads": 0, "server_memory": 0}
    for pid in family(daemon):
        place = PROC / str(pid)
        try:
            if (place / "comm").read_text().startswith("postgres"):
                taken["server_memory"] += number_in(place / "smaps_rollup", "Pss") * 1024
                continue
            taken["memory"] += number_in(place / "status", "VmRSS") * 1024
            taken["threads"] += number_in(place / "status", "Threads")
            taken["descriptors"] += len(list((place / "fd").iterdir()))
        except OSError:
            continue  # a backend that ended while we looked
    return taken


def number_in(file: Path, name: str) -> int:
    """The number on the line *name* of a file under /proc; 0 where there is none."""
    for line in file.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    return 0


async def look(
    connection: psycopg.AsyncConnection[dict[str, Any]],
    *,
    daemon: int,
    at: float,
    latencies: list[float],
) -> Sample:
    """Take one sample; *latencies* are those of the deliveries since the last one."""
    rows, sizes = {}, {}
    for table in await (await connection.execute(SIZES)).fetchall():
        name = table["relname"]
        sizes[name] = table["bytes"]
        counted = await connection.execute(f"select count(*) as n from reconciler.{name}")  # noqa: S608
        rows[name] = (await counted.fetchall())[0]["n"]
    backlog = (await (await connection.execute(BACKLOG)).fetchall())[0]
    return Sample(
        at=at,
        **processes(daemon),
        rows=rows,
        sizes=sizes,
        pending=backlog["pending"],
        oldest_seconds=float(backlog["oldest_seconds"]),
        given_up=backlog["given_up"],
        p50=share_of(latencies, 0.5),
        p99=share_of(latencies, 0.99),
    )


def share_of(values: list[float], share: float) -> float:
    """The value below which that share of *values* lies; 0.0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
