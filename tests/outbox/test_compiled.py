"""Statements that are compiled once: to whoever runs them they behave as SQLAlchemy's own."""

import pytest
from sqlalchemy import bindparam, event, func, literal, literal_column, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, OperationalError
from sqlalchemy.types import Integer, Text

from outbox.compiled import Compiled
from outbox.store import effect_keys, record_set
from reconciler.transactions import is_transient, sqlstate_of

pytestmark = pytest.mark.anyio

NUMBERS = record_set("given", {"n": Integer(), "said": Text()}).c
SAID = Compiled(select(NUMBERS.n, NUMBERS.said).where(NUMBERS.said != "b"))
DIVIDED = Compiled(select((1 / bindparam("by", type_=Integer())).label("part")))
TAKE = Compiled(
    effect_keys.insert().values(
        destination=bindparam("destination"),
        idempotency_key="k",
        effect="e",
        entry_id=func.gen_random_uuid(),
        sender="s",
    )
)
PLANNED_ONCE = Compiled(
    select((1 / bindparam("by", type_=Integer())).label("whole")), prepared=True
)
_many = func.generate_series(literal_column("1"), literal_column("100000")).column_valued("n")
OF_MANY = Compiled(
    select(_many.label("n"))
    .where(_many < select(bindparam("below", type_=Integer())).scalar_subquery())
    .where(_many % (literal(7) + literal(1)) > literal(2) * literal(4)),
    prepared=True,
)
FALL = Compiled(select(func.pg_terminate_backend(func.pg_backend_pid())))


async def test_rows_travel_as_json_and_come_back_by_name(engine):
    """Values of the statement's own, of the caller, percent signs: each arrives as it is."""
    rows = [{"n": 1, "said": "100% %(x)s"}, {"n": 2, "said": "b"}]
    async with engine.connect() as connection:
        (found,) = await SAID.rows(connection, rows=rows)
    assert (1, "100% %(x)s") == (found.n, found.said)


async def test_it_lives_in_the_transaction_of_its_connection(engine):
    async with engine.connect() as connection:
        async with connection.begin() as transaction:
            assert 1 == await TAKE.count(connection, destination="d")
            await transaction.rollback()
        assert [] == list(await connection.execute(select(effect_keys)))


async def test_it_goes_where_the_engine_keeps_the_tables(engine):
    """One statement, two engines with schemas of their own."""
    async with engine.connect() as connection:
        await TAKE.count(connection, destination="d")
        elsewhere = await connection.execution_options(schema_translate_map={"outbox": "nowhere"})
        with pytest.raises(Exception, match="nowhere"):
            await TAKE.count(elsewhere, destination="d")


async def test_hooks_see_it(engine):
    """Who counts or traces statements by SQLAlchemy's hook misses none."""
    seen = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *call: seen.append(call[2:4]))
    async with engine.connect() as connection:
        await DIVIDED.rows(connection, by=1)
    ((statement, parameters),) = seen
    assert "AS part" in statement
    assert 1 in parameters.values()


async def test_errors_are_sqlalchemys(engine):
    """By class, with the server's code."""
    async with engine.connect() as connection:
        with pytest.raises(DataError) as divided:
            await DIVIDED.rows(connection, by=0)
        await connection.rollback()
        await TAKE.count(connection, destination="d")
        await connection.commit()
        with pytest.raises(IntegrityError) as taken:
            await TAKE.count(connection, destination="d")
    assert ("22012", "23505") == (sqlstate_of(divided.value), sqlstate_of(taken.value))
    assert not is_transient(taken.value)


async def test_a_lost_connection_is_noticed_by_its_pool(engine):
    """What is lost is not lent again, and the error says that trying again may help."""
    async with engine.connect() as connection:
        with pytest.raises(OperationalError) as lost:
            await FALL.rows(connection)
        assert connection.invalidated
    assert lost.value.connection_invalidated
    assert is_transient(lost.value)
    async with engine.connect() as connection:
        assert 1 == await connection.scalar(select(1))


async def test_only_what_says_so_is_prepared(engine):
    """However often the others run; and not at all on a connection that does not allow it."""
    async with engine.connect() as connection:
        for _ in range(10):
            await DIVIDED.rows(connection, by=1)
            await PLANNED_ONCE.rows(connection, by=1)
        assert ["whole"] == await prepared(connection)
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        await driver.execute("deallocate all")
        driver.prepare_threshold = None
        await PLANNED_ONCE.rows(connection, by=1)
        assert [] == await prepared(connection)


async def test_what_is_prepared_is_not_planned_anew_for_the_values_that_it_brings(engine):
    """
    PostgreSQL keeps a plan only if one for the given values would not be cheaper by more than
    planning costs; of a deep backlog it would be, by what it reckons out beforehand.
    """
    async with engine.connect() as connection:
        for _ in range(10):
            assert [] == await OF_MANY.rows(connection, below=9)
        plans = await connection.exec_driver_sql(
            "select custom_plans, generic_plans from pg_prepared_statements"
        )
        assert [(5, 5)] == [tuple(row) for row in plans]


async def test_what_a_pooler_lost_is_not_prepared_again(engine):
    """Somebody in between handed out another server connection: one failure, and never again."""
    async with engine.connect() as connection:
        await PLANNED_ONCE.rows(connection, by=1)
        driver = (await connection.get_raw_connection()).driver_connection
        driver.pgconn.exec_(b"deallocate all")  # unseen by the driver
        with pytest.raises(DBAPIError) as lost:
            await PLANNED_ONCE.rows(connection, by=1)
        assert is_transient(lost.value)
        await connection.rollback()
        (row,) = await PLANNED_ONCE.rows(connection, by=1)
        assert (1, []) == (row.whole, await prepared(connection))


async def prepared(connection):
    """What of each statement of ours is prepared: the names of their columns."""
    found = await connection.exec_driver_sql("select statement from pg_prepared_statements")
    return [one.rpartition("AS ")[2] for one in found.scalars()]
