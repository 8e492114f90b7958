"""C131: a failover loses what was acknowledged: states heal, and nothing is done twice."""

from pathlib import Path

import pytest

from tests.world import CONFIGURATION, World, a_world, eventually, order_event

pytestmark = pytest.mark.anyio

PARCEL = """
[destinations.parcels]
base_url = "@destination@"
timeout = "3s"
allow_private = ["127.0.0.0/8"]
idempotent = false

[effects.parcel]
on_change = ["shop:order"]
becomes = "state.paid"
destination = "parcels"
request = "POST /v1/parcels"
json = { reference = "parcel {{ key }}" }
"""

LOST = """
delete from reconciler.outbox; delete from reconciler.outbox_attempts;
delete from reconciler.effect_keys; delete from reconciler.event_bodies;
delete from reconciler.processed_events; delete from reconciler.resources; delete from orders;
update reconciler.generations set timeline = timeline - 1;
update reconciler.generation_marks set beat = 0
"""


async def test_c131_ten_events_are_lost_by_a_failover(tmp_path: Path, database_url: str):
    """
    Ten orders are paid, charged and sent. Then an asynchronous standby takes over that knows
    nothing of them, under a running daemon; the sender saw its 2xx and will not repeat. The
    listing shows them again. Charges go out under the keys that they had: nobody pays twice.
    Parcels know no keys: they wait for a person. What is paid afterwards is charged and sent.
    """
    async with (
        a_world(tmp_path, database_url, configuration=CONFIGURATION + PARCEL) as world,
        world.serving() as daemon,
    ):
        await world.baseline_over()
        names = [f"ord_{number}" for number in range(10)]
        for name in names:
            await paid(world, name)
        await world.effects(*done(names))
        await world.settled()
        before = world.destination.keys

        await failover(world)
        await eventually(lambda: healed(world))
        await world.settled()
        assert "recovered or promoted" in daemon.log
        held = await world.rows("select key, state from reconciler.resources order by key")
        assert [{"key": name, "state": paid_state()} for name in names] == held
        again = world.destination.keys[len(before) :]
        assert set(again) <= set(before)
        parcels = await world.rows(
            "select distinct state from reconciler.outbox where effect = 'parcel'"
        )
        assert [{"state": "uncertain"}] == parcels
        await world.effects(*done(names))

        await paid(world, "ord_new", age=-2)
        await world.effects(*done([*names, "ord_new"]))


def done(names: list[str]) -> list[str]:
    return [f"{what} {name}" for what in ("capture", "parcel") for name in names]


def paid_state() -> dict[str, object]:
    return {"status": "paid", "paid": True, "amount": 4200}


async def paid(world: World, key: str, *, age: float = 0.0) -> None:
    data = world.sender.sets(key, status="paid", paid=True, age=age)
    event = order_event(f"evt_{key}", data, type_="order.created")
    await world.outcome({**event, "created_at": data["updated_at"]})


async def failover(world: World) -> None:
    """The server goes back to before the ten, on a timeline of its own."""
    await world.rows(LOST)


async def healed(world: World) -> bool:
    return bool(
        await world.rows(
            "select 1 from reconciler.generations where number = 2 and healed_at is not null"
        )
    )
