"""A process of ours that stops reading holds nothing back at the server."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.world import World, a_world, eventually, order_event

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    async with a_world(tmp_path, database_url) as world:
        yield world


async def test_a_stopped_daemon_holds_no_snapshot_back(world: World) -> None:
    """
    C98, C100: the daemon is stopped (SIGSTOP) with notifications coming by the thousand and a call
    in flight. It listens to none, so that the server waits for nobody to read them; no snapshot
    of ours is left that vacuum would have to respect, and what a transaction may hold ends by
    itself. It goes on where it was.
    """
    async with world.serving() as daemon:
        await world.baseline_over()
        assert "applied" == await world.outcome(
            order_event("evt_1", world.sender.sets("ord_1", paid=True), type_="order.created")
        )
        await world.effects("capture ord_1")
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            await world.rows(
                "select pg_notify('reconciler', repeat('x', 7000)) from generate_series(1, 1000)"
            )

            async def nothing_held() -> bool:
                held = await world.rows(
                    "select 1 from pg_stat_activity where application_name = 'reconciler'"
                    " and datname = current_database() and backend_xmin is not null"
                    " and state <> 'idle in transaction'"
                )
                return not held

            await eventually(nothing_held)
            open_ones = await world.rows(
                "select query from pg_stat_activity where application_name = 'reconciler'"
                " and datname = current_database() and (wait_event = 'ClientWrite'"
                " or query ilike 'listen%%')"
            )
            assert [] == open_ones
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        world.sender.unlisted.add("ord_2")  # a scan would be first on a busy machine
        assert "applied" == await world.outcome(
            order_event("evt_2", world.sender.sets("ord_2", paid=True), type_="order.created")
        )
        await world.effects("capture ord_1", "capture ord_2")
