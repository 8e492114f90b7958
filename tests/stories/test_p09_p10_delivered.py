"""P9, delivered means answered, and P10, keys do not outlive their provider."""

import pytest

from reconciler.proving.misbehaving_http import Answer
from tests.stories.conftest import UNHEALED
from tests.world import World, eventually, order_event

pytestmark = pytest.mark.anyio

BEFORE_THE_CALL = ("relay-after-lease", "relay-before-send")
AFTER_THE_CALL = ("relay-after-send", "relay-before-mark")
AFTER_THE_MARK = ("relay-after-mark",)


@pytest.mark.parametrize("idempotent", [True, False], ids=["keys", "no keys"])
@pytest.mark.parametrize("at", [*BEFORE_THE_CALL, *AFTER_THE_CALL, *AFTER_THE_MARK])
async def test_p09_a_relay_killed_at_any_place(world: World, at: str, *, idempotent: bool):
    """
    kill -9 on either side of the call and of the mark; another daemon goes on. A destination
    that honours keys is called again under the same one, and performs it once. One that does
    not is never called twice: unless the mark was made, a person has to look.
    """
    world.destination.idempotent = idempotent
    said = {"RECONCILER_DESTINATIONS__PAYMENTS__IDEMPOTENT": str(idempotent).lower()}
    paid = order_event("evt_1", world.sender.sets("ord_1", status="paid", paid=True))
    async with world.serving("--role", "receiver", **said):
        await world.outcome(paid)
    await world.dies_at(at, "--role", "relay", **said)

    called = 0 if at in BEFORE_THE_CALL else 1
    assert called == len(world.destination.calls)
    await world.time_passes()
    async with world.serving("--role", "relay", **said):
        await world.settled()
    (entry,) = await world.outbox()
    if idempotent or at in AFTER_THE_MARK:
        assert ("delivered", None) == (entry["state"], entry["last_error"])
        assert ["capture ord_1"] == world.destination.effects
        assert 1 == len(set(world.destination.keys))
    else:
        assert ("uncertain", 1) == (entry["state"], entry["attempts"])
        assert called == len(world.destination.calls)


@pytest.mark.parametrize(
    ("trouble", "state"),
    [
        (Answer(status=302, headers={"Location": "/elsewhere"}), "pending"),
        (Answer(status=503), "pending"),
        (Answer(lost=True), "pending"),
        (Answer(status=400), "dead"),
    ],
    ids=["redirect", "503", "no answer", "400"],
)
async def test_p09_nothing_but_a_success_is_delivered(world: World, trouble: Answer, state: str):
    """What the daemon says of an entry after one call that was no success."""
    world.destination.troubles = [trouble]
    paid = order_event("evt_1", world.sender.sets("ord_1", status="paid", paid=True))
    patient = {"RECONCILER_RELAY__BACKOFF_BASE": "10m", "RECONCILER_RELAY__BACKOFF_CAP": "1h"}
    async with world.serving(*UNHEALED, **patient):
        await world.outcome(paid)
        await attempted(world)
        (entry,) = (await world.document("outbox", "list"))["items"]
    assert (state, 1) == (entry["state"], entry["attempts"])
    assert 1 == len(world.destination.calls)


async def attempted(world: World) -> None:
    """Wait until one call has been answered, or not, and that has been noted."""

    async def noted() -> int:
        return await world.value(
            "select count(*) from reconciler.outbox_attempts where finished_at is not null"
        )

    await eventually(noted)


async def test_p10_a_key_that_the_provider_may_have_forgotten_is_not_used_again(world: World):
    """
    The call was performed, its answer was lost, and the relay was down for longer than the
    provider remembers keys. A second call would be a second charge: it is `uncertain`.
    """
    world.destination.troubles = [Answer(lost=True)]
    patient = {"RECONCILER_RELAY__BACKOFF_BASE": "10m", "RECONCILER_RELAY__BACKOFF_CAP": "1h"}
    paid = order_event("evt_1", world.sender.sets("ord_1", status="paid", paid=True))
    async with world.serving(*UNHEALED, **patient):
        await world.outcome(paid)
        await attempted(world)
    await world.time_passes(hours=24)
    async with world.serving(*UNHEALED):
        await world.settled()
    (entry,) = await world.outbox()
    assert "uncertain" == entry["state"]
    assert 1 == len(world.destination.calls)


async def test_p10_within_its_lifetime_the_key_is_used(world: World):
    """The same outage, but a shorter one: the call is repeated, and performed once."""
    world.destination.troubles = [Answer(lost=True)]
    patient = {"RECONCILER_RELAY__BACKOFF_BASE": "10m", "RECONCILER_RELAY__BACKOFF_CAP": "1h"}
    paid = order_event("evt_1", world.sender.sets("ord_1", status="paid", paid=True))
    async with world.serving(*UNHEALED, **patient):
        await world.outcome(paid)
        await attempted(world)
    await world.time_passes(hours=20)
    async with world.serving(*UNHEALED):
        await world.settled()
    assert ["capture ord_1"] == world.destination.effects
    assert 2 == len(world.destination.calls)
    (entry,) = await world.outbox()
    assert "delivered" == entry["state"]
