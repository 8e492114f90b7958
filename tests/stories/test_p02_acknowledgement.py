"""P2, acknowledgement after commit: what was answered 2xx is there, whatever dies then."""

import asyncio
import base64
import json

import httpx
import psycopg
import pytest

from tests.stories.conftest import UNHEALED
from tests.world import World, eventually, order_event, refund_event

pytestmark = pytest.mark.anyio

BEFORE = ("after-claim", "after-guard", "after-react", "before-commit")
AFTER = ("after-commit",)  # the others: tests/receiver/test_crashes.py


@pytest.mark.parametrize("at", [*BEFORE, *AFTER])
async def test_p02_a_daemon_killed_in_the_middle_of_a_delivery(world: World, at: str):
    """
    kill -9 at each place that matters. The sender has no answer, and all or nothing is stored.
    It delivers again, as it would: the order has changed once, and is charged once.
    """
    event = order_event("evt_paid", world.sender.sets("ord_1", status="paid", paid=True))
    async with world.crashing(at, *UNHEALED):
        with pytest.raises(httpx.TransportError):
            await world.deliver(event)
    kept = 0 if at in BEFORE else 1
    counts = await world.counts()
    assert {kept} == {
        counts[table] for table in ("processed_events", "resources", "orders", "outbox")
    }

    async with world.serving(*UNHEALED):
        assert ("duplicate" if kept else "applied") == await world.outcome(event)
        assert "duplicate" == await world.outcome(event)
        await world.effects("capture ord_1")
        await world.settled()
    counts = await world.counts()
    assert {1} == {counts[table] for table in ("processed_events", "orders", "outbox")}
    assert 1 == len(world.destination.calls)


async def test_p02_a_daemon_killed_right_after_it_answered(world: World):
    """What was acknowledged needs nobody to deliver it again."""
    paid = order_event("evt_paid", world.sender.sets("ord_1", status="paid", paid=True))
    daemon = await world.start("--role", "receiver")
    assert "applied" == await world.outcome(paid)
    daemon.process.kill()
    await daemon.dies()
    async with world.serving(*UNHEALED):
        await world.performed("capture ord_1")


@pytest.mark.parametrize("end", ["rollback", "commit"])
async def test_p02_a_twin_in_flight_is_waited_for(world: World, end: str):
    """
    Another replica is in the middle of the same event. Answering `duplicate` before it has
    committed would lose the event when it rolls back.
    """
    async with world.serving(*UNHEALED):
        async with await psycopg.AsyncConnection.connect(world.database_url) as twin:
            await twin.execute(
                "insert into reconciler.processed_events"
                " (sender, event_id, event_type, outcome, body_digest)"
                " values ('shop', 'evt_refund', 'refund.succeeded', 'applied', 'digest')"
            )
            answer = asyncio.create_task(world.outcome(refund_event("evt_refund")))
            await blocked(world)
            assert not answer.done()
            await (twin.commit() if end == "commit" else twin.rollback())
        assert ("duplicate" if end == "commit" else "applied") == await answer
    assert (0 if end == "commit" else 1) == await world.value("select count(*) from refunds")


async def blocked(world: World) -> None:
    """Wait until a statement of the daemon waits for a lock."""

    async def waits() -> int:
        return await world.value(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and wait_event_type = 'Lock'"
        )

    await eventually(waits)


async def test_p02_a_database_that_acknowledges_before_it_is_durable_is_refused(world: World):
    """`synchronous_commit = off` loses what was answered: 78, and the message names it."""
    name = await world.value("select current_database()")
    await world.rows(f"alter database {name} set synchronous_commit = off")
    process = await world.serve(world.directory / "serve.log", *UNHEALED)
    assert 78 == await asyncio.wait_for(process.wait(), 30)
    assert "synchronous_commit" in (world.directory / "serve.log").read_text()


async def test_p02_an_answer_tells_what_was_committed(world: World):
    """The event's id and outcome, as `events show` has them afterwards."""
    event = refund_event("evt_refund")
    async with world.serving(*UNHEALED):
        answer = await world.deliver(event)
    assert {"outcome": "applied", "event_id": "evt_refund"} == answer.json()
    shown = await world.document("events", "show", "shop", "evt_refund")
    assert ("applied", "refund.succeeded") == (shown["outcome"], shown["event_type"])
    assert event == json.loads(base64.b64decode(shown["body_base64"]))
