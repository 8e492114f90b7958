"""Nothing of ours is numbered by the database: there is no counter that conflicts could use up."""

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cases.house import a_house, item, order

pytestmark = pytest.mark.anyio


async def test_there_is_no_sequence_in_the_schema(engine: AsyncEngine, tmp_path: Path) -> None:
    """No sequence, no identity column, no default that counts; keys are texts or UUIDs."""
    async with a_house(engine, tmp_path) as house:
        schema = "'reconciler'::regnamespace"
        assert [] == await house.rows(
            f"select relname from pg_class where relkind = 'S' and relnamespace = {schema}"  # noqa: S608
        )
        assert [] == await house.rows(
            "select table_name, column_name from information_schema.columns"
            " where table_schema = 'reconciler'"
            " and (is_identity = 'YES' or column_default like '%nextval%')"
        )
        numbered = await house.rows(
            "select a.attrelid::regclass::text, a.attname from pg_index i"  # noqa: S608
            " join pg_class c on c.oid = i.indrelid join pg_attribute a"
            " on a.attrelid = c.oid and a.attnum = any (i.indkey)"
            f" where i.indisprimary and c.relnamespace = {schema}"
            " and a.atttypid in ('int4'::regtype, 'int8'::regtype, 'int2'::regtype)"
        )
        # attempts of one entry, and generations of the database: both only ever grow by a
        # statement that says so, and neither is drawn from a counter that a restore sets back
        assert [("generations", "number"), ("outbox_attempts", "attempt")] == sorted(numbered)


async def test_ten_duplicates_and_then_something_new(engine: AsyncEngine, tmp_path: Path) -> None:
    """By webhook, in batches, by scans: what is new is new however much was not."""
    async with a_house(engine, tmp_path) as house:
        assert "applied" == await house.outcome(order("e1", paid=True, amount=1))
        house.listed, house.got = [item(paid=True, amount=1)], {"ord_42": item(paid=True, amount=1)}
        for _ in range(10):
            assert "duplicate" == await house.outcome(order("e1", paid=True, amount=1))
            await house.reconcile()
        assert [(1,)] == await house.rows("select revision from resources")
        assert "applied" == await house.outcome(order("e2", version=2, paid=True, amount=1))
        assert [(2,)] == await house.rows("select revision from resources")
        assert {"processed_events": 2, "event_bodies": 2, "resources": 1, "outbox": 1} == (
            await house.counts()
        )
