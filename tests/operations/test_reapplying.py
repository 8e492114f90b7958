"""Stories of mistakes in `apply` that were mended, and of states that are applied again."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text

from reconciler.errors import ReconcilerError, UsageError
from reconciler.operations.reapplying import Order, reapply_all, reapply_one
from tests.cases.house import SHOP, a_house, item, order
from tests.outbox.world import until

pytestmark = pytest.mark.anyio

HANDLERS = """
from reconciler import handler

@handler("shop", on_change="order")
async def tell(event, tx):
    await tx.execute(
        "insert into reconciler.told values (:key, :change)",
        {"key": event.key, "change": event.change.value},
    )
    await tx.send("payments", "POST /v1/notes", effect="note", json={"key": event.key})
"""
APPLY = """
[[senders.shop.apply]]
on_change = ["order"]
sql = '''INSERT INTO reconciler.mine VALUES (:id, :status, :version)
         ON CONFLICT (id) DO UPDATE SET status = excluded.status, version = excluded.version'''
params = { id = "key", status = "state.status", version = "version" }
expect_rows = 1

[[senders.shop.apply]]
on_change = ["order"]
when = "change == 'deleted'"
sql = "DELETE FROM reconciler.mine WHERE id = :id"
params = { id = "key" }

[[senders.shop.apply]]
on = ["order.updated"]
if_stale = "skip"
sql = "INSERT INTO reconciler.facts VALUES (:id)"
params = { id = "event_id" }
"""
MINE = """
create table mine (id text primary key, status text, version bigint);
create table facts (id text);
create table told (key text, change text);
"""


@asynccontextmanager
async def a_house_with_tables(engine, directory):
    """Three orders and what the user's tables hold of them, which then is lost."""
    async with a_house(engine, directory, more=APPLY) as house:
        for statement in MINE.split(";"):
            if statement.strip():
                await house.run_sql(statement)
        for number in range(3):
            await house.outcome(order(f"evt_{number}", f"ord_{number}", paid=True, amount=3))
        await house.run_sql("delete from mine")
        await house.run_sql("delete from facts")
        yield house


def by_hand(house, **how):
    fields = {"sender": "shop", "kind": "order", "actor": "alice", **how}
    return Order(engine=house.engine, assembly=house.assembly, **fields)


async def all_of(order_):
    return [one async for batch in reapply_all(order_) for one in batch]


async def mine(house):
    return await house.rows("select id, status, version from mine order by id")


async def test_a_kind_is_applied_again_from_what_we_hold(engine, tmp_path):
    """
    The user's table was emptied by mistake. A dry run shows and leaves no trace; the run fills
    it. No event is claimed, no effect asked for, and facts are left out.
    """
    async with a_house_with_tables(engine, tmp_path) as house:
        before = await house.counts()
        dry = await all_of(by_hand(house, dry_run=True))
        assert (["reapplied"] * 3, []) == ([one["result"] for one in dry], await mine(house))

        done = await all_of(by_hand(house, reason="emptied by mistake"))
        assert ["ord_0", "ord_1", "ord_2"] == [one["key"] for one in done]
        assert [("ord_0", "new", 1), ("ord_1", "new", 1), ("ord_2", "new", 1)] == await mine(house)
        assert ([], before) == (await house.rows("select * from facts"), await house.counts())
        assert [("alice", "reapply", "emptied by mistake")] == await house.rows(
            "select actor, action, reason from actions"
        )


async def test_one_that_fails_is_told_and_the_rest_goes_on(engine, tmp_path):
    async with a_house_with_tables(engine, tmp_path) as house:
        await house.run_sql("alter table mine add check (id <> 'ord_1')")
        done = await all_of(by_hand(house))
        assert ["reapplied", "failed", "reapplied"] == [one["result"] for one in done]
        assert "mine_id_check" in done[1]["fault"]
        assert [("ord_0", "new", 1), ("ord_2", "new", 1)] == await mine(house)


async def test_what_is_deleted_is_applied_as_deleted(engine, tmp_path):
    """A tombstone stands for its deletion: the statement for deletions runs, and tells."""
    async with a_house_with_tables(engine, tmp_path) as house:
        await house.run_sql("update resources set deleted = true where key = 'ord_0'")
        await house.run_sql("insert into mine values ('ord_0', 'new', 1)")
        one = await reapply_one(by_hand(house), "ord_0")
        assert (True, []) == (one["deleted"], await mine(house))
        steps = {step["where"]: (step["ran"], step["rows"]) for step in one["steps"]}
        assert {
            "senders.shop.apply[0]": (True, 1),
            "senders.shop.apply[1]": (True, 1),
        } == steps


async def test_a_newer_webhook_is_not_overwritten(engine, tmp_path):
    """
    A webhook has written version 2 and not committed yet. The re-application waits for its row,
    and then applies what the webhook wrote, not what was there before.
    """
    async with a_house_with_tables(engine, tmp_path) as house:
        async with engine.connect() as webhook:
            await webhook.execute(
                text(
                    "update reconciler.resources set version = 2, revision = revision + 1,"
                    """ state = '{"status": "paid"}' where key = 'ord_0'"""
                )
            )
            asked = asyncio.create_task(reapply_one(by_hand(house), "ord_0"))
            await somebody_waits(house, unless=asked)
            await webhook.commit()
            one = await asked
        assert ("2", [("ord_0", "paid", 2)]) == (one["version"], await mine(house))


async def somebody_waits(house, *, unless):
    async def waits():
        return unless.done() or await house.rows("select 1 from pg_locks where not granted")

    await until(waits)


async def test_a_row_that_stays_locked_is_told_as_busy(engine, tmp_path):
    async with a_house_with_tables(engine, tmp_path) as house, engine.connect() as other:
        await other.execute(
            text("select 1 from reconciler.resources where key = 'ord_1' for update")
        )
        done = await all_of(by_hand(house))
        assert ["reapplied", "failed", "reapplied"] == [one["result"] for one in done]
        assert "another transaction" in done[1]["fault"]


async def test_a_handler_runs_and_what_it_sends_is_not_sent(engine, tmp_path):
    (tmp_path / "reapplied_rules.py").write_text(HANDLERS)
    more = 'handlers = ["reapplied_rules"]\n'
    async with a_house(engine, tmp_path, configuration=more + SHOP) as house:
        await house.run_sql("create table told (key text, change text)")
        house.got["ord_42"] = item(version=3, paid=False)
        await house.reconcile("ord_42")
        assert [("note", "pending")] == await house.rows("select effect, state from outbox")
        one = await reapply_one(by_hand(house), "ord_42")
        assert ["handlers.reapplied_rules.tell"] == [step["where"] for step in one["steps"]]
        assert [("ord_42", "created"), ("ord_42", "updated")] == await house.rows(
            "select * from told order by change"
        )
        assert [("note", "pending")] == await house.rows("select effect, state from outbox")


async def test_what_cannot_be_meant_is_refused(engine, tmp_path):
    async with a_house_with_tables(engine, tmp_path) as house:
        with pytest.raises(ReconcilerError, match="ord_9"):
            await reapply_one(by_hand(house), "ord_9")
        with pytest.raises(UsageError, match="no kind 'ordr'"):
            await reapply_one(by_hand(house, kind="ordr"), "ord_1")
        with pytest.raises(UsageError, match="no sender 'shopp'"):
            await reapply_one(by_hand(house, sender="shopp"), "ord_1")
        assert [] == await house.rows("select 1 from actions")
    async with a_house(engine, tmp_path) as house:
        with pytest.raises(UsageError, match="no apply statement"):
            await all_of(by_hand(house))
