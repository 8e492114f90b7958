"""Who an event is: its id belongs to its sender, and what it tells happens once."""

import asyncio
from itertools import permutations
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from tests.cases.house import House, a_house, item, order

pytestmark = pytest.mark.anyio

MARKET = """
[senders.market]
secrets = ["env:SHOP_SECRET"]

[senders.market.resources.order]
on = ["order.*"]
from = "data"
key = "order_id"
version = "version"
first_seen = "fire"
fields = { paid = "paid", amount = "amount" }

[effects.market_capture]
on_change = ["market:order"]
becomes = "state.paid"
destination = "payments"
request = "POST /charges/{{ key }}"
json = { amount = "{{ state.amount }}" }

[effects.market_receipt]
on = ["market:refund.succeeded"]
destination = "payments"
request = "POST /receipts"
json = { of = "{{ event_id }}" }
idempotency_key = "{{ sender }}:{{ event_id }}"
"""
PAID = {"paid": True, "amount": 10}
SPELLINGS = [
    "evt_1", "EVT_1", "evt_1 ", " evt_1", "evt_1\n", "evt_1\t", "e\u0301", "\u00e9", "\u212b",
    "\u00c5", "A\u030a", "1", "01", "1.0", "\u0661", "\uff11", "\u00df", "ss", "%31", "evt_1%",
    "evt'_1", "evt_1\u200b", "\ufeffevt_1", "null", "evt:1", "evt_1:receipt", "h-1",
]  # fmt: skip


async def test_two_senders_with_one_id_and_one_key(engine: AsyncEngine, tmp_path: Path) -> None:
    """
    `evt_1` about `ord_42` from the shop and from the market, at once and again: two events, two
    orders, two charges under two keys; and `evt_2` is a refund of each of them.
    """
    async with a_house(engine, tmp_path, more=MARKET) as house:
        event = order("evt_1", version=7, **PAID)
        refund = {"id": "evt_2", "type": "refund.succeeded", "data": {"amount": 1}}
        for expected in ("applied", "duplicate"):
            for sent in (event, refund):
                paths = ("/webhooks/shop", "/webhooks/market")
                async with asyncio.TaskGroup() as group:
                    told = [group.create_task(house.outcome(sent, path)) for path in paths]
                assert [expected] * 2 == [task.result() for task in told]
        assert [("market", 7), ("shop", 7)] == await house.rows(
            "select sender, version from resources order by sender"
        )
        await house.call()
        keys = house.pretend.keys
        assert (4, 4) == (len(keys), len(set(keys)))
        assert {"shop:order:ord_42:7:capture", "market:order:ord_42:7:market_capture"} < {*keys}


async def test_an_id_is_its_bytes(engine: AsyncEngine, tmp_path: Path) -> None:
    """
    Nothing is folded, trimmed, normalised or cut: ids that look alike are events of their own,
    inward and outward; the longest that is taken, and its neighbour, too.
    """
    ids = [*SPELLINGS, "x" * 511 + "a", "x" * 511 + "b", "x" * 511]
    refunds = [{"id": id_, "type": "refund.succeeded", "data": {"amount": 1}} for id_ in ids]
    orders = [order(f"k{number}", id_, **PAID) for number, id_ in enumerate(ids)]
    async with a_house(engine, tmp_path, batches=True) as house:
        for sent in (refunds, orders):
            assert ["applied"] * len(ids) == await house.outcomes(sent)
            assert ["duplicate"] * len(ids) == await house.outcomes(sent)
        stored = await house.rows("select event_id from processed_events where kind is null")
        assert {*ids} == {id_ for (id_,) in stored}
        assert {*ids} == (await house.held()).keys()
        while await house.call():
            pass
        keys = house.pretend.keys
        assert (2 * len(ids), 2 * len(ids)) == (len(keys), len({*keys}))


RECEIPT = """
[effects.paid_receipt]
on = ["shop:order.*"]
if_stale = "count"
destination = "payments"
request = "POST /paid"
json = { of = "{{ key }}" }
"""

SPELLED = (
    b'{"id":"b","type":"order.updated","data":{"order_id":"ord_42","version":"7",'
    b'"status":"new","paid":true,"amount":1.00e1}}'
)
TWICE = {
    "the same": (order("a", version=7, **PAID), order("b", version=7, **PAID)),
    "sent at another time": (
        order("a", version=7, **PAID),
        {**order("b", version=7, **PAID), "created_at": "2026-12-01T10:05:00Z"},
    ),
    "in another order of members": (
        order("a", version=7, **PAID),
        dict(reversed(order("b", version=7, **PAID).items())),
    ),
    "another spelling of its numbers": (
        order("a", version=7, paid=True, amount=10),
        SPELLED,
    ),
    "with a note that we do not keep": (
        order("a", version=7, **PAID),
        {**order("b", version=7, note="hello", **PAID), "attempt": 2},
    ),
}


@pytest.mark.parametrize(("first", "second"), TWICE.values(), ids=TWICE)
@pytest.mark.parametrize("way", ["one after the other", "at once"])
async def test_one_change_under_two_ids_is_one_change(
    engine: AsyncEngine, tmp_path: Path, way: str, first: object, second: object
) -> None:
    """
    Two subscriptions to the same thing: both are acknowledged and remembered; the order is
    charged once and its fact counts once.
    """
    async with a_house(engine, tmp_path, more=RECEIPT) as house:
        if way == "at once":
            async with asyncio.TaskGroup() as group:
                both = [group.create_task(house.outcome(each)) for each in (first, second)]
            told = [task.result() for task in both]
        else:
            told = [await house.outcome(each) for each in (first, second)]
        assert ["applied", "stale"] == sorted(told)
        assert 2 == (await house.counts())["processed_events"]
        await one_charge_one_receipt(house)


async def test_and_in_one_batch_and_on_every_other_path(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """Both in one delivery; then a listing and a read that show the same once more."""
    async with a_house(engine, tmp_path, more=RECEIPT, batches=True) as house:
        first, second = TWICE["the same"]
        assert ["applied", "stale"] == await house.outcomes([first, second])
        seen = item(version=7, **PAID)
        house.listed, house.got = [seen], {"ord_42": seen}
        await house.reconcile()
        (told,) = (await house.reconcile("ord_42")).items
        assert "in_sync" == told["result"]
        third = order("c", version=7, **PAID)
        assert ["stale"] == await house.outcomes([third])
        await one_charge_one_receipt(house)


async def test_whoever_finds_out_first_there_is_one_charge(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """Webhook under one id, webhook under another, listing, read: in each order."""
    ways = ("a", "b", "listing", "read")
    async with a_house(engine, tmp_path) as house:
        turns = [turn for turn in permutations(ways) if turn.index("a") < turn.index("b")]
        for number, turn in enumerate(turns):
            key = f"o{number}"
            seen = item(key, version=7, **PAID)
            house.got[key] = seen
            house.listed = [seen]
            for way in turn:
                match way:
                    case "listing":
                        await house.reconcile()
                    case "read":
                        await house.reconcile(key)
                    case _:
                        event = order(f"{way}{number}", key, version=7, **PAID)
                        assert await house.outcome(event) in {"applied", "late", "stale"}
        entries = await house.rows("select key, count(*) from outbox group by key")
        assert {f"o{number}": 1 for number in range(12)} == dict(entries)


async def one_charge_one_receipt(house: House) -> None:
    assert {"ord_42": 7} == await house.held()
    await house.call()
    assert ["/charges/ord_42", "/paid"] == sorted(call.target for call in house.pretend.calls)


OTHERS = {
    "a newer version": order("evt_1", version=8, amount=12, paid=True),
    "an older version": order("evt_1", version=6, amount=12),
    "the same version": order("evt_1", version=7, amount=12),
    "another order": order("evt_1", "ord_43", version=8, paid=True),
    "another type": {"id": "evt_1", "type": "refund.succeeded", "data": {"amount": 12}},
    "an unknown type": {"id": "evt_1", "type": "what.ever"},
    "no version": {"id": "evt_1", "type": "order.updated", "data": {"order_id": "ord_42"}},
}


async def test_one_id_with_other_content_is_not_applied_without_a_trace(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    Whatever the second body says: 200, a duplicate, both digests in the log, and the truth is
    asked for where somebody can answer. No second effect, no change of state.
    """
    async with a_house(engine, tmp_path) as house:
        await house.outcome(order("evt_1", version=7, amount=10))
        before = await house.rows("select * from resources")
        for name, other in OTHERS.items():
            with capture_logs() as logs:
                assert "duplicate" == await house.outcome(other), name
            (told,) = [line for line in logs if line["event"] == "ledger.other_body_seen"]
            assert told["digest"] != told["claimed_digest"]
        assert before == [
            row for row in await house.rows("select * from resources") if row[1:3] == before[0][1:3]
        ]
        assert 0 == await house.call()
        asked = {key for (key,) in await house.rows("select key from fetch_requests")}
        assert {"ord_42", "ord_43"} == asked

        house.got = {"ord_42": item(version=8, paid=True, amount=12)}
        (done,) = (await house.reconcile("ord_42")).items
        assert ("corrected", {"ord_42": 8}) == (done["result"], await house.held())
        assert 1 == await house.call()


async def test_in_one_batch_and_beyond_use(engine: AsyncEngine, tmp_path: Path) -> None:
    """The first of a batch counts; a second body that cannot be read is kept to be seen."""
    async with a_house(engine, tmp_path, batches=True) as house:
        first = order("evt_1", version=7, amount=10)
        told = await house.outcomes([first, OTHERS["a newer version"], order("evt_1", version="x")])
        assert ["applied", "duplicate", "quarantined"] == told
        assert {"ord_42": 7} == await house.held()
        assert 1 == (await house.counts())["quarantine"]
