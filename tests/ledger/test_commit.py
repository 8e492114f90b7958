"""A failing event is alone with its failure (P15), and content never fails for good (P17)."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from structlog.testing import capture_logs

from reconciler.ledger import commit as committing
from reconciler.ledger import quarantine
from reconciler.ledger.apply import apply
from reconciler.ledger.event import Event, Outcome
from reconciler.ledger.handlers import load as load_handlers
from reconciler.transactions import transact
from tests.ledger.shop import CAPTURE, GET, LIST, SHOP, Shop

pytestmark = pytest.mark.anyio

ORDERS = """
[[senders.shop.apply]]
on_change = ["order"]
sql = \"\"\"INSERT INTO orders (id, amount, version) VALUES (:id, :amount, :version)
 ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, version = excluded.version
  WHERE orders.version < excluded.version\"\"\"
params = { id = "key", amount = "state.amount", version = "version" }
expect_rows = 1
"""
TABLE = """
create table public.orders (id text primary key, amount int check (amount < 1000), version bigint)
"""


@pytest.fixture
async def shop(engine: AsyncEngine) -> Shop:
    shop = await Shop.open(engine, SHOP + ORDERS + LIST + GET + CAPTURE)
    await shop.do(TABLE)
    return shop


async def test_a_statement_without_an_end_is_the_fault_of_its_event(engine: AsyncEngine) -> None:
    """
    The user's statement never ends for one order of eight, as with a query that lacks an index.

    It is given up, and that order alone is set aside; the database is not taken to be away.
    """
    endless = """
[[senders.shop.apply]]
on_change = ["order"]
sql = "select pg_sleep(case when :id = 'ord_3' then 600 else 0 end)"
params = { id = "key" }
"""
    shop = await Shop.open(engine, SHOP + endless + LIST + GET + CAPTURE)
    events = [shop.event(version=1, key=f"ord_{n}", paid=True) for n in range(8)]
    results = await shop.takes(*events, statement_timeout=timedelta(milliseconds=300))

    failed = [n for n, result in enumerate(results) if result.outcome is Outcome.QUARANTINED]
    assert [3] == failed
    assert results[3].retryable
    assert "statement timeout" in str(results[3].fault)
    assert 7 == await shop.charges()


async def test_only_the_guilty_one_of_a_batch_is_quarantined(shop: Shop) -> None:
    """Fifty orders, one of which the user's table refuses. Forty-nine are applied."""
    events = [
        shop.event(version=1, key=f"ord_{n}", paid=True, amount=1000 if n == 17 else n)
        for n in range(50)
    ]
    results = await shop.takes(*events)

    assert [event.event_id for event in events] == [result.event.event_id for result in results]
    failed = [n for n, result in enumerate(results) if result.outcome is Outcome.QUARANTINED]
    assert [17] == failed
    assert results[17].fault
    assert results[17].retryable
    assert 49 == len(await shop.rows("select * from public.orders"))
    assert 49 == await shop.charges()
    (kept,) = await shop.rows("select * from quarantine")
    assert (events[17].event_id, events[17].raw) == (kept["event_id"], bytes(kept["body"]))
    assert await shop.outcome(events[17]) is None
    assert await shop.order("ord_17") is None


async def test_a_failing_event_may_try_again_a_few_times(shop: Shop) -> None:
    """The sender's retries are free to try; after five failures it is answered 200 and kept."""
    event = shop.event(version=1, amount=1000)
    retryable = [(await shop.take(event)).retryable for _ in range(6)]

    assert [True, True, True, True, False, False] == retryable
    (kept,) = await shop.rows("select * from quarantine")
    assert 6 == kept["failures"]


async def test_a_retry_that_works_closes_the_copy(shop: Shop) -> None:
    """The user mends the table; the next retry is applied, and nothing stays open."""
    event = shop.event(version=1, amount=1000, paid=True)
    await shop.take(event)
    await shop.do("alter table public.orders drop constraint orders_amount_check")

    assert Outcome.APPLIED == (await shop.take(event)).outcome
    (kept,) = await shop.rows("select * from quarantine")
    assert "superseded" == kept["state"]
    assert 1 == await shop.charges()


async def test_what_the_database_cannot_hold_is_kept_at_once(shop: Shop) -> None:
    """Content that slipped through everything else: 200 and quarantine, never a 5xx (P17)."""
    good = shop.event(version=1, key="ord_1", amount=1)
    bad = shop.event(version=1, key="ord_2", amount=1)
    assert bad.observation is not None
    bad = replace(bad, observation=replace(bad.observation, key="ord\x00_2"))

    results = await shop.takes(good, bad)

    assert [Outcome.APPLIED, Outcome.QUARANTINED] == [result.outcome for result in results]
    assert (results[1].retryable, results[1].busy) == (False, False)
    assert results[1].fault


async def test_a_key_that_is_too_long_for_an_index_is_kept_at_once(shop: Shop) -> None:
    """54000: random text of 10 kB does not fit, however it is compressed."""
    bad = shop.event(version=1, key="ord_2", amount=1)
    assert bad.observation is not None
    dice = random.Random(7)
    noise = "".join(chr(dice.randrange(0x4E00, 0x9FFF)) for _ in range(6000))
    result = await shop.take(replace(bad, observation=replace(bad.observation, key=noise)))

    assert (Outcome.QUARANTINED, False) == (result.outcome, result.retryable)


async def test_a_constraint_that_is_checked_at_the_end_blames_the_user(shop: Shop) -> None:
    """A deferred constraint fails when the commit has begun: 500, and a copy."""
    await shop.do(
        "alter table public.orders add constraint once unique (amount) "
        "deferrable initially deferred"
    )
    await shop.take(shop.event(version=1, key="ord_1", amount=5))
    result = await shop.take(shop.event(version=1, key="ord_2", amount=5))

    assert (Outcome.QUARANTINED, True) == (result.outcome, result.retryable)
    assert result.fault


async def test_a_missing_table_of_ours_is_not_the_events_fault(shop: Shop) -> None:
    """An unmigrated database: nothing is quarantined, everything is tried again."""
    await shop.do("drop table event_bodies")

    with pytest.raises(Exception, match="event_bodies"):
        await shop.take(shop.event(version=1, amount=1))
    assert [] == await shop.rows("select * from quarantine")


async def test_an_event_that_others_hold_is_busy_and_delays_only_itself(shop: Shop) -> None:
    """P2: a transaction sits on one order. Its event is to come again, the others are applied."""
    await shop.take(shop.event(version=1, key="ord_1", amount=1))
    async with shop.engine.connect() as other, other.begin():
        await other.execute(
            text("select 1 from reconciler.resources where key = 'ord_1' for update")
        )
        results = await shop.takes(
            shop.event(version=2, key="ord_0", amount=1),
            shop.event(version=2, key="ord_1", amount=2),
            shop.event(version=2, key="ord_2", amount=1),
            lock_timeout=timedelta(milliseconds=200),
        )

    assert [False, True, False] == [result.busy for result in results]
    assert [] == await shop.rows("select * from quarantine")
    assert 2 == len(await shop.rows("select * from resources where version = 2"))


async def test_a_correction_that_fails_leaves_nothing_and_says_why(shop: Shop) -> None:
    result = await shop.take(shop.listed(7, paid=True, amount=1000))

    assert result.fault
    assert "orders_amount_check" in result.fault
    assert [] == await shop.rows("select * from quarantine")
    assert [] == await shop.rows("select * from processed_events")
    assert await shop.order() is None


async def test_nothing_of_a_batch_remains_when_the_process_dies_before_the_commit(
    shop: Shop,
) -> None:
    """P3, C40: claim, state, the user's rows and calls go together or not at all."""

    class KilledError(Exception):
        pass

    async def work(connection: AsyncConnection) -> None:
        await apply(connection, shop.rules, [event])
        raise KilledError

    event = shop.event(version=1, paid=True, amount=1)
    with pytest.raises(KilledError):
        await transact(shop.engine, work)

    for table in ("processed_events", "event_bodies", "resources", "outbox", "public.orders"):
        assert [] == await shop.rows(f"select * from {table}"), table  # noqa: S608
    assert Outcome.APPLIED == (await shop.take(event)).outcome


async def test_a_handler_that_raises_is_the_users(engine: AsyncEngine, tmp_path: Any) -> None:
    (tmp_path / "failing_rules.py").write_text(
        "from reconciler import handler\n"
        "@handler('shop', on_change='order')\n"
        "async def fail(event, tx):\n"
        "    raise RuntimeError('no ' + event.key)\n"
    )
    handlers = load_handlers(["failing_rules"], directory=tmp_path)
    shop = await Shop.open(engine, SHOP + LIST + GET, handlers=handlers)
    result = await shop.take(shop.event(version=1, amount=1))

    assert (Outcome.QUARANTINED, True) == (result.outcome, result.retryable)
    assert result.fault
    assert "no ord_42" in result.fault


async def keep(shop: Shop, *arguments: Any) -> int:
    async def work(connection: AsyncConnection) -> int:
        return await quarantine.keep(connection, *arguments)

    return await transact(shop.engine, work)


async def test_a_body_without_an_event_is_kept_once(shop: Shop) -> None:
    """Authentic but beyond use: one row a body, which counts."""
    assert 1 == await keep(shop, "shop", b"not json", {"a": "b"}, "not JSON")
    assert 2 == await keep(shop, "shop", b"not json", {"a": "b"}, "not JSON")
    assert 1 == await keep(shop, "shop", b"not json either", {}, "not JSON")

    assert 2 == len(await shop.rows("select * from quarantine"))


async def test_two_events_of_one_delivery_have_a_copy_each(shop: Shop) -> None:
    """The bytes are the same, the events are not."""
    assert 1 == await keep(shop, "shop", b"[1, 2]", {}, "fault", "evt_1")
    assert 1 == await keep(shop, "shop", b"[1, 2]", {}, "fault", "evt_2")
    assert 2 == await keep(shop, "shop", b"[1, 2]", {}, "fault", "evt_2")
    assert 2 == await keep(shop, "shop", b"another body", {}, "fault", "evt_1")

    assert 2 == len(await shop.rows("select * from quarantine"))


async def test_no_content_can_keep_a_copy_out(shop: Shop) -> None:
    """Quarantine is the last resort: NUL, half characters, an empty fault, everything."""
    raw = b"\x00\xff" * 1000
    await keep(shop, "shop", raw, {"x\x00": "\ud800"}, "", "evt\x00\ud800")
    await keep(shop, "shop", raw, {}, "f" * 100_000, "evt_2")

    kept = await shop.rows("select * from quarantine order by id")
    assert [raw, raw] == [bytes(row["body"]) for row in kept]
    assert all(row["fault"] for row in kept)


async def test_a_copy_is_closed_by_hand(shop: Shop) -> None:
    await keep(shop, "shop", b"x", {}, "fault", "evt_1")
    (row,) = await shop.rows("select id from quarantine")

    async def settle(connection: AsyncConnection) -> bool:
        return await quarantine.settle(connection, row["id"], state="discarded")

    assert await transact(shop.engine, settle)
    assert not await transact(shop.engine, settle)
    assert 1 == await keep(shop, "shop", b"x", {}, "fault", "evt_1")


async def test_a_crash_point_stands_after_each_step(shop: Shop, monkeypatch: Any) -> None:
    """The names that drills and tests kill us at."""
    passed: list[str] = []
    monkeypatch.setattr("reconciler.faults.point", passed.append)
    await shop.take(shop.event(version=1, amount=1))

    steps = ["begin", "claim", "guard", "react", "commit"]
    assert [f"after-{step}" for step in steps] == [at for at in passed if at.startswith("after")]
    assert ["before-enqueue", "before-commit"] == [at for at in passed if at.startswith("before")]


async def test_an_empty_batch_is_no_transaction(shop: Shop) -> None:
    nothing: Sequence[Event] = ()
    with capture_logs() as logs:
        assert [] == await committing.commit(shop.engine, shop.rules, nothing)
    assert [] == logs
