"""Stories of events that quarantine keeps, and of people who replay or discard them."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from reconciler.errors import ReconcilerError, UsageError
from reconciler.operations.acting import Order
from reconciler.operations.assembly import assemble
from reconciler.operations.rendering import render_all
from reconciler.operations.replayed import Fate, Filters
from reconciler.operations.replaying import discard, replay_all, replay_copy, replay_event
from tests.cases.house import SHOP, a_house, order
from tests.receiver.senders import SECRET

pytestmark = pytest.mark.anyio

APPLY = """
[[senders.shop.apply]]
on_change = ["order"]
sql = "INSERT INTO reconciler.mine VALUES (:id, :status)"
params = { id = "key", status = "state.status" }
"""
MINE = "create table mine (id text primary key, status text check (status <> 'odd'))"


@asynccontextmanager
async def a_picky_house(engine, directory, **how):
    """The user's table refuses odd orders."""
    async with a_house(engine, directory, more=APPLY, **how) as house:
        await house.run_sql(MINE)
        yield house


def by_hand(house, assembly=None, **how):
    return Order(engine=house.engine, assembly=assembly or house.assembly, actor="alice", **how)


async def replayed(house, event_id="evt_1", **how):
    return await replay_event(by_hand(house, **how), "shop", event_id)


async def all_of(items):
    return [item async for item in items]


async def copies(house):
    return await house.rows("select event_id, state, failures from quarantine order by id")


async def mended(house):
    await house.run_sql("alter table mine drop constraint mine_status_check")


async def test_an_event_leaves_quarantine_once_its_fault_is_mended(engine, tmp_path):
    """
    The user's table refuses it, also when it is replayed: it stays, and the failure counts. Then
    the table is mended: a dry run shows what will happen and does nothing; the replay does it,
    closes the copy, and a second one finds nothing to do. Each act stands in `actions`.
    """
    async with a_picky_house(engine, tmp_path) as house:
        await house.deliver(order("evt_1", status="odd", paid=True, amount=3))
        (item,) = await replayed(house, reason="just to see")
        assert (Fate.QUARANTINED, 2) == (item["result"], item["failures"])
        assert "mine_status_check" in item["fault"]
        assert [("evt_1", "open", 2)] == await copies(house)

        await mended(house)
        before = await house.counts()
        (item,) = await replayed(house, dry_run=True)
        assert (Fate.REPLAYED, "applied") == (item["result"], item["outcome"])
        assert before == await house.counts()

        (item,) = await replayed(house)
        assert (Fate.REPLAYED, "applied", "1") == (
            item["result"],
            item["outcome"],
            item["version"],
        )
        assert ["shop:order:ord_42:1:capture"] == [
            effect["idempotency_key"] for effect in item["effects"]
        ]
        assert [("evt_1", "replayed", 2)] == await copies(house)
        assert [("ord_42", "odd")] == await house.rows("select * from mine")

        once = await house.counts()
        (item,) = await replayed(house)
        assert (Fate.DUPLICATE, once) == (item["result"], await house.counts())
        assert [
            ("alice", "events.replay", "quarantined", "just to see"),
            ("alice", "events.replay", "replayed", None),
        ] == await house.rows(
            "select actor, action, subject ->> 'result', reason from actions order by id"
        )


async def test_what_was_claimed_meanwhile_is_superseded(engine, tmp_path):
    """A copy is open although the event is claimed: it is closed, and nothing else happens."""
    async with a_picky_house(engine, tmp_path) as house:
        await house.deliver(order("evt_1", status="odd"))
        await mended(house)
        assert "applied" == await house.outcome(order("evt_1", status="odd"))
        assert [("evt_1", "superseded", 1)] == await copies(house)
        await house.run_sql("update quarantine set state = 'open'")
        before = await house.counts()
        (item,) = await replayed(house)
        assert Fate.SUPERSEDED == item["result"]
        assert [("evt_1", "superseded", 1)] == await copies(house)
        assert before == await house.counts()


async def test_two_operators_at_once_apply_it_once(engine, tmp_path):
    async with a_picky_house(engine, tmp_path) as house:
        await house.deliver(order("evt_1", status="odd", paid=True, amount=3))
        await mended(house)
        async with asyncio.TaskGroup() as both:
            asked = [both.create_task(replayed(house)) for _ in range(2)]
        fates = sorted(one.result()[0]["result"].value for one in asked)
        assert fates in (
            ["closed", "replayed"],
            ["duplicate", "replayed"],
            ["replayed", "superseded"],
        )
        assert {"outbox": 1, "resources": 1}.items() <= (await house.counts()).items()
        assert [("evt_1", "replayed", 1)] == await copies(house)


async def test_a_person_takes_the_place_of_claims_that_were_purged(engine, tmp_path):
    """An event from before the purge may have counted: it is quarantined, and a replay passes."""
    async with a_house(engine, tmp_path) as house:
        await house.run_sql("insert into purge_horizons values ('shop', '2026-12-02')")
        assert "quarantined" == await house.outcome(order("evt_1"))
        (item,) = await replayed(house)
        assert (Fate.REPLAYED, "applied") == (item["result"], item["outcome"])


async def test_many_are_replayed_in_order_and_each_by_itself(engine, tmp_path):
    """
    An outage of the user's table put four events aside. The first replay takes those of one
    fault only; one that still fails holds up no other.
    """
    async with a_picky_house(engine, tmp_path) as house:
        for number in range(3):
            await house.deliver(order(f"evt_{number}", f"ord_{number}", status="odd"))
        await house.deliver(order("evt_3", "ord_3", version="one"))
        filters = Filters(sender="shop", fault="MINE_STATUS_CHECK")
        await house.run_sql("alter table mine drop constraint mine_status_check")
        await house.run_sql("alter table mine add check (id <> 'ord_1')")

        dry = await all_of(replay_all(by_hand(house, dry_run=True), filters, limit=10))
        assert [Fate.REPLAYED, Fate.QUARANTINED, Fate.REPLAYED] == [one["result"] for one in dry]
        (first,) = await all_of(replay_all(by_hand(house), filters, limit=1))
        assert ("evt_0", Fate.REPLAYED) == (first["event_id"], first["result"])
        rest = await all_of(replay_all(by_hand(house), Filters(), limit=10))
        assert [
            ("evt_1", Fate.QUARANTINED),
            ("evt_2", Fate.REPLAYED),
            ("evt_3", Fate.QUARANTINED),
        ] == [(one["event_id"], one["result"]) for one in rest]
        assert [("ord_0",), ("ord_2",)] == await house.rows("select id from mine order by id")


async def test_a_delivery_without_an_id_is_replayed_whole_by_its_copy(engine, tmp_path):
    """The configuration had the wrong name for the list of events; mended, all of them apply."""
    async with a_house(engine, tmp_path, batches=True) as house:
        answer = await house.deliver({"items": [order("evt_1"), order("evt_2", "ord_43")]})
        assert "quarantined" == answer.json()["outcome"]
        ((id_,),) = await house.rows("select id from quarantine")
        (item,) = await replay_copy(by_hand(house), id_)
        assert (Fate.QUARANTINED, None) == (item["result"], item["event_id"])

        changed = reconfigured(tmp_path, 'items = "events"', 'items = "items"')
        items = await replay_copy(by_hand(house, changed), id_)
        assert [("evt_1", Fate.REPLAYED), ("evt_2", Fate.REPLAYED)] == [
            (one["event_id"], one["result"]) for one in items
        ]
        assert [(None, "replayed", 2)] == await copies(house)
        assert {"ord_42": 1, "ord_43": 1} == await house.held()


def reconfigured(directory, before, after):
    """The configuration of the house, changed as a person would."""
    file = directory / "reconciler.toml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    return assemble(file, environ={"SHOP_SECRET": SECRET})


async def test_what_is_not_kept_or_not_known_says_so(engine, tmp_path):
    async with a_picky_house(engine, tmp_path) as house:
        await house.deliver(order("evt_1", status="odd"))
        await house.run_sql("update quarantine set body = ''")
        (item,) = await replayed(house)
        assert (Fate.GONE, "its bytes are not kept any more") == (item["result"], item["fault"])
        with pytest.raises(ReconcilerError, match="evt_9"):
            await replayed(house, "evt_9")
        with pytest.raises(UsageError, match="there are: shop"):
            await replay_event(by_hand(house), "shopp", "evt_1")


async def test_what_nobody_wants_is_discarded_with_a_reason(engine, tmp_path):
    """Closed, it is not replayed any more; if the sender delivers it again it may be applied."""
    async with a_picky_house(engine, tmp_path) as house:
        await house.deliver(order("evt_1", status="odd"))
        hand = by_hand(house, reason="a test of theirs")
        closed = await discard(hand, sender="shop", event_id="evt_1")
        assert "apply" in str(closed["fault"]), closed
        assert [("evt_1", "discarded", 1)] == await copies(house)
        assert [("events.discard", "a test of theirs")] == await house.rows(
            "select action, reason from actions"
        )
        for again in (replayed(house), discard(hand, sender="shop", event_id="evt_1")):
            with pytest.raises(ReconcilerError, match="closed"):
                await again
        await mended(house)
        assert "applied" == await house.outcome(order("evt_1", status="odd"))


# effects that could not be rendered

BROKEN = SHOP.replace('amount = "{{{{ state.amount }}}}"', 'note = "{{{{ state.amount }}}} EUR"')
MENDED = ("{{ state.amount }} EUR", "{{ state.amount|default(0) }} EUR, was {{ previous.status }}")


@asynccontextmanager
async def an_unrendered_capture(engine, directory):
    """Order ord_42 became paid without an amount, which the template could not write."""
    async with a_house(engine, directory, configuration=BROKEN) as house:
        await house.outcome(order("evt_1", version=1, status="new"))
        await house.outcome(order("evt_2", version=2, status="paid", paid=True))
        ((state, due, reason),) = await house.rows("select state, due_at, last_error from outbox")
        assert ("pending", None) == (state, due)
        assert reason.startswith("unrendered: ")
        yield house


async def test_an_effect_is_rendered_again_as_of_then_under_its_key(engine, tmp_path):
    """
    With the template as it was it cannot be rendered still. Mended, it is, with what was held
    before and the state of then, although the order has moved on; under the key that it had. Once.
    """
    async with an_unrendered_capture(engine, tmp_path) as house:
        await house.outcome(order("evt_3", version=3, status="shipped", paid=True, amount=5))
        (item,) = await replayed(house, "evt_2")
        assert Fate.UNRENDERED == item["result"]
        assert item["fault"].startswith("unrendered: ")

        changed = reconfigured(tmp_path, *MENDED)
        before = await house.rows("select * from outbox")
        (item,) = await replayed(house, "evt_2", assembly=changed, dry_run=True)
        assert (Fate.RENDERED, before) == (item["result"], await house.rows("select * from outbox"))
        (item,) = await replayed(house, "evt_2", assembly=changed)
        assert Fate.RENDERED == item["result"]
        await house.call()
        (call,) = house.pretend.calls
        assert "shop:order:ord_42:2:capture" == call.key
        assert b"0 EUR, was new" in call.body
        assert b'"version":2' in call.body.replace(b" ", b"")
        (item,) = await replayed(house, "evt_2", assembly=changed)
        assert (Fate.DUPLICATE, 1) == (item["result"], len(house.pretend.calls))


async def test_a_correction_of_ours_is_rendered_again_too(engine, tmp_path):
    """No webhook came and there are no bytes: what was found out was kept with the effect."""
    async with a_house(engine, tmp_path, configuration=BROKEN) as house:
        house.got["ord_42"] = {"id": "ord_42", "version": 4, "status": "paid", "paid": True}
        await house.reconcile("ord_42")
        changed = reconfigured(tmp_path, "{{ state.amount }} EUR", "{{ state.amount|default(0) }}")
        hand = by_hand(house, changed)
        (item,) = await all_of(render_all(hand, Filters(sender="shop"), limit=10))
        assert Fate.RENDERED == item["result"]
        assert item["event_id"].startswith("read:")
        await house.call()
        assert ["shop:order:ord_42:4:capture"] == house.pretend.keys


async def test_after_a_restore_the_clock_of_its_key_has_begun(engine, tmp_path):
    """A future that was lost may have rendered and sent it: it goes out, and its clock runs."""
    async with an_unrendered_capture(engine, tmp_path) as house:
        for number in (1, 2):
            await house.run_sql(
                "insert into generations (number, opened_at, reason, lost_since) values"  # noqa: S608
                f" ({number}, clock_timestamp(), 'a story', now() - interval '1 hour')"
            )
        (item,) = await replayed(house, "evt_2", assembly=reconfigured(tmp_path, *MENDED))
        assert Fate.RENDERED == item["result"]
        assert [("pending", True)] == await house.rows(
            "select state, first_attempt_at < now() - interval '59 minutes' from outbox"
        )
        assert 1 == await house.call()


async def test_without_the_bytes_of_its_event_nothing_is_made_up(engine, tmp_path):
    async with an_unrendered_capture(engine, tmp_path) as house:
        changed = reconfigured(tmp_path, *MENDED)
        await house.run_sql("delete from event_bodies")
        (item,) = await replayed(house, "evt_2", assembly=changed)
        assert Fate.UNRENDERED == item["result"]
        assert "not kept any more" in item["fault"]
        assert 0 == await house.call()


async def test_what_is_not_asked_for_any_more_is_skipped(engine, tmp_path):
    """The configuration of now wants captures of shipped orders only."""
    async with an_unrendered_capture(engine, tmp_path) as house:
        changed = reconfigured(
            tmp_path, 'becomes = "state.paid"', "becomes = \"state.status == 'shipped'\""
        )
        (item,) = await replayed(house, "evt_2", assembly=changed)
        assert Fate.RENDERED == item["result"]
        assert [("skipped", "`becomes` is not true")] == await house.rows(
            "select state, last_error from outbox"
        )


async def test_what_later_calls_have_overtaken_wants_a_decision(engine, tmp_path):
    """At an ordered destination, the call for the next version was made already."""
    ordered = BROKEN.replace(
        "[destinations.payments]\n", "[destinations.payments]\nordered = true\n"
    ).replace('becomes = "state.paid"', 'when = "state.paid"')
    async with a_house(engine, tmp_path, configuration=ordered) as house:
        await house.outcome(order("evt_1", version=1, paid=True))
        await house.outcome(order("evt_2", version=2, paid=True, amount=3))
        assert 1 == await house.call()
        changed = reconfigured(tmp_path, "{{ state.amount }} EUR", "{{ state.amount|default(0) }}")
        (item,) = await replayed(house, assembly=changed)
        assert (Fate.UNRENDERED, "a later call about the same resource went out already") == (
            item["result"],
            item["fault"],
        )
        (item,) = await replayed(house, assembly=changed, out_of_order=True)
        assert Fate.RENDERED == item["result"]
        assert 1 == await house.call()
