"""Running a person's SQL script on the configured database."""

from datetime import timedelta
from typing import Any

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.database import prepare_transaction
from reconciler.errors import ReconcilerError
from reconciler.transactions import server_connection, taking_up_to

WITHIN = timedelta(days=1)  #: a person's script, and a person watches it


async def run_script(engine: AsyncEngine, script: str) -> list[list[dict[str, Any]]]:
    """
    Run *script* in one transaction, all or nothing; the rows of each statement that has any.

    Names resolve as they do for `apply` statements: by `[database] search_path`. It waits for a
    lock no longer than we ever do; a script that wants to says so itself.
    Raises ReconcilerError with the server's own words and the position.
    """
    async with engine.connect() as connection:
        with taking_up_to(connection, WITHIN):  # its commit too: deferred triggers are part of it
            async with connection.begin():
                return await _run(connection, script)


async def _run(connection: AsyncConnection, script: str) -> list[list[dict[str, Any]]]:
    await prepare_transaction(connection)
    async with server_connection(connection).cursor() as cursor:
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
