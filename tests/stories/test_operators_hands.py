"""An operator's day: the real commands beside the real daemon."""

import getpass
import os
from typing import Any

import pytest

from reconciler.proving.misbehaving_http import Answer
from tests.stories.conftest import UNHEALED
from tests.world import World, order_event

pytestmark = pytest.mark.anyio


async def test_a_quarantined_event_is_replayed_and_its_story_told(world: World):
    """
    The user's table refused a paid order. The operator asks why, mends the table, replays; the
    running daemon captures the payment, once.
    """
    await world.rows("alter table orders add constraint odd check (status <> 'paid')")
    async with world.serving(*UNHEALED):
        event = order_event("evt_1", world.sender.sets("ord_42", status="paid", paid=True))
        assert 500 == (await world.deliver(event)).status_code
        failed = await world.document("events", "replay", "shop", "evt_1", code=1)
        assert ["quarantined"] == [one["result"] for one in failed["items"]]
        await world.rows("alter table orders drop constraint odd")

        code, out, err = await world.command(
            *("events", "replay", "--fault", "odd", "--reason", "mended"), SUDO_USER="alice"
        )
        assert 0 == code, out + err
        assert "shop evt_1  replayed: applied, order ord_42 at version 1" in out
        await world.effects("capture ord_42")
        await world.settled()
        story = await world.document("why", "shop", "order", "ord_42")
        assert story["sentence"].startswith(
            "ord_42 is at version 1 (paid), as a replayed event told at "
        )
        assert "its capture was delivered at " in story["sentence"]
        acts = [one["text"] for one in story["moments"] if one["what"] == "act"]
        me = os.environ.get("SUDO_USER") or getpass.getuser()
        assert [
            f"{me} replayed evt_1, and it still failed",
            "alice replayed evt_1: mended",
        ] == acts
    assert ["shop:order:ord_42:1:capture"] == world.destination.keys


async def test_a_dead_letter_wants_a_yes_and_goes_out_under_its_key(world: World):
    """Without a terminal nobody can be asked: exit 4, and nothing is done. With --yes it is."""
    world.destination.troubles = [Answer(status=400, body={})]
    async with world.serving(*UNHEALED):
        await world.outcome(
            order_event(
                "evt_1",
                world.sender.sets("ord_42", status="paid", paid=True),
                type_="order.created",
            )
        )
        await world.settled()
        (dead,) = await world.outbox()
        words = ("outbox", "redrive", str(dead["id"]))
        code, out, err = await world.command(*words)
        assert (4, "") == (code, out)
        assert "--yes" in err
        assert [dead] == await world.outbox()

        done: dict[str, Any] = await world.document(*words, "--yes")
        assert {"redriven": 1, "refused": 0, "matching": 1} == done["counts"]
        await world.effects("capture ord_42")
        await world.settled()
        again = await world.document(*words, "--yes", code=1)
        assert ("refused", "delivered") == (
            again["items"][0]["result"],
            again["items"][0]["refusal"],
        )
        gone = await world.document("why", "shop", "order", "ord_9\x1b[31m", code=1)
        assert gone["known"] is False
    assert 2 == len(world.destination.calls)
    assert 1 == len(set(world.destination.keys))
