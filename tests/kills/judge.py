"""What must be true after any number of kills: nothing acknowledged is lost, nothing doubled."""

from collections import Counter

from tests.kills.load import Load
from tests.world import World, eventually

CURSES = "alter table orders add constraint no_curses check (status <> 'cursed')"


async def lost(world: World, load: Load) -> list[str]:
    """Ids that were acknowledged and of which nothing is there: judged before anything heals."""
    acknowledged = list(load.acknowledged)
    found = await world.rows(
        "select event_id from reconciler.processed_events where event_id = any(%s)"
        " union select event_id from reconciler.quarantine where event_id = any(%s)",
        acknowledged,
        acknowledged,
    )
    return sorted(set(acknowledged) - {row["event_id"] for row in found})


async def faults_of(world: World, load: Load) -> list[str]:
    """Everything that is wrong once the load has been answered and the daemon has had time."""
    faults = [f"acknowledged and lost: {id_}" for id_ in await lost(world, load)]
    orders = {row["id"]: row for row in await world.rows("select * from orders")}
    for key, theirs in world.sender.orders.items():
        ours = orders.get(key)
        if ours is None or ours["status_version"] != theirs["version"]:
            faults.append(f"{key} is at {theirs['version']}, we hold {ours}")
    expected = Counter(
        f"capture {key}" for key, order in world.sender.orders.items() if order["paid"]
    )
    refunds = await world.rows(
        "select event_id from reconciler.processed_events where event_type = 'refund.succeeded'"
        " and event_id not like 'old%'"
    )
    expected += Counter(f"receipt {row['event_id']}" for row in refunds)
    performed = Counter(world.destination.effects)
    faults += [f"not performed: {effect}" for effect in expected - performed]
    faults += [f"performed twice: {effect}" for effect in performed - expected]
    ours = await world.rows("select source_event, count(*) from refunds group by 1")
    booked = {row["source_event"]: row["count"] for row in ours}
    if booked != {row["event_id"]: 1 for row in refunds}:
        faults.append("a refund was not booked once")
    stuck = await world.rows(
        "select state, count(*) from reconciler.outbox where state not in ('delivered', 'skipped')"
        " group by 1"
    )
    faults += [f"entries left {row['state']}: {row['count']}" for row in stuck]
    bodies = Counter(
        (call.headers["idempotency-key"], call.body) for call in world.destination.calls
    )
    keys = Counter(key for key, _ in bodies)
    faults += [f"one key, several bodies: {key}" for key, count in keys.items() if count > 1]
    return faults


async def quiet(world: World) -> None:
    """Wait until the relay and the reads have nothing left, and two scans have been."""
    await world.scans(2)

    async def read() -> bool:
        return not await world.rows("select 1 from reconciler.fetch_requests")

    await eventually(read, within=60)
    await world.settled()
