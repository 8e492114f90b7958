"""Stories of passes: killed, hung, lied to and refused, and never past what was not read (P13)."""

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from reconciler.polling.report import End
from reconciler.polling.slots import Mode

from .server import Reply
from .world import Shop, a_world, ago

pytestmark = pytest.mark.anyio


def fill(shop: Shop, count: int, **fields) -> None:
    for number in range(count):
        shop.put(f"ord_{number:03}", version=1, changed=ago(minutes=count - number), **fields)


def lie_after(pages: int, *replies: Reply) -> list:
    return [*([None] * pages), *replies]


BROKEN = Reply(body=b"<html>")
DRIP = Reply(json=["x" * 100_000], drip=True)


async def test_a_pass_goes_on_where_it_failed(engine):
    """C105, P13: the third page is broken; the next run begins with it, not with the first."""
    async with a_world(engine, shop=Shop(size=10)) as world:
        fill(world.shop, 50)
        world.shop.lies = lie_after(2, BROKEN)
        report = await world.increment()
        assert (End.PAGE_BROKEN, 20) == (report.end, report.corrected)
        slot = await world.slot()
        assert (1, None) == (slot.failures, slot.watermark)
        assert slot.last_error

        asked = len(world.asked())
        report = await world.increment()
        assert (End.COMPLETED, 30) == (report.end, report.corrected)
        assert 3 == len(world.asked()) - asked
        slot = await world.slot()
        assert (0, None, None) == (slot.failures, slot.last_error, slot.checkpoint)
        assert world.shop.orders["ord_049"]["updated_at"] == slot.watermark


async def test_what_was_left_before_a_kill_still_holds_the_watermark(engine):
    """A5: the oldest item left is part of the checkpoint; forgetting it would lose it again."""
    async with a_world(engine, shop=Shop(size=2), grace="1h") as world:
        left = world.shop.put("ord_0", version=1, changed=ago(minutes=50))
        for number in range(1, 6):
            order = world.shop.put(f"ord_{number}", version=1, changed=ago(minutes=40 - number))
            await world.webhook(order)
        world.shop.lies = lie_after(1, BROKEN)
        await world.increment()
        await world.increment()

        assert left["updated_at"] == (await world.slot()).watermark


async def test_newest_first_moves_the_watermark_at_the_end(engine):
    """C107: 250 changed items, newest first, broken off: all of them are read before it moves."""
    shop = Shop(size=100, newest_first=True)
    async with a_world(engine, shop=shop, listed={"order": "newest"}) as world:
        fill(world.shop, 250)
        world.shop.lies = lie_after(1, BROKEN)
        await world.increment()
        assert (await world.slot()).watermark is None
        await world.increment()

        assert 250 == len(await world.held())
        assert world.shop.orders["ord_249"]["updated_at"] == (await world.slot()).watermark


async def test_oldest_first_moves_the_watermark_page_by_page(engine):
    """Where the order is declared, even a pass that never ends makes the next one shorter."""
    async with a_world(engine, shop=Shop(size=10), listed={"order": "oldest"}) as world:
        fill(world.shop, 30)
        world.shop.lies = lie_after(2, BROKEN)
        await world.increment()

        assert world.shop.orders["ord_019"]["updated_at"] == (await world.slot()).watermark


async def test_the_next_scan_reaches_back(engine):
    """C101, C102: what becomes visible later than its stamp says is still within the look-back."""
    async with a_world(engine, listed={"since": {"param": "updated_since",
                                                 "lookback": "5m"}}) as world:  # fmt: skip
        world.shop.put("ord_1", version=1, changed=ago(minutes=1))
        late = world.shop.put("ord_2", version=1, changed=ago(minutes=4))
        tie = world.shop.put("ord_3", version=1)
        tie["updated_at"] = world.shop.orders["ord_1"]["updated_at"]
        world.shop.hidden = {late["id"], tie["id"]}
        await world.increment()
        world.shop.hidden = set()
        report = await world.increment()

        assert 2 == report.corrected
        assert {"ord_1", "ord_2", "ord_3"} == set(await world.held())


async def test_the_watermark_is_never_in_the_future_nor_goes_back(engine):
    """B6: one item stamped far ahead does not blind the scans; a quiet one does not rewind them."""
    async with a_world(engine) as world:
        world.shop.put("ord_1", version=1, changed=ago(days=-300))
        await world.increment()
        first = (await world.slot()).watermark_ns
        assert first <= await world.value(
            "select (extract(epoch from clock_timestamp()) * 1000000000)::bigint"
        )
        del world.shop.orders["ord_1"]
        world.shop.put("ord_2", version=1, changed=ago(minutes=5))
        await world.increment()

        assert first == (await world.slot()).watermark_ns
        assert "ord_2" in await world.held()


@pytest.mark.parametrize(
    "lie",
    [
        Reply(json={"success": False, "error": {"code": "down"}}),
        Reply(body=b"<html>oops</html>"),
        Reply(status=204, body=b""),
        Reply(json={"items": []}),
        Reply(json={"data": None}),
        Reply(json={"data": {"ord_1": {}}}),
        Reply(json=[]),
        Reply(status=500),
        Reply(status=429),
        Reply(status=401),
        Reply(status=302),
        Reply(reset=True),
    ],
)
async def test_an_outage_never_looks_like_no_data(engine, lie):
    """C114: whatever is no page fails the run; nothing moves, nothing is deleted, it is retried."""
    async with a_world(engine) as world:
        await world.webhook(world.shop.put("ord_1", version=1))
        await world.increment()
        watermark = (await world.slot()).watermark
        world.shop.lies = [lie] * 4
        report = await world.increment()

        slot = await world.slot()
        assert End.COMPLETED != report.end
        assert (watermark, 1) == (slot.watermark, slot.failures)
        assert slot.due_at > slot.last_completed_at
        assert {"ord_1": 1} == await world.held()


async def test_retry_after_puts_the_next_run_off(engine):
    """C86: who asks for ten minutes gets them, though the back-off alone would be shorter."""
    async with a_world(engine) as world:
        world.shop.lies = [Reply(status=429, headers={"Retry-After": "600"})]
        report = await world.increment()

        assert End.AWAY == report.end
        wait = await world.value("select due_at - clock_timestamp() from reconciler.scans")
        assert timedelta(minutes=9) < wait < timedelta(minutes=11)
        assert 1 == len(world.asked())


@pytest.mark.parametrize("circle", [["p2"], ["p2", "p3"], ["p2", "p3", "p4"]])
async def test_the_same_page_for_ever(engine, circle):
    """C112: a listing in circles ends with an error after a few pages; the watermark stays."""
    async with a_world(engine) as world:
        order = world.shop.put("ord_1", version=1)
        count = 0

        async def answer(_request):
            nonlocal count
            count += 1
            other = {**order, "id": f"ord_{count % len(circle)}"}
            return Reply(json={"data": [other], "next_cursor": circle[count % len(circle)]})

        world.shop.answer = answer
        world.shop.lies = []
        async with a_world(engine, shop=world.shop) as lying:
            report = await lying.increment()

        assert End.PAGE_BROKEN == report.end
        assert "circles" in report.error
        assert report.pages < 15
        assert (await world.slot()).watermark is None
        assert report.corrected  # what was listed is listed


async def test_ever_new_cursors_to_the_same_page(engine):
    """C112's kin: the parameter is lost, so that each new cursor leads to the first page."""
    shop = Shop()
    async with a_world(engine, shop=shop) as world:
        order = world.shop.put("ord_1", version=1)
        cursors = iter(range(10_000))

    async def answer(_request):
        return Reply(json={"data": [order], "next_cursor": str(next(cursors))})

    shop.answer = answer
    async with a_world(engine, shop=shop) as world:
        report = await world.increment()

        assert End.PAGE_BROKEN == report.end
        assert report.pages < 30


async def test_empty_pages_for_ever(engine):
    """Empty pages that always promise more end it too."""
    shop = Shop()
    cursors = iter(range(10_000))

    async def answer(_request):
        return Reply(json={"data": [], "next_cursor": str(next(cursors))})

    shop.answer = answer
    async with a_world(engine, shop=shop) as world:
        report = await world.increment()

        assert End.PAGE_BROKEN == report.end
        assert report.pages <= 101


async def test_more_without_a_way_on(engine):
    """`has_more` true and no cursor: its own items are applied, and the run fails."""
    pagination = {"style": "cursor", "next": "next", "param": "cursor", "more": "has_more"}
    async with a_world(engine, listed={"pagination": pagination}) as world:
        order = world.shop.put("ord_1", version=1)
        world.shop.lies = [Reply(json={"data": [order], "has_more": True})]
        report = await world.increment()

        assert (End.PAGE_BROKEN, 1) == (report.end, report.corrected)
        assert (await world.slot()).watermark is None


async def test_an_expired_cursor_begins_the_pass_again_once(engine):
    """C110: the cursor has died between two runs; the pass starts over, and does not loop."""
    async with a_world(engine, shop=Shop(size=10)) as world:
        fill(world.shop, 30)
        world.shop.lies = lie_after(1, BROKEN, Reply(status=400))
        await world.increment()
        report = await world.increment()
        assert (End.COMPLETED, 3, 20) == (report.end, report.pages, report.corrected)

        world.shop.lies = lie_after(1, Reply(status=410), None, Reply(status=410))
        asked = len(world.asked())
        report = await world.scan()
        assert End.REFUSED == report.end
        assert 4 == len(world.asked()) - asked


async def test_credentials_that_fail_in_the_middle_cost_no_progress(engine):
    """A 401 is no expired cursor: the pass goes on where it was."""
    async with a_world(engine, shop=Shop(size=10)) as world:
        fill(world.shop, 30)
        world.shop.lies = lie_after(1, Reply(status=401))
        report = await world.increment()
        assert (End.REFUSED, 1) == (report.end, report.pages)
        asked = len(world.asked())
        await world.increment()

        assert 2 == len(world.asked()) - asked
        assert 30 == len(await world.held())


async def test_refused_increments_make_the_next_scan_a_full_one(engine):
    """
    C120: the sender no longer answers for so long ago. After two refusals a full scan is due, and
    its watermark replaces the old one though it is earlier.
    """
    async with a_world(engine) as world:
        world.shop.put("ord_1", version=1, changed=ago(minutes=1))
        await world.scan()
        await world.increment()
        world.shop.put("ord_1", version=2, changed=ago(hours=3))
        for _ in range(2):
            world.shop.lies = [Reply(status=422)]
            assert End.REFUSED == (await world.increment()).end
        full = await world.slot(Mode.FULL)
        assert full.due_at <= await world.value("select clock_timestamp()")

        assert 1 == (await world.scan()).corrected
        assert world.shop.orders["ord_1"]["updated_at"] == (await world.slot()).watermark
        assert (await world.slot()).checkpoint is None
        assert End.COMPLETED == (await world.increment()).end


async def test_one_refusal_is_forgiven(engine):
    """Refused, answered, refused: no full scan is due for that."""
    async with a_world(engine) as world:
        world.shop.put("ord_1", version=1)
        await world.scan()
        await world.increment()
        for _ in range(2):
            world.shop.lies = [Reply(status=422)]
            await world.increment()
            await world.increment()

        full = await world.slot(Mode.FULL)
        assert full.due_at > await world.value("select clock_timestamp() + interval '1 hour'")


async def test_a_full_scan_sets_the_incremental_watermark_forward_only(engine):
    """The full scan has read everything: incremental ones go on from there, never from before."""
    async with a_world(engine) as world:
        await world.run_sql(
            "insert into reconciler.scans (sender, kind, mode, due_at)"
            " values ('shop', 'order', 'incremental', now())"
        )
        world.shop.put("ord_1", version=1, changed=ago(hours=2))
        await world.scan()
        first = (await world.slot()).watermark
        assert world.shop.orders["ord_1"]["updated_at"] == first
        world.shop.put("ord_1", version=1, changed=ago(hours=3))
        await world.scan()

        assert first == (await world.slot()).watermark


async def test_a_hung_listing_ends_at_the_deadline(engine):
    """C128: bytes drip for ever; the run ends at its deadline, progress kept, and the next runs."""
    polling = {"deadline": "700ms"}
    async with a_world(engine, shop=Shop(size=10), polling=polling) as world:
        fill(world.shop, 30)
        world.shop.lies = lie_after(1, DRIP)
        report = await world.increment()
        assert (End.DEADLINE, 10) == (report.end, report.corrected)
        slot = await world.slot()
        assert (None, 0) == (slot.lease_until, slot.failures)
        assert slot.due_at <= await world.value("select clock_timestamp()")

        report = await world.increment()
        assert (End.COMPLETED, 20) == (report.end, report.corrected)


async def test_a_deadline_without_a_page_counts_as_a_failure(engine):
    """Nothing read within the deadline: a pause before the next try, or we would hammer it."""
    async with a_world(engine, polling={"deadline": "200ms"}) as world:
        world.shop.lies = [DRIP]
        report = await world.increment()

        assert End.DEADLINE == report.end
        slot = await world.slot()
        assert 1 == slot.failures
        assert slot.due_at > await world.value("select clock_timestamp()")


async def test_a_stop_ends_the_waiting_and_keeps_the_progress(engine):
    """SIGTERM while the sender drips: the run ends at once, and the next goes on."""
    async with a_world(engine, shop=Shop(size=10)) as world:
        fill(world.shop, 30)
        world.shop.lies = lie_after(1, DRIP)
        async with asyncio.timeout(3), asyncio.TaskGroup() as group:
            run = group.create_task(world.increment())
            await world.served.reached(2)
            world.stop.set()
        report = run.result()
        assert (End.STOPPED, 10) == (report.end, report.corrected)

        world.stop.clear()
        assert 20 == (await world.increment()).corrected


async def test_a_cancelled_run_lets_go_of_its_slot(engine):
    """Ctrl-C of a run by hand: the next one need not wait for a lease to run out."""
    async with a_world(engine) as world:
        fill(world.shop, 3)
        world.shop.lies = [DRIP]
        async with asyncio.TaskGroup() as group:
            run = group.create_task(world.increment())
            await world.served.reached(1)
            run.cancel()
        assert (await world.slot()).lease_until is None


async def test_pages_that_shift_are_read_again(engine):
    """
    C108: page-numbered by time of change; while we turn the page an item of the first moves to the
    end, and pulls one across the boundary. It is seen in a second round.
    """
    pagination = {"style": "page", "param": "page"}
    async with a_world(engine, shop=Shop(size=5, numbered=True), baseline=False,
                       listed={"pagination": pagination}) as world:  # fmt: skip
        fill(world.shop, 20)
        moved = iter(["ord_000"])

        def meanwhile() -> None:
            if key := next(moved, None):
                world.shop.put(key, version=2)

        world.shop.after_request = meanwhile
        report = await world.scan()

        assert 20 == len(await world.held())
        assert 15 == report.pages  # the second round saw something new, the third did not


async def test_a_deletion_shifts_pages_too(engine):
    """C108: no key comes twice then; a baseline is read again in any case."""
    pagination = {"style": "page", "param": "page"}
    async with a_world(engine, shop=Shop(size=5, numbered=True), baseline=False,
                       listed={"pagination": pagination}) as world:  # fmt: skip
        fill(world.shop, 20)
        world.shop.after_request = lambda: world.shop.orders.pop("ord_000", None)
        await world.scan()

        assert 20 == len(await world.held())  # also the one that is gone: a scan deletes nothing


async def test_pages_that_do_not_shift_are_read_once(engine):
    """After the baseline a full scan reads twice only what was listed twice."""
    pagination = {"style": "page", "param": "page"}
    async with a_world(engine, shop=Shop(size=5, numbered=True),
                       listed={"pagination": pagination}) as world:  # fmt: skip
        fill(world.shop, 20)
        assert 5 == (await world.scan()).pages


PROGRAM = """
import asyncio, sys
from reconciler.database import engine_for
from tests.polling.world import Shop, a_world
from reconciler.polling.slots import Mode

async def main(url, mode):
    engine = engine_for(url)
    async with a_world(engine, shop=Shop(size=10)) as world:
        for number in range(30):
            world.shop.put(f"ord_{number:03}", version=1, paid=True)
        await world.scan(Mode(mode))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("point", ["scan-after-page", "scan-before-checkpoint", "before-complete"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
async def test_a_scan_killed_anywhere_is_finished_by_the_next(engine, database_url, point, mode):
    """
    P13: SIGKILL between page, checkpoint and completion. The lease runs out by the database's
    clock, the next run goes on, and every order is charged once.
    """
    name = point if point.startswith("scan") else f"scan-{point}"
    root = Path(__file__).parents[2]
    environ = {**os.environ, "RECONCILER_TEST_CRASH_AT": name, "PYTHONPATH": str(root)}
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROGRAM, database_url, mode],
        env=environ,
        cwd=root,
        capture_output=True,
        check=False,
    )
    assert -signal.SIGKILL == killed.returncode, killed.stderr.decode()

    async with a_world(engine, shop=Shop(size=10)) as world:
        for number in range(30):
            world.shop.put(f"ord_{number:03}", version=1, paid=True)
        await world.run_sql("update reconciler.scans set lease_until = now() - interval '1 s'")
        report = await world.scan(Mode(mode))

        assert End.COMPLETED == report.end
        assert 30 == len(await world.held())
        assert 30 == len(await world.calls())
        assert 0 == await world.value("select count(*) from reconciler.fetch_requests")
        assert 2 == (await world.slot(Mode(mode))).fence
