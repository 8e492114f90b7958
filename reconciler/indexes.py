"""Indexes that a migration makes without stopping the world, and the look whether all are there."""

import asyncio
import contextlib
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg
import structlog
from sqlalchemy import Row, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler import faults
from reconciler.data import migrations_directory
from reconciler.database import schema_of
from reconciler.errors import BusyError, ConfigError
from reconciler.transactions import (
    LOCK_NOT_AVAILABLE,
    server_connection,
    sqlstate_of,
    taking_up_to,
    told,
    transact,
)

log = structlog.get_logger()

PATIENCE: Final = timedelta(seconds=10)
"""How long the making of an index waits for others' transactions; nobody waits behind it."""

BUILT_WITHIN: Final = timedelta(hours=12)
"""How long the building of one may take where nobody is in the way."""

CANCELLED_WITHIN: Final = 2.0  #: seconds

LOOK_EVERY: Final = timedelta(milliseconds=200)

ROUNDS: Final = 8
"""How often a migrator looks again after it met another one."""

MET: Final = frozenset({"40P01", LOCK_NOT_AVAILABLE, "42704", "42P07", "57014"})
"""Two migrators met: deadlock, lock, the index is gone already, is there already, cancelled."""

MADE: Final = re.compile(
    r"create (?P<unique>unique )?index (?:concurrently )?(?P<name>\w+)\s+"
    r"on (?P<table>\w+) (?P<rest>[^;\"]+)"
)
CONSTRAINED: Final = re.compile(r"constraint (?P<name>\w+) (?:primary key|unique)")
LEFT_OVER: Final = re.compile(r"\w+_cc(?:new|old)\d*")  # of REINDEX CONCURRENTLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An index that some migration made."""

    name: str
    unique: bool
    table: str | None = None
    rest: str | None = None  #: columns and predicate; None: it belongs to a constraint


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An index that cannot be relied on."""

    name: str
    unique: bool
    what: str  #: `missing`, or `invalid`: nothing is looked up in it, nothing refused by it
    table: str | None
    building: bool  #: somebody is making it right now


async def check(engine: AsyncEngine) -> None:
    """
    See that every index is there and valid.

    Raises ConfigError for a unique one: P1 rests on them. The others are only warned of.
    """
    faults_ = await transact(engine, look)
    for fault in faults_:
        if not fault.unique:
            log.warning(
                "database.index_unusable",
                index=fault.name,
                state=fault.what,
                consequence="queries are slow: run `reconciler migrate`",
            )
    broken = [f"{fault.name} is {fault.what}" for fault in faults_ if fault.unique]
    if broken:
        raise ConfigError(
            f"a unique index that keeps events from happening twice cannot be relied on:"
            f" {', '.join(broken)}",
            hint="run `reconciler migrate`, which rebuilds it, then start the daemon again",
        )


async def mend(engine: AsyncEngine) -> None:
    """
    Make every index that is missing, and rebuild what a migration that broke off left invalid.

    Concurrently: nobody waits for it. Several migrators may do so at once, and each statement may
    be the last of its process: the next run goes on.

    Raises BusyError where another transaction stays in the way, ConfigError where a unique index
    cannot be made because of what is in the table.
    """
    waited = 0.0
    for _ in range(ROUNDS):
        found = await transact(engine, look)
        while any(fault.building for fault in found) and waited < PATIENCE.total_seconds():
            await asyncio.sleep(LOOK_EVERY.total_seconds())
            waited += LOOK_EVERY.total_seconds()
            found = await transact(engine, look)
        if not found:
            return
        try:
            for fault in found:
                await mend_one(engine, fault)
                faults.point("between-indexes")
        except DBAPIError as error:
            if sqlstate_of(error) == "23505":
                raise ConfigError(f"a unique index cannot be made: {told(error)}") from error
            if sqlstate_of(error) not in MET:
                raise
    found = await transact(engine, look)
    if found:
        names = ", ".join(f"{fault.name} ({fault.what})" for fault in found)
        raise BusyError(f"other transactions keep these indexes from being made: {names}")


async def look(connection: AsyncConnection) -> list[Fault]:
    """What is wrong with the indexes of our schema: nothing, usually."""
    schema = schema_of(connection.engine)
    rows = {row.name: row for row in await connection.execute(_FOUND, {"schema": schema})}
    if not rows:
        return []  # never migrated: somebody else says so
    known = declared()
    found = [fault_of(index, rows.get(index.name)) for index in known]
    left_over = [
        Fault(name=name, unique=False, what="invalid", table=row.table, building=row.building)
        for name, row in rows.items()
        if LEFT_OVER.fullmatch(name) and not row.valid
    ]
    return [fault for fault in (*found, *left_over) if fault is not None]


def fault_of(index: Index, row: Row[Any] | None) -> Fault | None:
    if row is not None and row.valid:
        return None
    return Fault(
        name=index.name,
        unique=index.unique,
        what="missing" if row is None else "invalid",
        table=index.table if row is None else row.table,
        building=row is not None and row.building,
    )


def declared() -> list[Index]:
    """Every index that the migrations of this version make, by their text."""
    files = sorted(migrations_directory().joinpath("versions").glob("[0-9]*_*.py"))
    written = "\n".join(path.read_text() for path in files)
    made = [
        Index(
            name=found["name"],
            unique=found["unique"] is not None,
            table=found["table"],
            rest=" ".join(found["rest"].split()),
        )
        for found in MADE.finditer(written)
    ]
    return made + [
        Index(name=found["name"], unique=True) for found in CONSTRAINED.finditer(written)
    ]


async def mend_one(engine: AsyncEngine, fault: Fault) -> None:
    """Make or rebuild one index. Raises BusyError where it has to wait for too long."""
    schema = schema_of(engine)
    if LEFT_OVER.fullmatch(fault.name):
        statement = f'drop index concurrently if exists "{schema}".{fault.name}'
    elif fault.what == "invalid":
        statement = f'reindex index concurrently "{schema}".{fault.name}'
    else:
        statement = creating(fault.name, schema)
    log.info("database.index_mending", index=fault.name, state=fault.what)
    async with engine.connect() as plain:
        connection = await plain.execution_options(isolation_level="AUTOCOMMIT")
        making = asyncio.create_task(run(connection, statement))
        try:
            blocker = await patiently(engine, making, table=fault.table)
            if blocker is not None:
                await cancelled(making, connection)
        except BaseException:
            await cancelled(making, connection)
            raise
    if blocker is not None:
        raise BusyError(
            f"the index {fault.name} waits for {blocker}",
            hint="the tables are ready and nobody had to wait: run `reconciler migrate` again"
            " when that has ended",
        )


async def run(connection: AsyncConnection, statement: str) -> None:
    with taking_up_to(connection, BUILT_WITHIN):
        await connection.exec_driver_sql(statement)


def creating(name: str, schema: str) -> str:
    """The statement that makes the index *name*, whoever else does so too."""
    index = next(index for index in declared() if index.name == name)
    if index.rest is None:
        raise ConfigError(
            f"the constraint {name} is missing: events could happen twice",
            hint="somebody dropped it; make it again as migrations/versions say",
        )
    unique = "unique " if index.unique else ""
    return (
        f"create {unique}index concurrently if not exists {name}"
        f' on "{schema}".{index.table} {index.rest}'
    )


async def patiently(
    engine: AsyncEngine, making: asyncio.Task[None], *, table: str | None
) -> str | None:
    """
    Wait until *making* has ended, or only waits for others for too long. Says for whom.

    `lock_timeout` would be a setting of the session, which PgBouncer does not keep for us; and
    building an index of a large table may take as long as it takes.
    """
    loop = asyncio.get_running_loop()
    since = loop.time()
    while True:
        done, _ = await asyncio.wait({making}, timeout=LOOK_EVERY.total_seconds())
        if done:
            making.result()
            return None
        async with engine.connect() as watching:
            row = (
                await watching.execute(_PHASE, {"schema": schema_of(engine), "table": table or ""})
            ).one_or_none()
        if row is not None and not row.phase.startswith("waiting"):
            since = loop.time()
        elif loop.time() - since > PATIENCE.total_seconds():
            return (
                f"the transaction of server process {row.locker}"
                if row is not None and row.locker
                else "another transaction"
            )


async def cancelled(making: asyncio.Task[None], connection: AsyncConnection) -> None:
    """Stop what is being made: in the server, which would go on with it, and here."""
    with contextlib.suppress(psycopg.Error):
        await server_connection(connection).cancel_safe(timeout=CANCELLED_WITHIN)
    await asyncio.wait({making}, timeout=CANCELLED_WITHIN)
    making.cancel()
    with contextlib.suppress(asyncio.CancelledError, DBAPIError):
        await making


_FOUND = text(
    "select c.relname as name, t.relname as table, i.indisvalid and i.indisready as valid,"
    "  exists (select from pg_stat_progress_create_index p where p.index_relid = c.oid)"
    "  as building"
    " from pg_index i join pg_class c on c.oid = i.indexrelid"
    " join pg_class t on t.oid = i.indrelid"
    " join pg_namespace n on n.oid = c.relnamespace"
    " where n.nspname = :schema"
)
_PHASE = text(
    "select p.phase, p.current_locker_pid as locker from pg_stat_progress_create_index p"
    " join pg_class t on t.oid = p.relid join pg_namespace n on n.oid = t.relnamespace"
    " where n.nspname = :schema and t.relname = :table limit 1"
)
