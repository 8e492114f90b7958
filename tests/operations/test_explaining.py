"""Stories that `why` tells: each ends in the sentence that a person needed."""

import re

import pytest
from sqlalchemy import text

from reconciler.errors import UsageError
from reconciler.operations import actions
from reconciler.operations.explaining import why
from tests.cases.house import SHOP, a_house, item, order
from tests.outbox.pretend import Answers, Misbehaves, in_turn

pytestmark = pytest.mark.anyio

CLOCK = re.compile(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC")
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


async def told(house, key="ord_42", *, limit=50, **how):
    return await why(
        house.engine, house.assembly, sender="shop", kind="order", key=key, limit=limit, **how
    )


async def sentence(house, key="ord_42"):
    """The sentence, with what differs from run to run taken out."""
    said = (await told(house, key))["sentence"]
    return ID.sub("ID", CLOCK.sub("TIME", said))


def kinds(found):
    return [moment["what"] for moment in found["moments"]]


NO_SCAN = "No scan has been planned yet: `reconciler serve` plans them."


async def test_the_story_of_an_order_that_went_well_in_the_end(engine, tmp_path):
    """Created, paid, captured at the second attempt; what was lost, a scan put right."""
    async with a_house(engine, tmp_path) as house:
        house.pretend.behave = in_turn(Answers(status=503), Answers())
        await house.outcome(order("evt_1", version=1, paid=False, amount=3))
        await house.outcome(order("evt_2", version=2, status="paid", paid=True, amount=3))
        await house.outcome(order("evt_0", version=1, status="old", paid=False, amount=3))
        await house.call()
        assert (
            "ord_42 is at version 2 (paid), as a webhook told at TIME; "
            "we are waiting for its capture to be called again at TIME, after: answered 503. "
            + NO_SCAN
        ) == await sentence(house)

        await house.run_sql("update outbox set due_at = now()")
        await house.call()
        house.listed = [item(version=3, status="shipped", paid=True, amount=3)]
        await house.reconcile()
        found = await told(house)
        assert (
            "ord_42 is at version 3 (shipped), as the sender listed it at TIME; "
            "its capture was delivered at TIME at the second attempt. The next scan is due now."
        ) == re.sub(r"comes at TIME", "is due now", await sentence(house))
        assert (["event", "event", "effect", "event", "attempt", "attempt", "correction"]) == kinds(
            found
        )
        last = found["moments"][-1]["text"]
        assert 'behind, version 2 -> 3; status "paid" -> "shipped"' in last
        assert {"applied": 3, "stale": 1} == found["events"]
        assert ("3", "correction", False) == (
            found["held"]["version"],
            found["held"]["origin"],
            found["held"]["deleted"],
        )
        assert (True, 0, 1) == (found["known"], found["omitted"], found["outbox"]["delivered"])
        (shorter,) = (await told(house, limit=1))["moments"]
        assert (last, 4) == (shorter["text"], (await told(house, limit=1))["omitted"])


async def test_what_is_waited_for_is_said(engine, tmp_path):
    """A read that fails, a call that nobody answered for, and one that was refused for good."""
    async with a_house(engine, tmp_path) as house:
        house.pretend.behave = in_turn(Answers(status=400))
        await house.outcome(order("evt_1", version=1, paid=True, amount=3))
        await house.call()
        assert (
            "its capture was given up at TIME (answered 400): `reconciler outbox redrive ID`"
            in (await sentence(house))
        )
        await house.run_sql("update outbox set state = 'uncertain', last_error = 'timeout'")
        assert (
            "whether its capture was performed is uncertain (timeout): `reconciler outbox show ID`"
            in (await sentence(house))
        )
        await house.run_sql(
            "update outbox set state = 'skipped', last_error = 'baseline', completed_at = now()"
        )
        assert "its capture was not called (baseline): `reconciler outbox redrive ID`" in (
            await sentence(house)
        )
        await house.outcome(order("evt_2", version=1, status="other", paid=True, amount=3))
        await house.run_sql("update fetch_requests set last_error = 'answered 500'")
        said = await sentence(house)
        assert "we are waiting for a read of it (" in said
        assert "last error: answered 500" in said
        found = await told(house)
        assert ("request", "answered 500") == (
            found["moments"][-1]["what"],
            found["pending_read"]["last_error"],
        )
        assert "tied" in [one.get("outcome") for one in found["moments"]]


async def test_what_keeps_a_call_back_is_said(engine, tmp_path):
    """Each thing that `outbox list` says it waits for, and what a person can do about it."""
    config = SHOP.replace("[effects.capture]", 'after_dead = "hold"\n[effects.capture]').replace(
        'json = {{ amount = "{{{{ state.amount }}}}"',
        'lane = "all"\njson = {{ amount = "{{{{ state.amount }}}}"',
    )
    async with a_house(engine, tmp_path, configuration=config) as house:
        await house.outcome(order("evt_1", version=1, paid=True, amount=3))
        await house.run_sql(
            "insert into pauses values ('payments', 'capture', now(), 'ada', 'too many')"
        )
        assert (
            "we are waiting for its capture to be called; capture is paused since TIME, by ada"
            " (too many): `reconciler outbox resume --effect capture`. "
        ) in await sentence(house)

        await house.run_sql("update pauses set effect = ''")
        assert (
            "payments is paused since TIME, by ada (too many):"
            " `reconciler outbox resume --destination payments`. "
        ) in await sentence(house)

        await house.run_sql("delete from pauses")
        assert "its capture to be called; it is due. " in await sentence(house)

        house.pretend.behave = in_turn(Answers(status=400))
        await house.call()
        await house.outcome(order("evt_2", key="ord_43", version=1, paid=True, amount=3))
        found = await told(house, "ord_43")
        (head,) = (await told(house))["effects"]
        assert (
            "its capture to be called when an earlier call of its lane is through:"
            f" `reconciler outbox show {head['id']}`. "
        ) in found["sentence"]
        assert ("lane", head["id"]) == (
            found["effects"][0]["waiting_for"],
            found["effects"][0]["behind"],
        )

        await house.run_sql("update outbox set state = 'discarded' where state = 'dead'")
        await house.run_sql(
            "insert into destination_flow (destination, breaker, failures, probe_at)"
            " values ('payments', 'open', 5, now() + interval '1 minute')"
            " on conflict (destination) do update set breaker = 'open',"
            " probe_at = now() + interval '1 minute'"
        )
        assert (
            "its capture to be called; payments is not well, and is tried again at TIME. "
        ) in await sentence(house, "ord_43")

        await house.run_sql(
            "update destination_flow set breaker = 'closed', probe_at = null, tokens = 0,"
            " filled_at = now()"
        )
        assert "to be called as the rate of payments allows. " in await sentence(house, "ord_43")


async def test_what_could_not_be_written_down_of_a_delivered_call_is_said(engine, tmp_path):
    """The provider has the charge, our table has not its id: nothing else will tell of it."""
    config = SHOP.replace(
        "[effects.receipt]",
        'delivered = {{ sql = "insert into charges values (:id)", params = {{ id = "status" }} }}\n'
        "[effects.receipt]",
    )
    async with a_house(engine, tmp_path, configuration=config) as house:
        await house.outcome(order("evt_1", version=1, paid=True, amount=3))
        await house.call()
        found = await told(house)
        lost = "delivered, and effects.capture.delivered failed: UndefinedTable: "
        assert f"its capture was {lost}" in found["sentence"]
        assert f"attempt 1: {lost}" in found["moments"][-1]["text"]


async def test_what_is_in_quarantine_about_it_is_found(engine, tmp_path):
    """Quarantine knows only bytes: what names the key is read again, or told as a guess."""
    async with a_house(engine, tmp_path) as house:
        await house.run_sql("insert into purge_horizons values ('shop', '2026-12-02')")
        await house.outcome(order("evt_1", "ord_42"))
        await house.outcome(order("evt_2", "ord_4"))
        await house.outcome(order("evt_3", "ord_42", version="one"))
        await house.outcome(order("evt_4", "ord_99", note="ord_42"))
        said = await sentence(house)
        assert said.startswith("nothing is held of ord_42 yet; ")
        assert "evt_1 is in quarantine: it happened before the oldest claim" in said
        assert "evt_3 (which may be about it) is in quarantine: " in said
        assert "`reconciler events replay shop evt_1` applies it again" in said
        assert "evt_2" not in said
        assert "evt_4" not in said


async def test_what_nobody_has_seen_is_said_to_be_so(engine, tmp_path):
    async with a_house(engine, tmp_path) as house:
        found = await told(house, "ord_9")
        assert (False, [], None) == (found["known"], found["moments"], found["held"])
        assert (
            f"ord_9 was never seen: no event, no scan and no read has named it. {NO_SCAN}"
        ) == await sentence(house, "ord_9")
        await house.run_sql("update baselines set completed_at = null")
        assert "Its kind is still in its baseline. " in await sentence(house, "ord_9")
        with pytest.raises(UsageError, match="there are: order"):
            await why(engine, house.assembly, sender="shop", kind="x", key="y", limit=1)


async def test_what_is_left_to_its_webhook_is_said(engine, tmp_path):
    """A scan has seen a newer version, and grace is not over; later we have moved on."""
    async with a_house(engine, tmp_path) as house:
        await house.outcome(order("evt_1", version=1, paid=False, amount=3))
        await house.run_sql("insert into sightings values ('shop', 'order', 'ord_42', 1, now())")
        assert (
            "the listing has differed since TIME, and we are waiting for its webhook first."
        ) in await sentence(house)
        await house.outcome(order("evt_2", version=2, paid=False, amount=3))
        assert "differed" not in await sentence(house)


async def test_what_people_did_stands_in_the_story(engine, tmp_path):
    async with a_house(engine, tmp_path) as house:
        await house.outcome(order("evt_1", paid=True, amount=3))
        subject = {"sender": "shop", "kind": "order", "key": "ord_42", "effect": "capture"}
        other = {**subject, "key": "ord_43"}
        async with engine.begin() as connection:
            for about in (subject, other):
                await actions.record(
                    connection,
                    actor="alice",
                    action="outbox.redrive",
                    subject=about,
                    reason="they are back",
                )
        found = await told(house)
        (act,) = [one for one in found["moments"] if one["what"] == "act"]
        assert "alice redrove capture: they are back" == act["text"]


async def test_a_deletion_and_a_long_history(engine, tmp_path):
    """The sender says that it is gone. The last moments are told, and all are counted."""
    deleting = SHOP.replace(
        "fields = {{ status", 'deleted_on = ["order.deleted"]\nfields = {{ status'
    )
    async with a_house(engine, tmp_path, configuration=deleting) as house:
        for number in range(1, 8):
            await house.outcome(order(f"evt_{number}", version=number, paid=False, amount=3))
        await house.outcome(order("evt_8", version=8, type_="order.deleted"))
        assert (await sentence(house)).startswith(
            "ord_42 is deleted, last at version 8, as a webhook told at TIME. "
        )
        found = await told(house, limit=3)
        assert (3, 5, {"applied": 8}) == (
            len(found["moments"]),
            found["omitted"],
            found["events"],
        )
        assert "evt_8" == found["moments"][-1]["event_id"]


async def test_a_dead_entry_is_told_however_long_ago(engine, tmp_path):
    """It lies before the last moments, and is what the person is looking for."""
    async with a_house(engine, tmp_path) as house:
        house.pretend.behave = in_turn(Misbehaves("resets"))
        await house.outcome(order("evt_1", version=1, paid=True, amount=3))
        async with engine.begin() as connection:
            await connection.execute(
                text("update reconciler.outbox set state = 'dead', last_error = 'answered 400'")
            )
        for number in range(2, 9):
            paid = number % 2 == 1
            await house.outcome(order(f"evt_{number}", version=number, paid=paid, amount=3))
        found = await told(house, limit=2)
        assert "(answered 400)" in found["sentence"]
