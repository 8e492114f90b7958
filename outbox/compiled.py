"""Statements that are compiled once: SQLAlchemy writes them, the driver's connection runs them."""

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

NOT_PREPARED = (
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
)


_PLACEHOLDER = re.compile(r"%(?:%|\((?P<name>\w+)\)s)")  # or a percent sign, which is written twice


class Written(str):
    """A parameter that is JSON already: what two statements are given is written once."""

    __slots__ = ()


def written(value: Sequence[Mapping[str, str | int | float | bool | None]]) -> Written:
    """*value* as a parameter for several statements."""
    return Written(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


class Compiled:
    """
    A statement that costs a third of what `connection.execute` makes of it.

    For what runs with every commit. Its text, the transaction, the schema, the hooks before a
    statement and the class of an error are SQLAlchemy's. Rows are the driver's: named tuples of
    what psycopg reads, without SQLAlchemy's types. A list is no parameter of it: lists travel as
    one JSON parameter. Values that it brings itself are part of its text.

    One that is *prepared* is planned once a connection, where the connection allows that (its
    `prepare_threshold` is not None): for what costs more to plan than to run, and whose plan is
    right for an empty table and for a large one.
    """

    def __init__(self, statement: ClauseElement, *, prepared: bool = False) -> None:
        self._statement = statement
        self._prepared = prepared
        self._forms: WeakKeyDictionary[Dialect, dict[object, _Form]] = WeakKeyDictionary()

    async def rows(self, connection: AsyncConnection, **parameters: Any) -> list[Any]:
        """Run it; return its rows, whose columns are attributes. Raises DBAPIError."""
        return await (await self._run(connection, parameters)).fetchall()

    async def count(self, connection: AsyncConnection, **parameters: Any) -> int:
        """Run it; return how many rows it touched. Raises DBAPIError."""
        return (await self._run(connection, parameters)).rowcount

    async def _run(
        self, connection: AsyncConnection, parameters: Mapping[str, Any]
    ) -> psycopg.AsyncCursor[Any]:
        sync = connection.sync_connection
        assert sync is not None
        form = self._form_for(sync)
        values = form.values(parameters)
        for hook in sync.dispatch.before_cursor_execute:
            hook(sync, None, form.text, values, None, False)
        if not sync.in_transaction():
            sync.begin()  # as `execute` does: so that `commit` and `rollback` know of it
        driver = sync.connection.driver_connection
        assert isinstance(driver, psycopg.AsyncConnection)
        cursor = driver.cursor(row_factory=namedtuple_row)
        try:
            return await cursor.execute(form.text, values, prepare=self._prepared)
        except psycopg.Error as error:
            if isinstance(error, NOT_PREPARED):
                driver.prepare_threshold = None  # somebody in between hands out connections
            if driver.closed:
                # Asked over what is lost SQLAlchemy notices too, and empties its pool.
                with contextlib.suppress(DBAPIError):
                    await connection.exec_driver_sql("select 1")
            raise DBAPIError.instance(
                form.text,
                None,
                error,
                psycopg.Error,
                hide_parameters=True,
                connection_invalidated=driver.closed,
                dialect=sync.dialect,
            ) from error

    def _form_for(self, sync: Connection) -> "_Form":
        """The statement as this engine runs it; compiled when it is asked for first."""
        schemas = sync.get_execution_options().get("schema_translate_map", {})
        forms = self._forms.setdefault(sync.dialect, {})
        key = tuple(schemas.items())
        if key not in forms:
            forms[key] = _form(self._statement, sync.dialect, schemas)
        return forms[key]


def _form(statement: ClauseElement, dialect: Dialect, schemas: Mapping[str, str]) -> "_Form":
    compiled = statement.compile(
        dialect=dialect, schema_translate_map=schemas, render_schema_translate=True
    )
    assert isinstance(compiled, SQLCompiler)
    fixed: dict[str, str] = {}
    asked: list[tuple[str, Callable[[Any], Any]]] = []
    for bind, name in compiled.bind_names.items():
        if bind.required:
            write = bind.type.dialect_impl(dialect).bind_processor(dialect) or _as_it_is
            asked.append((name, write))
        else:
            fixed[name] = compiled.render_literal_value(bind.effective_value, bind.type)
    text = _PLACEHOLDER.sub(lambda found: fixed.get(found["name"], found[0]), str(compiled))
    return _Form(text=text, asked=asked)


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """A statement in one dialect and one schema."""

    text: str
    asked: Sequence[tuple[str, Callable[[Any], Any]]]  #: what callers give, and how it is written

    def values(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value if isinstance(value := parameters[name], Written) else write(value)
            for name, write in self.asked
        }
