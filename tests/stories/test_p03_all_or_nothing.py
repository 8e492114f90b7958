"""P3, all or nothing: claim, state, the user's writes and outbox entries commit together."""

import pytest

from tests.stories.conftest import UNHEALED
from tests.world import World, order_event

pytestmark = pytest.mark.anyio

TOGETHER = ("processed_events", "event_bodies", "resources", "orders", "outbox")


async def test_p03_where_the_users_statement_fails_nothing_of_the_event_remains(world: World):
    """
    The user's table refuses the order: 500, and neither claim, state, row nor call remain. The
    table is mended, the sender tries again, and the event happens as if for the first time.
    """
    event = order_event("evt_paid", world.sender.sets("ord_1", status="cursed", paid=True))
    await world.rows("alter table orders add constraint no_curses check (status <> 'cursed')")
    async with world.serving(*UNHEALED):
        for _ in range(2):
            answer = await world.deliver(event)
            assert 500 == answer.status_code
        counts = await world.counts()
        assert {0} == {counts[table] for table in TOGETHER}
        assert [("open", 2)] == await copies(world)
        assert [] == world.destination.calls

        await world.rows("alter table orders drop constraint no_curses")
        assert "applied" == await world.outcome(event)
        await world.effects("capture ord_1")
        counts = await world.counts()
        assert {1} == {counts[table] for table in TOGETHER}
        assert [("superseded", 2)] == await copies(world)


async def copies(world: World) -> list[tuple[str, int]]:
    kept = await world.rows("select state, failures from reconciler.quarantine")
    return [(row["state"], row["failures"]) for row in kept]


async def test_p03_neighbours_of_a_failing_event_are_applied(world: World):
    """Deliveries that are committed together: only the guilty one is kept out."""
    await world.rows("alter table orders add constraint no_curses check (status <> 'cursed')")
    events = [
        order_event(
            f"evt_{n}",
            world.sender.sets(f"ord_{n}", status="cursed" if n == 7 else "paid", paid=True),
        )
        for n in range(20)
    ]
    async with world.serving(*UNHEALED):
        answers = await world.all_at_once(events)
        assert [500 if n == 7 else 200 for n in range(20)] == [one.status_code for one in answers]
        await world.effects(*(f"capture ord_{n}" for n in range(20) if n != 7))
    counts = await world.counts()
    assert {19} == {counts[table] for table in TOGETHER}
