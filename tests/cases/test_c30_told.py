"""C30, C114 and what is like them: failures that make no noise are told of, once."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import relay
from reconciler.daemon_generation import watch_over
from reconciler.ledger.following import Following
from reconciler.operations.silence import SilenceWatch
from reconciler.transactions import transact
from tests.cases.house import POLICY, House, a_house, item, order
from tests.outbox.pretend import Answers

pytestmark = pytest.mark.anyio

ALERTS = """
[destinations.desk]
base_url = "http://127.0.0.1:9"
allow_private = ["127.0.0.0/8"]

[effects.told]
on = ["reconciler:{what}"]
destination = "desk"
request = "POST /alerts"
json = "{{{{ body }}}}"
{more}
"""

HELD = """
[destinations.letters]
base_url = "http://127.0.0.1:9"
allow_private = ["127.0.0.0/8"]
idempotent = false

[effects.kept]
on = ["shop:order.updated"]
if_stale = "count"
destination = "letters"
request = "POST /kept"
"""

TOLD = (
    "select event_id, convert_from(body, 'utf8')::jsonb from outbox"
    " where sender = 'reconciler' and effect = 'told' order by id"
)


def alerts(what: str, more: str = "") -> str:
    return ALERTS.format(what=what, more=more)


async def not_json(house: House) -> None:
    await house.deliver(b"no json")


async def an_id_of_ours(house: House) -> None:
    await house.deliver(order("read:order:ord_42:1"))


async def no_version(house: House) -> None:
    await house.deliver(order("evt_1", version="seven"))


async def a_failing_statement(house: House) -> None:
    await house.run_sql("alter table resources add constraint no_more check (false) not valid")
    await house.deliver(order("evt_1"))


async def an_item_beyond_use(house: House) -> None:
    house.listed = [item("ord_1", version="seven")]
    await house.reconcile()


@pytest.mark.parametrize(
    "happens", [not_json, an_id_of_ours, no_version, a_failing_statement, an_item_beyond_use]
)
async def test_what_goes_to_quarantine_is_told_once_an_hour(
    engine: AsyncEngine, tmp_path: Path, happens: Callable[[House], Any]
) -> None:
    """Whatever put it there, and however often it happens: the desk is called once."""
    async with a_house(engine, tmp_path, more=alerts("quarantined")) as house:
        await happens(house)
        await house.deliver(b"no json either")
        assert 2 == await kept(house)
        told = await house.rows(TOLD)
        assert 1 == len(told)
        ((event_id, body),) = told
        assert event_id.startswith("quarantined:shop:")
        assert ("shop", 1) == (body["sender"], body["failures"])
        assert body["reason"]


async def kept(house: House) -> int:
    ((count,),) = await house.rows("select count(*) from quarantine")
    return int(count)


async def test_what_is_in_no_quarantine_is_not_told_to_be(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """The copy and the alert are one transaction: a trial, rolled back, leaves neither."""
    async with a_house(engine, tmp_path, more=alerts("quarantined")) as house:
        (tried,) = await house.tried(order("read:order:ord_42:1"))
        assert "quarantined" == tried["outcome"]
        assert [] == await house.rows(TOLD)


async def test_a_scan_that_fails_is_told_once_an_hour(engine: AsyncEngine, tmp_path: Path) -> None:
    """The listing answers 200 with an error inside, twice; one call says which and why."""
    async with a_house(engine, tmp_path, more=alerts("scan_failed")) as house:
        house.listed = [b"{"]
        await house.reconcile()
        await house.reconcile()
        ((event_id, body),) = await house.rows(TOLD)
        assert event_id.startswith("scan_failed:shop:order:full:")
        assert "page_broken" == body["end"]
        assert ("shop", "order", "full") == (body["sender"], body["kind"], body["mode"])
        assert 1 == body["failures"]
        assert body["reason"]


async def test_an_alert_may_wait_for_the_second_failure(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """`when` refuses the first: the hour is not used up by what was not told."""
    patient = alerts("scan_failed", "when = 'body.failures == 2'")
    async with a_house(engine, tmp_path, more=patient) as house:
        house.listed = [b"{"]
        await house.reconcile()
        assert [] == await house.rows(TOLD)
        await house.reconcile()
        ((_, body),) = await house.rows(TOLD)
        assert 2 == body["failures"]


class Hours:
    """A clock that has run for some hours whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 7200
        return self.now


def listening(house: House, after: timedelta | None = None) -> SilenceWatch:
    return SilenceWatch(
        engine=house.engine,
        rules=house.assembly.rules,
        silent_after={"shop": after},
        clock=Hours(),
    )


async def silent(watch: SilenceWatch) -> bool:
    return await transact(watch.engine, partial(watch.look, sender="shop"))


async def two_hours_pass(house: House) -> None:
    await house.run_sql("update processed_events set processed_at = processed_at - interval '2h'")
    await house.run_sql("update quarantine set last_seen_at = last_seen_at - interval '2h'")
    await house.run_sql("update baselines set completed_at = completed_at - interval '2h'")


async def test_a_sender_that_fell_silent_is_told_once_until_it_speaks_again(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    The shop has switched our endpoint off. A quiet shop looks the same, until a scan finds what
    it should have delivered: then it is told, by both replicas together once. It speaks, falls
    silent again, and is told again.
    """
    async with a_house(engine, tmp_path, more=alerts("sender_silent")) as house:
        one, other = listening(house), listening(house)
        await house.outcome(order("evt_1"))
        await two_hours_pass(house)
        assert not await silent(one)
        house.listed = [item(version=2)]
        await house.reconcile()
        async with asyncio.TaskGroup() as both:
            looks = [both.create_task(silent(watch)) for watch in (one, other, one)]
        assert [True, True, True] == [look.result() for look in looks]
        told = await house.rows(TOLD)
        assert 1 == len(told)
        ((_, body),) = told
        assert ("shop", 1) == (body["sender"], body["corrections"])
        assert body["last_delivery_at"]
        await house.outcome(order("evt_3", version=3))
        assert not await silent(one)
        await two_hours_pass(house)
        house.listed = [item(version=4)]
        await house.reconcile()
        assert await silent(other)
        assert 2 == len(await house.rows(TOLD))


async def test_a_sender_with_a_limit_of_its_own_needs_no_scan_to_be_silent(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """`silent_after` says how long it may be quiet; one that never spoke is told of too."""
    async with a_house(engine, tmp_path, more=alerts("sender_silent")) as house:
        await two_hours_pass(house)
        assert not await silent(listening(house, timedelta(hours=3)))
        assert await silent(listening(house, timedelta(hours=1)))
        ((event_id, body),) = await house.rows(TOLD)
        assert "sender_silent:shop:never" == event_id
        assert body["last_delivery_at"] is None


async def test_a_sender_of_nothing_but_garbage_is_not_silent(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """What it delivers is in quarantine, and told of as that. What a scan keeps is no delivery."""
    async with a_house(engine, tmp_path, more=alerts("sender_silent")) as house:
        await house.outcome(order("evt_1"))
        await two_hours_pass(house)
        house.listed = [item("ord_1", version="seven"), item("ord_2")]
        await house.reconcile()
        assert await silent(listening(house))
        await house.deliver(b"no json")
        assert not await silent(listening(house))


async def test_nobody_is_silent_right_after_a_start(engine: AsyncEngine, tmp_path: Path) -> None:
    """We were away for the night: what the shop repeats is still on its way to us."""
    async with a_house(engine, tmp_path, more=alerts("sender_silent")) as house:
        await house.outcome(order("evt_1"))
        await two_hours_pass(house)
        house.listed = [item(version=2)]
        await house.reconcile()
        watch = listening(house)
        watch.clock = lambda: 7200.0 + 59 * 60
        assert not await silent(watch)
        watch.clock = lambda: 7200.0 + 61 * 60
        assert await silent(watch)


async def test_an_alert_that_dies_raises_none(engine: AsyncEngine, tmp_path: Path) -> None:
    """All that can be met is told to one desk, and the desk refuses it: nothing tells of that."""
    everything = alerts("*").replace('destination = "desk"', 'destination = "payments"')
    async with a_house(engine, tmp_path, more=everything) as house:
        house.pretend.behave = lambda _, __: Answers(status=402)
        await house.deliver(b"no json")
        follow = Following(rules=house.assembly.rules)
        for _ in range(3):
            await relay.run_once(engine, house.assembly.destinations, POLICY, follow=follow)
        assert 1 == len(house.pretend.calls)
        assert [("told", "dead")] == await house.rows("select effect, state from outbox")


async def test_what_a_restore_holds_is_told_once(engine: AsyncEngine, tmp_path: Path) -> None:
    """The database went back: two captures of before are held, and so is one asked for after."""
    more = alerts("uncertain") + HELD
    async with a_house(engine, tmp_path, more=more) as house:
        await house.outcome(order("evt_1"))
        await house.outcome(order("evt_2", "ord_2"))
        watch = watch_over(house.assembly, engine, private=False)
        await watch.look()
        await house.run_sql("update generations set database_oid = 1")
        seen = await watch.look()
        assert seen is not None
        await watch.settle(seen, beat=lambda: None)
        ((_, body),) = await house.rows(TOLD)
        assert ("kept", "letters", "uncertain") == (
            body["effect"],
            body["destination"],
            body["state"],
        )
        assert body["reason"].startswith("restored")
        await house.run_sql("delete from outbox where effect = 'told'")
        await house.outcome(order("evt_3", "ord_3"))
        ((_, body),) = await house.rows(TOLD)
        assert "evt_3" == body["event_id"]
