"""Stories of one resource, reconciled by hand."""

import pytest

from reconciler.polling.by_hand import reconcile_kind
from reconciler.polling.report import End
from reconciler.polling.slots import Mode

from .server import Reply
from .world import Shop, a_world, ago

pytestmark = pytest.mark.anyio

APPLY = {
    "on_change": ["order"],
    "sql": "insert into orders values (:key, :status)"
    " on conflict (key) do update set status = excluded.status",
    "params": {"key": "key", "status": "state.status"},
}


async def test_a_dry_run_shows_everything_and_leaves_nothing(engine):
    """Difference and effects, as they would be; every table keeps its row count."""
    async with a_world(engine, grace="1h") as world:
        await world.webhook(world.shop.put("ord_42", version=1))
        world.shop.put("ord_42", version=2, paid=True, amount=1200)
        before = await world.counts()
        item = await world.reconcile("ord_42", dry_run=True)

        assert before == await world.counts()
        assert ("would_correct", "behind") == (item["result"], item["drift"])
        assert ("1", "2") == (item["ours"]["version"], item["theirs"]["version"])
        assert [
            {"path": "amount", "ours": 1000, "theirs": 1200},
            {"path": "paid", "ours": False, "theirs": True},
        ] == item["differences"]
        assert [
            {
                "effect": "capture",
                "destination": "payments",
                "idempotency_key": "shop:order:ord_42:2:capture",
            }
        ] == item["effects"]
        assert {"ord_42": 1} == await world.held()


async def test_then_it_corrects_and_a_second_run_says_in_sync(engine):
    """A person ignores grace; correcting once is enough."""
    async with a_world(engine, grace="1h") as world:
        world.shop.put("ord_42", version=2, paid=True)
        item = await world.reconcile("ord_42")
        assert ("corrected", "missing", None) == (item["result"], item["drift"], item["ours"])
        assert 1 == len(item["effects"])

        item = await world.reconcile("ord_42")
        assert ("in_sync", None, []) == (item["result"], item["drift"], item["effects"])
        assert ["ord_42"] == await world.calls()


async def test_a_dry_run_says_that_the_users_own_sql_fails(engine):
    """The `apply` statement raises: that is the result, and nothing is left of it."""
    async with a_world(engine, apply=(APPLY,)) as world:
        world.shop.put("ord_42", version=2)
        before = await world.counts()
        item = await world.reconcile("ord_42", dry_run=True)
        assert "failed" == item["result"]
        assert "orders" in item["error"]
        assert "2" == item["theirs"]["version"]
        assert before == await world.counts()

        item = await world.reconcile("ord_42")
        assert "failed" == item["result"]
        assert {} == await world.held()
        await world.run_sql("create table orders (key text primary key, status text)")
        assert "corrected" == (await world.reconcile("ord_42"))["result"]
        assert "open" == await world.value("select status from orders")


async def test_before_the_baseline_a_person_fires(engine):
    """P20: naming one resource is a decision; its dry run has named the effects."""
    async with a_world(engine, baseline=False) as world:
        world.shop.put("ord_42", version=2, paid=True, changed=ago(days=9))
        assert 1 == len((await world.reconcile("ord_42", dry_run=True))["effects"])
        await world.reconcile("ord_42")

        assert ["ord_42"] == await world.calls()


async def test_gone_where_that_is_declared(engine):
    """P14: 404 means deleted here; our row becomes a tombstone at the version that it had."""
    async with a_world(engine) as world:
        await world.webhook(world.shop.put("ord_42", version=3))
        del world.shop.orders["ord_42"]
        item = await world.reconcile("ord_42")

        assert ("gone", "absent") == (item["result"], item["drift"])
        row = (await world.rows("select * from reconciler.resources"))[0]
        assert (3, True) == (row.version, row.deleted)
        assert "absent" == await world.value("select drift from reconciler.corrections")
        assert ("gone", None) == (
            (again := await world.reconcile("ord_42"))["result"],
            again["drift"],
        )


async def test_unknown_where_it_is_not(engine):
    """404 without a declared meaning says nothing, and changes nothing."""
    kind = {"get": {"path": "/v1/orders/{{ key }}", "key": "id"}}
    async with a_world(engine, kind=kind) as world:
        await world.webhook(world.shop.put("ord_42", version=3))
        del world.shop.orders["ord_42"]
        item = await world.reconcile("ord_42")

        assert ("unknown", "3") == (item["result"], item["ours"]["version"])
        assert {"ord_42": 3} == await world.held()


async def test_ahead(engine):
    """We hold something newer than the sender's `get` says: it lags; nothing is done."""
    async with a_world(engine) as world:
        await world.webhook(world.shop.put("ord_42", version=5))
        world.shop.put("ord_42", version=4, status="paid")
        item = await world.reconcile("ord_42")

        assert ("ahead", None, "5", "4") == (
            item["result"],
            item["drift"],
            item["ours"]["version"],
            item["theirs"]["version"],
        )
        assert {"ord_42": 5} == await world.held()


async def test_a_tie_is_settled_by_a_read(engine):
    """C47, A1: the same version with other content; the `get` is right, back and forth."""
    async with a_world(engine) as world:
        await world.webhook(world.shop.put("ord_42", version=1, status="open"))
        for status in ("paid", "open", "paid"):
            world.shop.put("ord_42", version=1, status=status, paid=status == "paid")
            item = await world.reconcile("ord_42")
            assert ("corrected", "conflict") == (item["result"], item["drift"])
            assert "in_sync" == (await world.reconcile("ord_42"))["result"]


async def test_a_read_that_a_webhook_overtook_is_made_again(engine):
    """Our row is written while the answer comes: that read settles nothing, the next does."""
    async with a_world(engine) as world:
        order = world.shop.put("ord_42", version=2, status="open")
        answer, overtaken = world.shop.answer, iter([True])

        async def meanwhile(request):
            reply = await answer(request)
            if next(overtaken, False):
                await world.webhook(order)
            return reply

        world.shop.put("ord_42", version=2, status="paid")
        world.shop.answer = meanwhile
        async with a_world(engine, shop=world.shop) as busy:
            item = await busy.reconcile("ord_42")

        assert ("corrected", "conflict") == (item["result"], item["drift"])
        assert "paid" == await world.value("select state ->> 'status' from reconciler.resources")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500),
        Reply(status=403),
        Reply(body=b"<html>"),
        Reply(json={"id": "ord_other", "version": 9}),
        Reply(json={"id": "ord_42", "version": "newest"}),
        Reply(json={"id": "ord_42"}),
        Reply(body=b'{"id": "ord_42", "version": 2, "status": "a\\u0000b"}'),
    ],
)
async def test_what_is_no_answer_is_a_failure_of_this_one(engine, reply):
    """It says so, with what we hold; nothing is written."""
    async with a_world(engine) as world:
        await world.webhook(world.shop.put("ord_42", version=1))
        world.shop.lies = [reply] * 4
        before = await world.counts()
        item = await world.reconcile("ord_42")

        assert ("failed", "1") == (item["result"], item["ours"]["version"])
        assert item["error"]
        assert before == await world.counts()


async def test_without_a_get_the_listing_is_searched(engine):
    """Page by page until it is found; what is not listed is unknown, not gone."""
    async with a_world(engine, get=False, shop=Shop(size=10)) as world:
        for number in range(30):
            world.shop.put(f"ord_{number:02}", version=1, changed=ago(minutes=30 - number))
        item = await world.reconcile("ord_15", dry_run=True)
        assert ("would_correct", 2) == (item["result"], len(world.asked()))
        assert "corrected" == (await world.reconcile("ord_15"))["result"]
        assert {"ord_15": 1} == await world.held()

        item = await world.reconcile("ord_99")
        assert ("unknown", None) == (item["result"], item["ours"])


async def test_keys_cannot_break_out_of_the_path(engine):
    """A key with a slash, a question mark or dots is one piece of the path, or none."""
    async with a_world(engine) as world:
        for key in ("a/b?c=d#e", "ord%2F1", "ärger"):
            world.shop.orders.clear()
            await world.reconcile(key)
        assert [
            "/v1/orders/a%2Fb%3Fc%3Dd%23e",
            "/v1/orders/ord%252F1",
            "/v1/orders/%C3%A4rger",
        ] == [request.target for request in world.served.requests]

        assert "failed" == (await world.reconcile(".."))["result"]
        assert 3 == len(world.served.requests)


async def test_a_whole_kind_by_hand(engine):
    """Before the baseline full and silent, then incremental; only what is not in sync is listed."""
    async with a_world(engine, baseline=False, grace="1h") as world:
        for number in range(5):
            world.shop.put(f"ord_{number}", version=1, paid=True, changed=ago(minutes=5))
        noted: list = []
        report = await reconcile_kind(world.order(note=noted.append))
        assert (Mode.FULL, 5, []) == (report.mode, report.corrected, await world.calls())
        assert {"corrected"} == {item["result"] for item in noted}

        noted.clear()
        world.shop.put("ord_3", version=2, status="shipped")
        report = await reconcile_kind(world.order(note=noted.append))
        assert (Mode.INCREMENTAL, 1) == (report.mode, report.corrected)
        assert ["ord_3"] == [item["key"] for item in noted]
        assert Mode.FULL == (await reconcile_kind(world.order(), full=True)).mode


async def test_a_whole_kind_does_the_reads_that_it_asks_for(engine):
    """A conflict and an absence are read at once, not left to a daemon."""
    async with a_world(engine) as world:
        for number in range(5):
            await world.webhook(world.shop.put(f"ord_{number}", version=1))
        world.shop.put("ord_1", version=1, status="paid")
        del world.shop.orders["ord_2"]
        noted: list = []
        report = await reconcile_kind(world.order(note=noted.append), full=True)

        assert {("ord_1", "corrected", "conflict"), ("ord_2", "gone", "absent")} == {
            (item["key"], item["result"], item["drift"]) for item in noted
        }
        assert (End.COMPLETED, 2) == (report.end, report.corrected)
        assert 0 == await world.value("select count(*) from reconciler.fetch_requests")


async def test_a_whole_kind_rehearsed(engine):
    """The dry run of a kind: every page's transaction is rolled back; nothing is left of it."""
    async with a_world(engine, grace="1h", apply=(APPLY,)) as world:
        await world.run_sql("create table orders (key text primary key, status text not null)")
        await world.webhook(world.shop.put("ord_1", version=1))
        world.shop.put("ord_1", version=1, status="shipped")
        world.shop.put("ord_2", version=1, paid=True)
        world.shop.put("ord_3", version=1, status=None)
        before = await world.counts()
        noted: list = []
        report = await reconcile_kind(world.order(note=noted.append, dry_run=True))

        assert before == await world.counts()
        assert report.dry_run
        assert {
            ("ord_1", "would_correct", "conflict", 0),
            ("ord_2", "would_correct", "missing", 1),
            ("ord_3", "failed", None, 0),
        } == {(item["key"], item["result"], item["drift"], len(item["effects"])) for item in noted}
