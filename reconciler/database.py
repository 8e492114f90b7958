"""The database: the engine, its limits, and what it must promise us."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import structlog
from sqlalchemy import MetaData, Text, bindparam, event, func, select, text
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from outbox.compiled import Compiled
from reconciler.errors import ConfigError, DatabaseAwayError
from reconciler.server_connection import (
    ANSWERED_WITHIN,
    ServerConnection,
    conninfo_for,
)
from reconciler.server_slots import ServerSlots
from reconciler.timelines import Timelines
from reconciler.transactions import transact

if TYPE_CHECKING:
    from reconciler.settings.models import Settings
    from reconciler.settings.secrets import Secrets

log = structlog.get_logger()

metadata = MetaData(schema="reconciler")
"""Our tables; the schema is a token that every engine translates to the configured one."""

POOL_WAIT: Final = timedelta(seconds=5)
CONNECTION_AGE: Final = timedelta(minutes=30)


async def connect(
    settings: "Settings", secrets: "Secrets", *, url: str | None = None
) -> AsyncEngine:
    """
    Make the engine that *settings* describe; *url* is that of the private PostgreSQL, if it runs.

    Nothing is connected yet: the first transaction does that.
    """
    target = url or settings.database.url
    if target is None:
        raise ConfigError("database.url is absent and no private PostgreSQL runs")
    reference = settings.database.password
    password = secrets.resolve(reference) if reference and url is None else None
    return engine_for(
        target,
        schema=settings.database.schema_,
        pool_size=settings.database.pool_size,
        search_path=settings.database.search_path,
        password=password,
    )


def engine_for(
    url: str,
    *,
    schema: str = "reconciler",
    pool_size: int = 10,
    search_path: str | None = None,
    password: str | None = None,
) -> AsyncEngine:
    """
    An engine for the PostgreSQL at *url*, whose tables of ours live in *schema*.

    Works through PgBouncer in transaction mode: no startup options, and nothing prepared there.
    JSON comes back with int and Decimal, numeric as Decimal, never as float.
    """
    conninfo = conninfo_for(url, password=password)

    slots = ServerSlots(Timelines(conninfo).open, size=pool_size, wait=POOL_WAIT)
    engine = create_async_engine(
        "postgresql+psycopg://",
        async_creator=slots.open,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_WAIT.total_seconds(),
        pool_recycle=int(CONNECTION_AGE.total_seconds()),
        pool_use_lifo=True,
        hide_parameters=True,
        execution_options={
            "schema_translate_map": {"reconciler": schema, "outbox": schema},
            "user_search_path": search_path,
            "server_slots": slots,
        },
    )

    def checked_out(adapted: Any, _record: object, _pooled: object) -> None:
        connection: ServerConnection = adapted.driver_connection
        connection.bound = ANSWERED_WITHIN
        if connection.closed or not slots.may_be_used(connection):
            raise DisconnectionError("closed, or opened before the server fell silent")

    event.listen(engine.sync_engine, "checkout", checked_out)
    event.listen(engine.sync_engine, "engine_disposed", lambda _: slots.close())
    return engine


def schema_of(engine: AsyncEngine) -> str:
    """The schema that *engine* translates our token to."""
    translations = engine.sync_engine.get_execution_options()["schema_translate_map"]
    return str(translations["reconciler"])


async def prepare_transaction(
    connection: AsyncConnection,
    *,
    lock_timeout: timedelta | None = None,
    idle: timedelta | None = None,
    statement_timeout: timedelta | None = None,
    search_path: str | None = None,
) -> None:
    """
    Set the limits of this transaction, and the search path of the user's statements.

    Once per transaction and for it alone: PgBouncer keeps no session for us. What is not said
    stays as every transaction begins (`server_connection.LIMITS`); *search_path* defaults to the
    engine's, which is the configured one.
    """
    assert connection.sync_connection is not None
    configured = connection.sync_connection.get_execution_options().get("user_search_path")
    path = search_path or configured
    durations = {
        "lock_timeout": lock_timeout,
        "idle_in_transaction_session_timeout": idle,
        "statement_timeout": statement_timeout,
    }
    limits = {name: milliseconds(one) for name, one in durations.items() if one is not None}
    if path:
        limits["search_path"] = path
    if limits:
        await _settings(*limits).count(connection, **limits)


@cache
def _settings(*names: str) -> Compiled:
    """The statement that sets what *names* are for this transaction."""
    values = (func.set_config(name, bindparam(name, type_=Text), True) for name in names)
    return Compiled(select(*values))


def milliseconds(duration: timedelta) -> str:
    """*duration* as PostgreSQL writes it; never 0, which would mean no limit."""
    return f"{max(1, duration // timedelta(milliseconds=1))}ms"


async def check_durable(engine: AsyncEngine, *, warn: bool = True) -> None:
    """
    See that a commit of ours is on disk, and on every synchronous standby, when it returns.

    Raises DatabaseAwayError on a standby or without a server, ConfigError where
    `synchronous_commit` is weaker than `on`. `fsync = off` is only warned of, where *warn*.
    """

    async def look(connection: AsyncConnection) -> tuple[bool, str, str]:
        row = await connection.execute(
            select(
                func.pg_is_in_recovery(),
                func.current_setting("synchronous_commit"),
                func.current_setting("fsync"),
            )
        )
        standby, commit, fsync = row.one()
        return standby, commit, fsync

    standby, commit, fsync = await transact(engine, look)
    if standby:
        raise DatabaseAwayError("this server is a standby: it takes no writes")
    if commit not in {"on", "remote_apply"}:
        raise ConfigError(
            f"synchronous_commit is {commit}: an acknowledged event could be lost in a crash",
            hint="alter role or database: set synchronous_commit = on",
        )
    if fsync != "on" and warn:
        log.warning("database.fsync_off", consequence="a power cut loses acknowledged events")


async def check_collation(engine: AsyncEngine) -> None:
    """
    Warn where text was indexed by another version of a locale's order of letters.

    Our own keys are COLLATE "C" and do not care; the user's text indexes may have become wrong:
    a unique one lets the same word in twice. The database's own locale can be told by PostgreSQL
    15 and later, collations that an index names by every version.
    """

    async def look(connection: AsyncConnection) -> list[tuple[str, str | None, str | None]]:
        server = await connection.run_sync(lambda sync: sync.dialect.server_version_info or (0,))
        asked = [_INDEXED] if server < (15,) else [_OWN_LOCALE, _INDEXED]
        return [
            (row.name, row.made, row.actual)
            for statement in asked
            for row in await connection.execute(text(statement))
        ]

    for name, made, actual in await transact(engine, look):
        log.warning(
            "database.collation_changed",
            collation=name,
            made=made,
            actual=actual,
            consequence="text indexes of your own tables may be wrong: reindex, then"
            " alter database or collation ... refresh version",
        )


_OWN_LOCALE: Final = (
    "select 'of the database' as name, datcollversion as made,"
    " pg_database_collation_actual_version(oid) as actual from pg_database"
    " where datname = current_database()"
    " and datcollversion is distinct from pg_database_collation_actual_version(oid)"
)
_INDEXED: Final = (
    "select distinct c.collname as name, c.collversion as made,"
    " pg_collation_actual_version(c.oid) as actual"
    " from pg_index i cross join unnest(i.indcollation::oid[]) as used (oid)"
    " join pg_collation c on c.oid = used.oid"
    " where c.collprovider <> 'd' and c.collversion is distinct from"
    " pg_collation_actual_version(c.oid)"
)


async def clock_skew(
    engine: AsyncEngine, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> timedelta:
    """How far this host's clock is ahead of the database's; half the way there is taken off."""

    async def look(connection: AsyncConnection) -> timedelta:
        asked = clock()
        theirs = await now(connection)
        return asked + (clock() - asked) / 2 - theirs

    return await transact(engine, look)


async def now(connection: AsyncConnection) -> datetime:
    """The database's clock at this moment, not that of the transaction's start."""
    moment = await connection.scalar(select(func.clock_timestamp()))
    assert isinstance(moment, datetime)
    return moment.astimezone(UTC)
