"""What the pretend provider keeps: every arrival, every effect, and the keys that it knows."""

import sqlite3
from pathlib import Path
from typing import Any

SCHEMA = """
pragma journal_mode = wal;
pragma synchronous = off;  -- it survives the death of the process, and no power cut is played here
create table if not exists arrivals (
    number integer primary key autoincrement, destination text not null, reference text not null,
    key text not null, caller text not null, digest text not null, place text not null,
    at real not null, ended real, behaviour text, status integer, overlaps integer default 0
);
create index if not exists arrivals_key on arrivals (destination, key);
create table if not exists effects (
    number integer primary key autoincrement, destination text not null, reference text not null,
    key text not null, arrival integer not null, at real not null
);
create table if not exists keys (
    destination text not null, key text not null, digest text not null, at real not null,
    status integer, stored integer, worker text not null, primary key (destination, key)
);
create table if not exists said (name text primary key, value text not null);
"""


def opened(file: Path) -> sqlite3.Connection:
    """The store in *file*, made if it is not there; every statement is a transaction."""
    connection = sqlite3.connect(file, isolation_level=None, timeout=30)
    connection.row_factory = sqlite3.Row
    connection.executescript(SCHEMA)
    return connection


def rows(file: Path, statement: str, *values: Any) -> list[sqlite3.Row]:
    """What *statement* finds, in a store that another process may be writing."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)
    try:
        connection.row_factory = sqlite3.Row
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()
