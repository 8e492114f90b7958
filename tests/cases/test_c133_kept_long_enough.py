"""What was forgotten on purpose does not happen again, however it comes back."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger import retention
from tests.cases.house import House, a_house, item, order

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)
PAID = {"paid": True, "amount": 5}
AGED = {
    "processed_events": ("processed_at",),
    "event_bodies": ("received_at",),
    "outbox": ("created_at", "completed_at"),
    "effect_keys": ("created_at",),
    "resources": ("updated_at",),
}


async def days_later(house: House, days: int) -> retention.Purged:
    """Nobody runs for so long; at the start the clean-up is first."""
    for table, columns in AGED.items():
        moved = ", ".join(f"{column} = {column} - interval '{days} days'" for column in columns)
        await house.run_sql(f"update {table} set {moved}")  # noqa: S608
    return await retention.purge(
        house.engine,
        "shop",
        retention.Keep(
            claims=90 * DAY, bodies=7 * DAY, entries=90 * DAY, keys=90 * DAY, quarantine=30 * DAY
        ),
    )


def refund(event_id: str, **more: Any) -> dict[str, Any]:
    return {"id": event_id, "type": "refund.succeeded", "created_at": "2026-01-02T00:00:00Z",
            "data": {"amount": 5}, **more}  # fmt: skip


async def calls(house: House) -> int:
    """Let what is due be called, and count what the destination has got altogether."""
    while await house.call():
        pass
    return len(house.pretend.calls)


@pytest.mark.parametrize("days", [10, 89])
async def test_within_retention_everything_is_still_known(
    engine: AsyncEngine, tmp_path: Path, days: int
) -> None:
    """Ten days of standstill, or eighty-nine: each event is a duplicate, alone and in a batch."""
    async with a_house(engine, tmp_path, batches=True) as house:
        told = [order("e1", version=1, **PAID), refund("e2")]
        assert ["applied", "applied"] == await house.outcomes(told)
        assert 2 == await calls(house)
        assert 0 == (await days_later(house, days)).claims
        assert ["duplicate", "duplicate"] == await house.outcomes(told)
        assert ["duplicate"] == await house.outcomes(told[:1])
        assert 2 == await calls(house)


BACK = ("the same", "under a new id", "by a listing", "by a read", "a newer one beside it")


@pytest.mark.parametrize("way", BACK)
async def test_a_change_happens_once_without_any_claim(
    engine: AsyncEngine, tmp_path: Path, way: str
) -> None:
    """
    Claims, keys and entries are gone. The version still stands: no path charges a second time,
    and what is really newer goes on as ever.
    """
    async with a_house(engine, tmp_path) as house:
        event = order("e1", version=7, **PAID)
        assert "applied" == await house.outcome(event)
        assert 1 == await calls(house)
        purged = await days_later(house, 100)
        assert (1, 1) == (purged.claims, purged.entries)
        assert [] == await house.rows("select 1 from effect_keys")
        match way:
            case "the same":
                for _ in range(2):
                    await house.outcome(event)
            case "under a new id":
                await house.outcome({**event, "id": "e2"})
                await house.outcome({**event, "id": "e3", "created_at": "2100-01-01T00:00:00Z"})
            case "by a listing":
                house.listed = [item(version=7, **PAID)]
                assert [] == (await house.reconcile(full=True)).items
            case "by a read":
                house.got = {"ord_42": item(version=7, **PAID)}
                assert "in_sync" == (await house.reconcile("ord_42")).items[0]["result"]
            case _:
                newer = order("e9", version=8, status="shipped", **PAID)
                newer["created_at"] = "2100-01-01T00:00:00Z"
                assert "applied" == await house.outcome(newer)
                assert 200 == (await house.deliver(event)).status_code
        assert 1 == await calls(house)
        assert await house.held() in ({"ord_42": 7}, {"ord_42": 8})


async def test_a_fact_that_may_have_counted_is_kept_for_a_person(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    A refund of before the purge comes again: kept, told 200, called by nobody, claimed by nobody.
    One that happened since counts; and where nothing was ever purged, old news is news.
    """
    async with a_house(engine, tmp_path) as house:
        assert "applied" == await house.outcome(refund("old_news"))
        assert 1 == await calls(house)
        await days_later(house, 100)
        for _ in range(2):
            assert "quarantined" == await house.outcome(refund("old_news"))
        assert [] == await house.rows("select 1 from processed_events")
        ((fault, failures),) = await house.rows("select fault, failures from quarantine")
        assert "may have counted" in fault
        assert 2 == failures
        fresh = refund("fresh", created_at="2100-01-01T00:00:00Z")
        assert "applied" == await house.outcome(fresh)
        assert 2 == await calls(house)


async def test_what_is_not_over_is_not_forgotten(engine: AsyncEngine, tmp_path: Path) -> None:
    """
    A call that could not be made yet keeps its entry and its claim, however old: the event that
    asked for it, coming again, is a duplicate, and the call is made once.
    """
    async with a_house(engine, tmp_path) as house:
        event = order("e1", version=7, **PAID)
        await house.outcome(event)
        purged = await days_later(house, 100)
        assert (0, 0) == (purged.claims, purged.entries)
        assert "duplicate" == await house.outcome(event)
        assert 1 == await calls(house)


async def test_what_a_scan_has_claimed_is_forgotten_as_well(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """A correction of long ago; its webhook comes at last, after the purge: nothing is charged."""
    async with a_house(engine, tmp_path) as house:
        house.listed = [item(version=7, **PAID)]
        await house.reconcile(full=True)
        assert 1 == await calls(house)
        await days_later(house, 100)
        late = order("e7", version=7, **PAID)
        late["created_at"] = "2100-01-01T00:00:00Z"
        assert "late" == await house.outcome(late)
        assert [] == (await house.reconcile(full=True)).items
        assert 1 == await calls(house)
