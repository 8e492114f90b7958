"""Stories of scans: what was lost is found, once, and what the listing only seems to say is not."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from reconciler.polling.report import End
from reconciler.polling.slots import Mode

from .server import Reply
from .world import Shop, a_world, ago, stamp, statements

pytestmark = pytest.mark.anyio


async def test_a_lost_webhook_is_made_good(engine):
    """P12: the order is paid, its webhook never arrives; the scan finds out, once, and charges."""
    async with a_world(engine) as world:
        await world.webhook(world.shop.put("ord_1", version=1))
        world.shop.put("ord_1", version=2, paid=True)

        report = await world.scan()
        assert (End.COMPLETED, 1, 0) == (report.end, report.corrected, report.in_sync)
        correction = (await world.rows("select * from reconciler.corrections"))[0]
        assert ("behind", 1, 2) == (
            correction.drift,
            correction.old_version,
            correction.new_version,
        )
        assert report.run_id == correction.run_id

        report = await world.scan()
        assert (0, 1) == (report.corrected, report.in_sync)
        assert {"ord_1": 2} == await world.held()
        assert ["ord_1"] == await world.calls()


@pytest.mark.parametrize("first", ["scan", "webhook", "both"])
async def test_correction_and_late_webhook_have_one_effect(engine, first):
    """C119: whoever comes first charges; the other one finds that it is so already."""
    async with a_world(engine) as world:
        order = world.shop.put("ord_1", version=7, paid=True)
        if first == "webhook":
            await world.webhook(order)
        await world.scan()
        late = await world.webhook(order, id_="evt_7")

        assert ["ord_1"] == await world.calls()
        assert ("late" if first != "webhook" else "stale") == late.outcome


async def test_a_young_change_is_left_for_its_webhook_and_holds_the_watermark(engine):
    """
    A5: ord_old changed first and its webhook is still on its way; ord_new changed after it, long
    enough... the watermark does not pass what was left, so the next scan sees it again.
    """
    async with a_world(engine, grace="1m") as world:
        left = world.shop.put("ord_left", version=1, changed=ago(seconds=30))
        world.shop.put("ord_old", version=1, changed=ago(minutes=5))
        world.shop.put("ord_known", version=1, changed=ago(seconds=10))
        await world.webhook(world.shop.orders["ord_known"])

        report = await world.increment()
        assert (1, 1, 1) == (report.corrected, report.left, report.in_sync)
        assert {"ord_old": 1, "ord_known": 1} == await world.held()
        assert left["updated_at"] == (await world.slot()).watermark

        await world.run_sql(
            "update reconciler.sightings set seen_at = seen_at - interval '1 minute'"
        )
        report = await world.increment()
        assert (1, 0) == (report.corrected, report.left)
        assert world.shop.orders["ord_known"]["updated_at"] == (await world.slot()).watermark


async def test_the_webhook_of_what_was_left_needs_no_correction(engine):
    """Within grace the webhook arrives: nothing was corrected, and it is plainly applied."""
    async with a_world(engine, grace="1m") as world:
        order = world.shop.put("ord_1", version=1, paid=True)
        await world.increment()

        assert "applied" == (await world.webhook(order)).outcome
        assert [] == await world.rows("select * from reconciler.corrections")


async def test_without_times_drift_is_corrected_once_it_has_stood_for_grace(engine):
    """No changed_at: the first sight is noted, and counts from then; a person does not wait."""
    async with a_world(engine, grace="1m", listed={"changed_at": None, "since": None}) as world:
        world.shop.put("ord_1", version=1)
        world.shop.put("ord_2", version=1)
        report = await world.scan()
        assert (0, 2) == (report.corrected, report.left)

        await world.run_sql(
            "update reconciler.sightings set seen_at = seen_at - interval '1 minute'"
            " where key = 'ord_1'"
        )
        report = await world.scan()
        assert (1, 1) == (report.corrected, report.left)
        report = await world.scan(by_person=True)
        assert (1, 0) == (report.corrected, report.left)
        assert 0 == await world.value("select count(*) from reconciler.sightings")


async def test_what_moves_on_is_sighted_anew(engine):
    """Our row caught up in between: its being behind again has not stood for grace yet."""
    async with a_world(engine, grace="1m", listed={"changed_at": None}) as world:
        await world.webhook(world.shop.put("ord_1", version=1))
        second = world.shop.put("ord_1", version=2)
        await world.scan()
        await world.run_sql("update reconciler.sightings set seen_at = seen_at - interval '1 h'")
        await world.webhook(second)
        world.shop.put("ord_1", version=3)
        report = await world.scan()

        assert (0, 1) == (report.corrected, report.left)


async def test_a_lagging_listing_changes_nothing(engine):
    """C117: our webhook brought v5, the listing still has v4, next time v5."""
    async with a_world(engine) as world:
        world.shop.put("ord_1", version=5, paid=True)
        await world.webhook(world.shop.orders["ord_1"])
        world.shop.put("ord_1", version=4)
        before = await world.counts()
        report = await world.scan()
        assert (1, 0) == (report.ahead, report.corrected)
        world.shop.put("ord_1", version=5, paid=True)
        report = await world.scan()

        assert (0, 1) == (report.ahead, report.in_sync)
        assert {**before, "scans": 1} == await world.counts()
        assert {"ord_1": 5} == await world.held()


async def test_of_a_hundred_items_one_is_corrected(engine):
    """C44: a page of which all but one is known makes one correction and one call."""
    async with a_world(engine) as world:
        for number in range(100):
            await world.webhook(world.shop.put(f"ord_{number}", version=1))
        world.shop.put("ord_50", version=2, paid=True)
        report = await world.scan()

        assert (100, 1, 99) == (report.items, report.corrected, report.in_sync)
        assert ["ord_50"] == await world.calls()
        assert 1 == await world.value("select count(*) from reconciler.corrections")


@pytest.mark.parametrize("versions", [(3, 4), (4, 3)])
async def test_one_key_twice_on_a_page(engine, versions):
    """C56: the newest of both is taken, in either order, and its neighbours are applied."""
    async with a_world(engine) as world:
        twice = [
            {"id": "ord_1", "version": version, "status": "open", "paid": version == 4,
             "amount": 5, "updated_at": stamp(ago(hours=1)), "created_at": stamp(ago(hours=1))}
            for version in versions
        ]  # fmt: skip
        other = {**twice[0], "id": "ord_2", "paid": False}
        world.shop.lies = [Reply(json={"data": [twice[0], other, twice[1]]})]
        report = await world.scan()

        assert (2, 2) == (report.items, report.corrected)
        assert {"ord_1": 4, "ord_2": versions[0]} == await world.held()
        assert ["ord_1"] == await world.calls()


async def test_a_poisoned_item_is_kept_once_and_holds_nothing(engine):
    """C20, P15: NUL, a missing key, a bad version; neighbours are applied, the watermark moves."""
    async with a_world(engine) as world:
        good = world.shop.put("ord_1", version=1, changed=ago(hours=1))
        bad = [
            {**good, "id": "ord_2", "status": "a\u0000b"},
            {**good, "id": None},
            {**good, "id": "ord_4", "version": True},
            {**good, "id": "x" * 600},
            "ord_5",
        ]
        for _ in range(2):
            world.shop.lies = [Reply(json={"data": [bad[0], good, *bad[1:]]})]
            report = await world.increment()
            assert (End.COMPLETED, 5) == (report.end, report.quarantined)

        assert {"ord_1": 1} == await world.held()
        kept = await world.rows("select * from reconciler.quarantine")
        assert 5 == len(kept)
        assert {2} == {row.failures for row in kept}
        assert all(row.fault for row in kept)
        assert b'"a\\u0000b"' in b"".join(row.body for row in kept)
        assert good["updated_at"] == (await world.slot()).watermark


async def test_a_failing_statement_of_the_users_delays_nothing_but_its_own_item(engine):
    """P15: `apply` refuses one order; the others are corrected, and the pass goes on."""
    statement = {
        "on_change": ["order"],
        "sql": "insert into amounts values (:key, :amount)",
        "params": {"key": "key", "amount": "state.amount"},
    }
    async with a_world(engine, apply=(statement,)) as world:
        await world.run_sql("create table amounts (key text, amount int check (amount < 5000))")
        world.shop.size = 2
        for number in range(6):
            world.shop.put(f"ord_{number}", version=1, amount=9000 if number == 2 else 10)
        report = await world.increment()

        assert (End.COMPLETED, 3, 5, 1) == (
            report.end,
            report.pages,
            report.corrected,
            report.failed,
        )
        assert 5 == await world.value("select count(*) from amounts")
        # it is tried again, by a read that backs off
        assert ["ord_2"] == [
            row.key for row in await world.rows("select key from reconciler.fetch_requests")
        ]


async def test_a_statement_without_an_end_delays_nothing_but_its_own_item(engine):
    """
    P15: for one order the user's statement never ends. That is not taken for an outage, which the
    scan would meet again each time: the order is left to a read, and the pass goes on.
    """
    statement = {
        "on_change": ["order"],
        "sql": "select pg_sleep(case when :key = 'ord_0' then 600 else 0 end)",
        "params": {"key": "key"},
    }
    async with a_world(engine, apply=(statement,)) as world:
        world.shop.size = 1
        for number in range(2):
            world.shop.put(f"ord_{number}", version=1)
        report = await world.scan()

        assert (End.COMPLETED, 1, 1) == (report.end, report.corrected, report.failed)
        assert {"ord_1": 1} == await world.held()
        assert ["ord_0"] == [
            row.key for row in await world.rows("select key from reconciler.fetch_requests")
        ]


async def test_what_fails_without_a_get_holds_the_watermark(engine):
    """Without a read to try it again, the next scan must see it again."""
    statement = {
        "on_change": ["order"],
        "sql": "insert into amounts values (:key, :amount)",
        "params": {"key": "key", "amount": "state.amount"},
    }
    async with a_world(engine, get=False, apply=(statement,)) as world:
        await world.run_sql("create table amounts (key text, amount int check (amount < 5000))")
        world.shop.put("ord_1", version=1, amount=9000, changed=ago(minutes=50))
        world.shop.put("ord_2", version=1, changed=ago(minutes=5))
        report = await world.increment()
        assert (1, 1) == (report.corrected, report.failed)
        await world.run_sql("alter table amounts drop constraint amounts_amount_check")
        report = await world.increment()

        assert (1, 0) == (report.corrected, report.failed)
        assert {"ord_1": 1, "ord_2": 1} == await world.held()


async def test_a_row_that_somebody_holds_locked_delays_only_itself(engine):
    """P15: a transaction of somebody's sits on one order; the rest of its page is corrected."""
    async with a_world(engine) as world:
        for number in range(4):
            await world.webhook(world.shop.put(f"ord_{number}", version=1))
            world.shop.put(f"ord_{number}", version=2)
        async with engine.connect() as other, other.begin():
            await other.execute(
                text("select 1 from reconciler.resources where key = 'ord_1' for update")
            )
            report = await world.scan()

        assert (End.COMPLETED, 3, 1) == (report.end, report.corrected, report.failed)
        assert {"ord_0": 2, "ord_1": 1, "ord_2": 2, "ord_3": 2} == await world.held()
        assert ["ord_1"] == [
            row.key for row in await world.rows("select key from reconciler.fetch_requests")
        ]


async def test_a_conflict_asks_for_a_read(engine):
    """C47: an equal version with other content is settled by a `get`, not by the listing."""
    async with a_world(engine) as world:
        await world.webhook(world.shop.put("ord_1", version=1, status="open"))
        world.shop.put("ord_1", version=1, status="paid")
        report = await world.scan()

        assert (0, 1) == (report.corrected, report.asked)
        assert ["ord_1"] == [
            row.key for row in await world.rows("select key from reconciler.fetch_requests")
        ]


async def test_an_observed_kind_writes_only_what_differs(engine):
    """Without versions the start of the read is one; equal content is in sync."""
    kind = {"version": {"kind": "observed"}}
    async with a_world(engine, kind=kind, get=False, effects={}) as world:
        world.shop.put("ord_1", version=1)
        assert 1 == (await world.scan()).corrected
        before = await world.rows("select version from reconciler.resources")
        assert (0, 1) == ((report := await world.scan()).corrected, report.in_sync)
        assert before == await world.rows("select version from reconciler.resources")

        world.shop.put("ord_1", version=1, status="shipped")
        assert 1 == (await world.scan()).corrected
        assert before < await world.rows("select version from reconciler.resources")


async def test_a_page_without_drift_writes_only_its_progress(engine):
    """A scan of what is in sync takes one comparison and one update a page."""
    async with a_world(engine) as world:
        world.shop.size = 10
        for number in range(50):
            world.shop.put(f"ord_{number:02}", version=1)
        await world.scan()
        with statements(engine) as few:
            await world.scan()
        for number in range(50, 100):
            world.shop.put(f"ord_{number:02}", version=1)
        await world.scan()
        with statements(engine) as many:
            await world.scan()

        assert 5 * 2 == len(many) - len(few)  # comparison, progress
        tables = {
            one.split("reconciler.")[1].split()[0]
            for one in many
            if one.startswith(("INSERT", "UPDATE", "DELETE"))
        }
        assert {"scans", "sightings", "baselines"} == tables  # the last two once, at the end
        assert 0 == await world.value("select count(*) from reconciler.sightings")


async def test_pages_by_number(engine):
    """A page-numbered listing is read to its empty page."""
    pagination = {"style": "page", "param": "page"}
    async with a_world(engine, shop=Shop(size=3, numbered=True),
                       listed={"pagination": pagination}) as world:  # fmt: skip
        for number in range(7):
            world.shop.put(f"ord_{number}", version=1)
        report = await world.scan()

        assert (7, 4) == (report.corrected, report.pages)
        assert ["1", "2", "3", "4"] == [query["page"] for query in world.asked()]


async def test_history_fires_nothing_and_changes_meanwhile_do(engine):
    """
    P20: switched on beside a thousand old paid orders; some change while the baseline runs, one
    is created and paid. State is complete, only the new one is charged. Afterwards an order
    is paid and its webhook is lost: one charge more.
    """
    async with a_world(engine, baseline=False) as world:
        for number in range(1000):
            paid = number % 10 != 0
            world.shop.put(f"ord_{number:04}", version=3, paid=paid, changed=ago(days=30))
        busy = iter(range(0, 1000, 100))

        def meanwhile() -> None:
            number = next(busy, None)
            if number is not None:
                old = world.shop.orders[f"ord_{number + 1:04}"]
                world.shop.put(old["id"], version=4, status="shipped")

        world.shop.after_request = meanwhile
        world.shop.put("ord_new", version=1, paid=True, created_at=stamp(datetime.now(UTC)))
        report = await world.scan()
        assert End.COMPLETED == report.end
        assert ["ord_new"] == await world.calls()
        assert 1001 == len(await world.held())
        assert await world.value("select completed_at is not null from reconciler.baselines")

        world.shop.after_request = None
        world.shop.put("ord_0000", version=4, paid=True)
        await world.increment()
        assert ["ord_0000", "ord_new"] == await world.calls()
        assert 899 < len(await world.calls("skipped"))


async def test_a_kind_without_since_is_always_scanned_in_full(engine):
    """There is no incremental slot, and the full one is due after an interval."""
    async with a_world(engine, listed={"since": None, "interval": "7s"}) as world:
        assert (Mode.FULL,) == world.source.modes
        world.shop.put("ord_1", version=1)
        await world.scan()
        due_in = await world.value(
            "select due_at - last_completed_at from reconciler.scans where mode = 'full'"
        )

        assert timedelta(seconds=6) < due_in < timedelta(seconds=8)
        assert world.shop.orders["ord_1"]["updated_at"] == (await world.slot(Mode.FULL)).watermark


async def test_the_watermark_has_the_senders_digits(engine):
    """Three digits in, three digits out; whole seconds stay whole seconds."""
    async with a_world(engine) as world:
        world.shop.put("ord_1", version=1, changed=ago(hours=1))
        world.shop.orders["ord_1"]["updated_at"] = "2026-01-01T11:00:00.120+01:00"
        await world.increment()
        assert "2026-01-01T10:00:00.120Z" == (await world.slot()).watermark
        world.shop.orders["ord_1"]["updated_at"] = "2026-01-01T10:00:01Z"
        await world.increment()
        assert "2026-01-01T10:00:01Z" == (await world.slot()).watermark
        await world.increment()
        assert "2026-01-01T09:50:01Z" == world.asked()[-1]["updated_since"]


@pytest.mark.parametrize(
    "listed", [{}, {"changed_at": None, "since": None}], ids=["dated", "undated"]
)
async def test_grace_makes_no_news_of_history(engine, listed):
    """
    P20: paid years ago, and in the listing nothing shows when it changed, or it changed just now.
    The first full scan takes it down in spite of grace: left for a webhook that nobody sends, it
    would be news to the scan after the baseline, and charged.
    """
    kind = {"created_at": None} if listed else {}
    async with a_world(engine, baseline=False, grace="10m", listed=listed, kind=kind) as world:
        world.shop.put("ord_old", version=3, paid=True, created_at=stamp(ago(days=900)))

        first = await world.scan()
        assert (End.COMPLETED, 1, 0) == (first.end, first.corrected, first.left)
        await world.scan(by_person=True)
        assert [] == await world.calls()
        assert ["ord_old"] == await world.calls("skipped")

        world.shop.put("ord_new", version=1, paid=True)
        after = await world.scan()
        assert (0, 1) == (after.corrected, after.left)
