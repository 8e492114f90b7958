"""Whether the server has room for us: for our connections, and for vacuum to clean behind us."""

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.server_slots import slots_of
from reconciler.transactions import transact

log = structlog.get_logger()

LOOK = text(
    """
    select current_setting('max_connections')::int
             - current_setting('superuser_reserved_connections')::int
             - coalesce(current_setting('reserved_connections', true)::int, 0)
             - (select count(*) from pg_stat_activity where backend_type = 'client backend')
             as server,
           (select case when rolconnlimit >= 0 and not rolsuper then rolconnlimit
                     - (select count(*) from pg_stat_activity where usename = current_user) end
              from pg_roles where rolname = current_user) as role,
           (select case when datconnlimit >= 0 then datconnlimit
                     - (select count(*) from pg_stat_activity where datname = current_database())
                   end
              from pg_database where datname = current_database()) as database
    """
)

CURES = {
    "server": "raise max_connections, or lower database.pool_size",
    "role": "alter role ... connection limit, or lower database.pool_size",
    "database": "alter database ... connection limit, or lower database.pool_size",
}


OLDEST = text(
    """
    select coalesce(extract(epoch from clock_timestamp() - least(
             (select min(xact_start) from pg_stat_activity where datname = current_database()),
             (select min(prepared) from pg_prepared_xacts where database = current_database())
           )), 0)
    """
)


async def oldest_transaction(connection: AsyncConnection) -> float:
    """
    Seconds that the oldest transaction in our database has been open: vacuum cleans nothing newer.

    Sessions of other roles are told only to members of pg_read_all_stats; prepared transactions
    to everybody.
    """
    return float(await connection.scalar(OLDEST) or 0)


async def check_room(engine: AsyncEngine) -> None:
    """
    Warn where the server, our role's or our database's limit cannot hold our whole pool now.

    Other replicas and everybody else count as they are at this moment. What is refused later is
    waited for like any outage: no reason not to start.
    """
    slots = slots_of(engine)

    async def look(connection: AsyncConnection) -> dict[str, int | None]:
        return dict((await connection.execute(LOOK)).mappings().one())

    free = await transact(engine, look)
    missing = slots.size - slots.taken  # those that are open are counted by the server already
    for whose, cure in CURES.items():
        left = free[whose]
        if left is not None and left < missing:
            log.warning(
                "database.room_short",
                pool_size=slots.size,
                limit_of=whose,
                still_free=max(0, left),
                consequence="connections will be refused, and deliveries answered 503",
                cure=cure,
            )
