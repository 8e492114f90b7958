"""P7, same key, same bytes, and P8, no network inside a transaction."""

import asyncio
import time

import pytest

from reconciler.proving.misbehaving_http import Answer
from tests.stories.conftest import UNHEALED
from tests.world import World, eventually, order_event

pytestmark = pytest.mark.anyio

OPEN_TRANSACTIONS = """
select count(*) from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and state like 'idle in tran%'
   and clock_timestamp() - state_change > interval '1 second'
"""  # between two statements of a short one every transaction is idle for a moment


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
    async with world.serving(*UNHEALED, **slow, **credential("first-secret")):
        await world.outcome(paid)
        await calls(world, 1)
        await world.time_passes()
        await calls(world, 2)

    text = world.config.read_text()
    changed = text.replace('reference = "capture {{ key }}"', 'reference = "changed {{ key }}"')
    world.config.write_text(changed.replace("/v1/charges", "/v2/charges"))
    await world.time_passes()
    async with world.serving(*UNHEALED, **credential("second-secret")):
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


def credential(token: str) -> dict[str, str]:
    return {"PAYMENTS_TOKEN": token}


async def calls(world: World, number: int) -> None:
    """Wait until the destination has been called so often, and the relay has noted it."""

    async def noted() -> bool:
        open_ones = await world.value("select count(*) from reconciler.outbox where call_open")
        return len(world.destination.calls) >= number and not open_ones

    await eventually(noted)


async def test_p08_no_transaction_is_open_while_others_are_waited_for(world: World):
    """The destination and the sender's API both take their time; the database is not held."""
    answering = asyncio.Event()

    async def hangs(_request: object) -> None:
        await answering.wait()

    world.sender.before = hangs
    world.destination.troubles = [Answer(delay=4)]
    async with world.serving(RECONCILER_DESTINATIONS__PAYMENTS__TIMEOUT="8s"):
        paid = order_event("evt_1", world.sender.sets("ord_1", status="paid", paid=True))
        await world.outcome(paid)

        async def under_way() -> bool:
            return bool(world.destination.calls and world.sender.requests)

        await eventually(under_way)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            await asyncio.sleep(0.1)
            assert 0 == await world.value(OPEN_TRANSACTIONS)
        assert 1 == len(world.destination.calls)
        answering.set()
        await world.effects("capture ord_1")
