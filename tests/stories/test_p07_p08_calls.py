"""P7, same key, same bytes, and P8, no network inside a transaction."""

import asyncio

import pytest

from reconciler.proving.misbehaving_http import Answer
from tests.stories.conftest import UNHEALED
from tests.world import World, order_event

pytestmark = pytest.mark.anyio

OPEN_TRANSACTIONS = """
select count(*) from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and state like 'idle in tran%%'
"""


async def test_p07_attempts_are_alike_over_a_restart_with_another_configuration(world: World):
    """
    The destination performs the call and loses its answer. Before the next attempt the daemon is
    stopped, the template of the body is changed and so is the credential. What goes out again
    are the old bytes under the old key, with the new credential, which is stored nowhere.
    """
    file = world.config.read_text()
    world.config.write_text(
        file.replace('timeout = "3s"', 'timeout = "3s"\nbearer = "env:PAYMENTS_TOKEN"')
    )
    world.destination.troubles = [Answer(status=503), Answer(lost=True)]
    paid = order_event("evt_1", world.sender.sets("ord_1", status="paid", paid=True))
    slow = {"RECONCILER_RELAY__BACKOFF_BASE": "30s", "RECONCILER_RELAY__BACKOFF_CAP": "60s"}
    async with world.serving(*UNHEALED, PAYMENTS_TOKEN="first-secret", **slow):
        await world.outcome(paid)
        await calls(world, 1)
        await world.time_passes()
        await calls(world, 2)

    text = world.config.read_text()
    changed = text.replace('reference = "capture {{ key }}"', 'reference = "changed {{ key }}"')
    world.config.write_text(changed.replace("/v1/charges", "/v2/charges"))
    await world.time_passes()
    async with world.serving(*UNHEALED, PAYMENTS_TOKEN="second-secret"):
        await calls(world, 3)
        await world.settled()

    sent = [
        (call.method, call.path, call.headers["idempotency-key"], call.body)
        for call in world.destination.calls
    ]
    assert [sent[0]] * 3 == sent
    assert ["Bearer first-secret", "Bearer first-secret", "Bearer second-secret"] == [
        call.headers["authorization"] for call in world.destination.calls
    ]
    assert ["capture ord_1"] == world.destination.effects
    (entry,) = await world.outbox()
    assert ("delivered", 3, sent[0][3]) == (entry["state"], entry["attempts"], entry["body"])
    stored = await world.value("select string_agg(o::text, ' ') from reconciler.outbox o")
    assert "secret" not in stored


async def calls(world: World, number: int) -> None:
    """Wait until the destination has been called so often, and the relay has noted it."""
    async with asyncio.timeout(20):
        while len(world.destination.calls) < number or await world.value(
            "select count(*) from reconciler.outbox where call_open"
        ):
            await asyncio.sleep(0.02)


async def test_p08_no_transaction_is_open_while_others_are_waited_for(world: World):
    """The destination and the sender's API both take their time; the database is not held."""
    answering = asyncio.Event()

    async def hangs(_request: object) -> None:
        await answering.wait()

    world.sender.before = hangs
    world.destination.troubles = [Answer(delay=2.5)]
    async with world.serving():
        paid = order_event("evt_1", world.sender.sets("ord_1", status="paid", paid=True))
        await world.outcome(paid)
        async with asyncio.timeout(20):
            while not (world.destination.calls and world.sender.requests):
                await asyncio.sleep(0.02)
        for _ in range(20):
            assert 0 == await world.value(
                "select count(*) from pg_locks l join pg_database d on d.oid = l.database"
                " where d.datname = current_database() and l.pid <> pg_backend_pid()"
                " and l.locktype = 'transactionid' and l.granted"
                " and l.pid in (select pid from pg_stat_activity where state like 'idle in t%%')"
            )
            assert 0 == await world.value(OPEN_TRANSACTIONS + " and now() - xact_start > '1s'")
        assert 1 == len(world.destination.calls)
        answering.set()
        await world.effects("capture ord_1")
