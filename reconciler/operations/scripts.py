"""Running a person's SQL script on the configured database."""

from datetime import timedelta
from typing import Any

import psycopg
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.errors import ReconcilerError
from reconciler.transactions import server_connection

WITHIN = timedelta(days=1)  #: a person's script, and a person watches it


async def run_script(engine: AsyncEngine, script: str) -> list[list[dict[str, Any]]]:
    """
    Run *script* in one transaction, all or nothing; the rows of each statement that has any.

    Names resolve as they do for `apply` statements: by `[database] search_path`. It waits for a
    lock no longer than we ever do; a script that wants to says so itself.
    Raises ReconcilerError with the server's own words and the position.
    """
    async with engine.begin() as connection:
        server_connection(connection).bound = WITHIN
        if path := engine.sync_engine.get_execution_options().get("user_search_path"):
            await connection.execute(select(func.set_config("search_path", path, True)))
        raw = await connection.get_raw_connection()
        driver = raw.driver_connection
        assert isinstance(driver, psycopg.AsyncConnection)
        async with driver.cursor() as cursor:
            try:
                await cursor.execute(script.encode())
            except psycopg.Error as error:
                place = error.diag.statement_position
                line = script[: int(place)].count("\n") + 1 if place else None
                where = f" (line {line})" if line else ""
                raise ReconcilerError(
                    f"{error.diag.message_primary or error}{where}",
                    hint="nothing of the script was kept",
                ) from None
            results = []
            while True:
                if cursor.description is not None:
                    names = [column.name for column in cursor.description]
                    results.append(
                        [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]
                    )
                if not cursor.nextset():
                    return results
