"""`reconciler reconcile` by hand: dry runs that leave no trace, corrections, and "in sync"."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.stories.conftest import UNHEALED
from tests.world import World, order_event

pytestmark = pytest.mark.anyio

ORD_42 = ("reconcile", "shop", "order", "ord_42")


@asynccontextmanager
async def behind(world: World, *, daemon: bool) -> AsyncIterator[None]:
    """We hold ord_42 as created; at the sender it is paid. A daemon may run, or not."""
    created = order_event("evt_1", world.sender.sets("ord_42", status="created"))
    async with world.serving(*UNHEALED):
        assert "applied" == await world.outcome(created)
        if daemon:
            world.sender.sets("ord_42", status="paid", paid=True)
            yield
    if not daemon:
        world.sender.sets("ord_42", status="paid", paid=True)
        yield


def item_of(document: dict[str, Any]) -> dict[str, Any]:
    (item,) = document["items"]
    return dict(item)


@pytest.mark.parametrize("daemon", [True, False], ids=["daemon", "no daemon"])
async def test_a_dry_run_shows_everything_and_leaves_every_table_as_it_was(
    world: World, *, daemon: bool
):
    """
    It says what differs, field by field, and which effects a correction would ask for, with
    their keys. Not a row more or less in any table. The real run then does just that; a second
    one finds nothing to do.
    """
    async with behind(world, daemon=daemon):
        before = await world.counts()
        document = await world.document(*ORD_42, "--dry-run")
        assert before == await world.counts()
        item = item_of(document)
        assert document["dry_run"] is True
        assert ("shop", "order", "ord_42") == (item["sender"], item["kind"], item["key"])
        assert ("would_correct", "behind") == (item["result"], item["drift"])
        assert ("1", "2") == (item["ours"]["version"], item["theirs"]["version"])
        assert [
            {"path": "paid", "ours": False, "theirs": True},
            {"path": "status", "ours": "created", "theirs": "paid"},
        ] == sorted(item["differences"], key=lambda one: one["path"])
        key = "shop:order:ord_42:2:capture"
        asked = [{"effect": "capture", "destination": "payments", "idempotency_key": key}]
        assert asked == item["effects"]

        await world.document(*ORD_42, "--dry-run", "--exit-code", code=3)
        text = await world.command(*ORD_42, "--dry-run")
        assert 0 == text[0]
        assert key in text[1]
        assert before == await world.counts()
        assert [] == world.destination.calls

        corrected = await world.document(*ORD_42)
        item = item_of(corrected)
        assert (False, "corrected") == (corrected["dry_run"], item["result"])
        assert asked == item["effects"]
        again = item_of(await world.document(*ORD_42))
        assert ("in_sync", None, [], []) == (
            again["result"],
            again["drift"],
            again["differences"],
            again["effects"],
        )
        await world.document(*ORD_42, "--dry-run", "--exit-code")
    async with world.serving(*UNHEALED):
        await world.effects("capture ord_42")
        await world.settled()
    assert [key] == world.destination.keys
    (row,) = await world.rows("select status, status_version from orders")
    assert {"status": "paid", "status_version": 2} == row


async def test_a_dry_run_of_a_statement_that_raises_says_so_and_leaves_no_trace(world: World):
    """The user's table refuses the paid order. The dry run tells it; nothing is kept, as ever."""
    async with behind(world, daemon=True):
        await world.rows("alter table orders add constraint unpaid check (status <> 'paid')")
        before = await world.counts()
        code, out, err = await world.command(*ORD_42, "--dry-run", "--json")
        assert before == await world.counts()
        assert 1 == code
        assert "unpaid" in out + err
        assert "failed" in out

        code, out, err = await world.command(*ORD_42, "--json")
        assert 1 == code
        assert "unpaid" in out + err
        (row,) = await world.rows("select status from orders")
        assert "created" == row["status"]
        assert 1 == await world.value("select version from reconciler.resources")

        await world.rows("alter table orders drop constraint unpaid")
        assert "corrected" == item_of(await world.document(*ORD_42))["result"]
        await world.effects("capture ord_42")


async def test_a_kind_by_hand_lists_only_what_is_not_in_sync(world: World):
    """Three orders, one of them behind; a dry run of the whole kind, the run, and a second one."""
    async with world.serving(*UNHEALED):
        for number in range(3):
            data = world.sender.sets(f"ord_{number}", status="created")
            await world.outcome(order_event(f"evt_{number}", data))
        await world.document("baseline", "shop", "order")
        world.sender.sets("ord_1", status="paid", paid=True)

        before = await world.counts()
        dry = await world.document("reconcile", "shop", "order", "--dry-run")
        assert before == await world.counts()
        assert [("ord_1", "would_correct")] == results(dry)
        assert [("ord_1", "corrected")] == results(await world.document("reconcile", "shop"))
        assert [] == results(await world.document("reconcile", "shop", "order"))
        assert [] == results(await world.document("reconcile", "shop", "order", "--full"))
        await world.effects("capture ord_1")


def results(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["key"], item["result"]) for item in document["items"]]


async def test_amounts_are_numbers_in_what_is_printed(world: World):
    """Versions and ids are texts, because they may be large; a sender's 12.5 stays a number."""
    world.sender.sets("ord_42", status="created", amount=12.5)
    item = item_of(await world.document(*ORD_42, "--dry-run"))
    assert ("1", 12.5) == (item["theirs"]["version"], item["theirs"]["state"]["amount"])
    assert 12.5 in [one["theirs"] for one in item["differences"]]


async def test_a_first_run_by_hand_moves_the_watermark_without_a_daemon(world: World):
    """Nothing ever ran here: the full run says how far it was complete, the next goes on there."""
    newest = world.sender.sets("ord_1", age=3600, status="created")["updated_at"]
    for mode in ("full", "incremental"):
        (scan,) = (await world.document("reconcile", "shop", "order"))["scans"]
        assert mode == scan["mode"]
        status = await world.document("status")
        assert newest == status["senders"]["shop"]["kinds"]["order"]["watermark"]


async def test_what_the_sender_does_not_have_or_says_is_gone(world: World):
    """A tombstone for what we held and the sender answers 404 about; a second run is as calm."""
    async with behind(world, daemon=True):
        del world.sender.orders["ord_42"]
        assert "gone" == item_of(await world.document(*ORD_42))["result"]
        assert await world.rows("select 1 from reconciler.resources where deleted")
        once = await world.counts()
        await world.document(*ORD_42)
        assert once == await world.counts()


async def test_what_cannot_be_read_fails_and_changes_nothing(world: World):
    """The sender refuses our token: exit 1, and the item says why."""
    async with behind(world, daemon=True):
        before = await world.counts()
        revoked = {"SHOP_TOKEN": "revoked"}
        code, out, _ = await world.command(*ORD_42, "--json", **revoked)
        assert 1 == code
        assert '"failed"' in out
        assert before == await world.counts()
