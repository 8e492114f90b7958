"""The outbox in somebody else's application: what its page shows runs, and without Reconciler."""

import asyncio
import os
import re
import sys
from pathlib import Path

import psycopg
import pytest

import outbox
from tests.outbox.pretend import Misbehaves
from tests.outbox.world import an_entry

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[2] / "docs" / "outbox-library.md"
WITHOUT_RECONCILER = """
import importlib, pkgutil, sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "reconciler":
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Nowhere())
import outbox
assert "httpx" not in sys.modules and "sqlalchemy" not in sys.modules
for module in pkgutil.walk_packages(outbox.__path__, "outbox."):
    importlib.import_module(module.name)
"""


async def python(script, **environ):
    """Run a script in a process of its own; what it wrote. It must exit with 0."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        env={**os.environ, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (0, b"") == (process.returncode, b"" if process.returncode == 0 else err)
    return out.decode()


async def test_the_example_of_the_page_runs_where_there_is_no_reconciler(
    pretend, empty_database_url
):
    """Somebody else's schema and table, one call; every module of ours is there, and none else."""
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("create schema billing create table invoices (id text primary key)")
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    said = await python(
        WITHOUT_RECONCILER + example,
        DATABASE_URL=empty_database_url,
        PAYMENTS_URL=pretend.url,
        PAYMENTS_NETWORKS="127.0.0.0/8",
    )
    assert "1 call made" in said.splitlines()
    assert ["charge:in_1"] == pretend.keys
    with psycopg.connect(empty_database_url) as connection:
        found = connection.execute("select state, lane, lane_position from billing.outbox")
        assert [("delivered", "customer:cus_7", 1)] == found.fetchall()
        elsewhere = "select count(*) from pg_namespace where nspname in ('outbox', 'reconciler')"
        assert (0,) == connection.execute(elsewhere).fetchone()


def test_every_public_name_is_there_and_no_other():
    assert all(getattr(outbox, name) is not None for name in outbox.__all__)
    with pytest.raises(AttributeError):
        _ = outbox.reconciler
    page = PAGE.read_text()
    assert all(name in page for name in ("metadata", "enqueue", "redrive", "discard", "run_once"))


@pytest.mark.parametrize("key", [None, ""])
async def test_a_call_that_has_no_key_is_not_repeated_blindly(world, pretend, key):
    """
    Somebody's application gives no key and leaves the rest as it is. The answer is lost: under no
    key the destination would perform the call a second time, so a person is asked.
    """
    pretend.behave = lambda _, __: Misbehaves("closes")
    await world.enqueue(an_entry(idempotency_key=key))
    await world.relay_once()
    assert ["uncertain"] == await world.states()
