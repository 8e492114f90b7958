"""P15, poison is contained: it delays nothing but itself, and is there to be seen."""

import time
from pathlib import Path

import pytest

from reconciler.proving.misbehaving_http import Answer
from tests.stories.conftest import UNHEALED
from tests.world import CONFIGURATION, World, a_world, eventually, order_event, refund_event

pytestmark = pytest.mark.anyio

BATCHES = CONFIGURATION + '\n[senders.shop.event]\nid = "id"\ntype = "type"\nitems = "events"\n'

#: A destination and an effect for what hangs, beside those for everything else.
SLOW_MAIL = """
[destinations.mail]
max_attempts = 2
base_url = "@destination@"
timeout = "3s"
concurrency = 1
allow_private = ["127.0.0.0/8"]

[effects.mail]
on = ["shop:refund.succeeded"]
destination = "mail"
request = "POST /v1/mails"
json = { reference = "mail {{ event_id }}" }
idempotency_key = "{{ event_id }}:mail"
"""


async def test_p15_a_poisoned_event_keeps_no_neighbour_waiting(tmp_path: Path, database_url: str):
    """
    Fifteen orders in one delivery, one of which your table will never take: the others are
    applied and charged with that very delivery. The one is kept, with its bytes and the reason,
    and replayed once your table is mended.
    """
    async with a_world(tmp_path, database_url, configuration=BATCHES) as world:
        await world.rows("alter table orders add constraint no_curses check (status <> 'cursed')")
        orders = [
            order_event(f"evt_{n}", world.sender.sets(f"ord_{n}", status=status, paid=True))
            for n, status in enumerate(["paid"] * 7 + ["cursed"] + ["paid"] * 7)
        ]
        once = {"RECONCILER_SENDERS__SHOP__MAX_FAILURES": "1"}
        async with world.serving(*UNHEALED, **once):
            answer = await world.deliver({"events": orders})
            outcomes = [one["outcome"] for one in answer.json().get("results", [])]
            assert ["applied"] * 7 + ["quarantined"] + ["applied"] * 7 == outcomes
            assert 200 == answer.status_code
            await world.performed(*(f"capture ord_{n}" for n in range(15) if n != 7))
        (kept,) = (await world.document("events", "list", "--outcome", "quarantined"))["items"]
        assert ("evt_7", "shop", 1) == (kept["event_id"], kept["sender"], kept["failures"])
        assert "no_curses" in kept["fault"]

        await world.rows("alter table orders drop constraint no_curses")
        await world.document("events", "replay", "shop", "evt_7")
        async with world.serving(*UNHEALED):
            await world.performed(*(f"capture ord_{n}" for n in range(15)))


async def test_p15_an_entry_that_is_refused_and_one_that_hangs_delay_no_other(
    tmp_path: Path, database_url: str
):
    """
    The first receipt is refused for good, and every mail hangs. The other receipts go out long
    before the first mail has timed out; what was refused is a dead letter with its reason.
    """
    async with a_world(tmp_path, database_url, configuration=CONFIGURATION + SLOW_MAIL) as world:

        def trouble(reference: str) -> Answer | None:
            if reference.startswith("mail"):
                return Answer(delay=30)
            return Answer(status=422) if reference == "receipt evt_0" else None

        world.destination.trouble_with = trouble
        async with world.serving(*UNHEALED):
            begun = time.monotonic()
            await world.all_at_once(refund_event(f"evt_{n}") for n in range(12))

            async def others() -> bool:
                done = [one for one in world.destination.effects if one.startswith("receipt")]
                return sorted(f"receipt evt_{n}" for n in range(1, 12)) == done

            await eventually(others)
            assert time.monotonic() - begun < 3, "they waited for a mail to time out"
            (dead,) = (await world.document("outbox", "list", "--state", "dead"))["items"]
            assert ("evt_0", "receipt", 1) == (dead["event_id"], dead["effect"], dead["attempts"])
            assert "422" in dead["last_error"]


async def test_p15_a_poisoned_item_holds_up_no_listing(world: World):
    """
    One order of the listing is beyond use: the scan corrects its neighbours, completes, and
    keeps the one where it can be seen, once however often it is listed.
    """
    for number in range(9):
        world.sender.sets(f"ord_{number}", age=3600, status="paid", paid=True)
    world.sender.orders["ord_4"]["version"] = "the fifth"
    async with world.serving("--role", "reconciler"):
        await world.baseline_over()
        await world.scans()

        async def kept() -> list[object]:
            return (await world.document("events", "list", "--outcome", "quarantined"))["items"]

        (item,) = await eventually(kept)
        assert "version" in item["fault"]
    held = await world.rows("select key from reconciler.resources order by key")
    assert [f"ord_{number}" for number in range(9) if number != 4] == [row["key"] for row in held]
