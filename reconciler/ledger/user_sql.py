"""The user's own statements: run with exact values, and checked before the first event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler import exact_json
from reconciler.database import prepare_transaction
from reconciler.errors import Problem
from reconciler.expressions import Expression
from reconciler.ledger.gates import Gate
from reconciler.ledger.sql_text import Statement
from reconciler.transactions import is_transient, told

if TYPE_CHECKING:  # the rules are made of what stands here
    from reconciler.ledger.rules import Rules


async def verify(engine: AsyncEngine, rules: Rules) -> list[Problem]:
    """
    Have PostgreSQL plan every statement, on the search path that it will run on; run none.

    What it refuses (a misspelt table or column, a type that cannot be) comes back as a Problem.
    Raises what the connection raises when the database is away.
    """
    problems: list[Problem] = []
    steps = [step for sender in rules.senders.values() for step in sender.applies]
    steps += rules.delivered.values()
    async with engine.connect() as connection, connection.begin() as transaction:
        await prepare_transaction(connection, search_path=rules.search_path)
        for number, step in enumerate(steps):
            try:
                async with connection.begin_nested():
                    await prepare(connection, f"reconciler_check_{number}", step.statement)
            except DBAPIError as error:
                if is_transient(error):
                    raise
                problems.append(Problem(key=f"{step.where}.sql", message=refusal_of(error, step)))
        await transaction.rollback()
    return problems


async def prepare(connection: AsyncConnection, name: str, statement: Statement) -> None:
    """Plan *statement* and forget it: a prepared statement outlives its transaction."""
    planned = statement.numbered().replace("%", "%%")
    await connection.exec_driver_sql(f"PREPARE {name} AS {planned}")
    await connection.exec_driver_sql(f"DEALLOCATE {name}")


def refusal_of(error: DBAPIError, step: ApplyStep) -> str:
    """What PostgreSQL says, with our `:names` in the place of its numbers."""
    message = told(error)
    for number in range(len(step.statement.names), 0, -1):
        message = message.replace(f"${number}", f":{step.statement.names[number - 1]}")
    if isinstance(error.orig, psycopg.errors.IndeterminateDatatype):
        message += "; say its type, like :name::text"
    return message


def as_sql(value: exact_json.Json) -> str | None:
    """
    Write *value* as PostgreSQL reads it, whatever type it finds the place to have.

    All goes as text of unknown type: 12.5 for an integer column is then an error instead of 12,
    and objects and lists are JSON.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal):
        return exact_json.plain(value)
    return exact_json.dumps(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyStep:
    """One `[[senders.X.apply]]`, ready to run."""

    where: str  #: `senders.shop.apply[0]`
    gate: Gate
    statement: Statement
    params: Mapping[str, Expression]
    expect_rows: int | None = None

    def values(self, names: Mapping[str, Any]) -> dict[str, str | None]:
        """What the parameters are for one cause; ExpressionError, NotJsonError."""
        return {name: as_sql(value.value(names)) for name, value in self.params.items()}

    async def run(self, connection: AsyncConnection, values: Mapping[str, str | None]) -> int:
        """Run the statement and return how many rows it touched, or found."""
        # A place for each use: PostgreSQL then finds the type of each by itself, and one name
        # may stand for a text here and for a number there.
        places = tuple(values[name] for name in self.statement.names)
        result = await connection.exec_driver_sql(self.statement.for_driver(), places)
        return result.rowcount
