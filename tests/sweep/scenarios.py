"""What is swept: how each scenario begins, what is done, and what is done again after a failure."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from reconciler import migrate
from reconciler.daemon_database import DatabaseWatch
from reconciler.errors import BusyError, DatabaseAwayError
from reconciler.ledger import fetches
from reconciler.lifecycle import Progress
from reconciler.operations import acting, redriving, replayed, replaying
from reconciler.operations.purging import purge
from reconciler.operations.reconciling import reconcile
from reconciler.polling.fetching import Reader
from reconciler.polling.run import Order
from reconciler.polling.scan import run_scan
from reconciler.polling.slots import Mode
from reconciler.polling.waiting import Waits
from reconciler.proving.misbehaving_http import Answer
from reconciler.transactions import transact
from tests.sweep.scene import Scene
from tests.world import order_event, refund_event

Step = Callable[[Scene], Awaitable[object]]


async def nothing(_scene: Scene) -> None:
    return


# a delivery with a change, one with a fact


async def have_events(scene: Scene) -> None:
    paid = {"order_id": "ord_1", "version": 1, "status": "paid", "paid": True, "amount": 1}
    scene.events = [order_event("evt_1", paid), refund_event("evt_2")]


async def deliver(scene: Scene) -> None:
    for event in scene.events:
        await scene.take(event)


# a batch with a poisoned event


async def have_a_batch(scene: Scene) -> None:
    orders = [
        order_event(f"evt_{n}", {"order_id": f"ord_{n}", "version": 1, "status": status})
        for n, status in enumerate(["paid", "cursed"])
    ]
    scene.events = [*orders, refund_event("evt_r")]


async def deliver_batch(scene: Scene) -> None:
    await scene.take(*scene.events)


# calls of the relay


async def owe_calls(scene: Scene) -> None:
    paid = {"version": 1, "status": "paid", "paid": True, "amount": 1}
    await scene.take(*(order_event(f"evt_{n}", {"order_id": f"ord_{n}", **paid}) for n in range(2)))


async def call(scene: Scene) -> None:
    await scene.call()


async def call_until_done(scene: Scene) -> None:
    for _ in range(4):
        await scene.free()
        await scene.call()


# a scan of three pages


async def be_listed(scene: Scene) -> None:
    scene.world.sender.page_size = 2
    await scene.take(*(await scene.orders(5, status="paid", paid=True))[:2])


def order_of(scene: Scene) -> Order:
    return Order(
        engine=scene.engine,
        rules=scene.assembly.rules,
        api=scene.assembly.apis["shop"],
        source=scene.assembly.sources["shop", "order"],
        policy=scene.assembly.loaded.settings.polling,
        mode=Mode.FULL,
        draw=lambda: 0.0,
    )


async def scan(scene: Scene) -> None:
    await run_scan(order_of(scene))


async def free_and(step: Step, scene: Scene) -> None:
    await scene.free()
    await step(scene)


# a read that was asked for


async def ask_for_reads(scene: Scene) -> None:
    await be_listed(scene)
    scene.world.sender.sets("ord_1", status="shipped")
    wishes = [
        fetches.Request(resource=("shop", "order", key), reason="a test")
        for key in ("ord_1", "ord_4", "ord_gone")
    ]
    await transact(scene.engine, partial(fetches.request, requests=wishes))


async def read(scene: Scene) -> None:
    reader = Reader(
        engine=scene.engine,
        rules=scene.assembly.rules,
        sources=scene.assembly.sources,
        api=scene.assembly.apis["shop"],
        sender="shop",
        settings=scene.assembly.loaded.settings.polling,
        waits=Waits(stop=asyncio.Event()),
    )
    await reader.read_due()


# reconciling by hand


async def by_hand(scene: Scene) -> None:
    await reconcile(scene.engine, scene.assembly, sender="shop", kind="order", full=True)


async def one_by_hand(scene: Scene) -> None:
    await reconcile(scene.engine, scene.assembly, sender="shop", kind="order", key="ord_4")


# purging


async def grow_old(scene: Scene) -> None:
    await owe_calls(scene)
    await call_until_done(scene)
    for table, column in (
        ("processed_events", "processed_at"),
        ("event_bodies", "received_at"),
        ("outbox", "completed_at"),
        ("effect_keys", "created_at"),
    ):
        columns = await scene.world.rows(
            "select 1 from information_schema.columns where table_schema = 'reconciler'"
            " and table_name = %s and column_name = %s",
            table,
            column,
        )
        if columns:
            await scene.world.rows(f"update reconciler.{table} set {column} = '2020-01-01'")  # noqa: S608
    await scene.take(refund_event("evt_new"))


async def purged(scene: Scene) -> None:
    await purge(scene.engine, scene.assembly.loaded.settings)


# a daemon's look at its database


async def look(scene: Scene) -> None:
    watch = DatabaseWatch(assembly=scene.assembly, engine=scene.engine, progress=Progress())
    await watch.first_look()
    await watch.look()


async def migrated(scene: Scene) -> None:
    await migrate.upgrade(scene.engine)


# what operators do


async def be_quarantined(scene: Scene) -> None:
    await have_a_batch(scene)
    await scene.take(*scene.events)
    await scene.world.rows("alter table orders drop constraint no_curses")


async def replay(scene: Scene) -> None:
    by_person = acting.Order(engine=scene.engine, assembly=scene.assembly, actor="alice")
    async for _ in replaying.replay_all(by_person, replayed.Filters(), limit=10):
        pass


async def be_refused(scene: Scene) -> None:
    await owe_calls(scene)
    scene.world.destination.troubles = [Answer(status=400), Answer(status=400)]
    await scene.call()


async def redrive(scene: Scene) -> None:
    by_person = acting.Order(engine=scene.engine, assembly=scene.assembly, actor="alice")
    async for _ in redriving.of_many(
        by_person, redriving.Filters(), limit=10, act=redriving.redrive
    ):
        pass


async def redrive_and_call(scene: Scene) -> None:
    await redrive(scene)
    await call_until_done(scene)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """*act* is swept; *again* is what a sender, an operator or the schedule does afterwards."""

    name: str
    begin: Step
    act: Step
    again: Step


SCENARIOS = (
    Scenario(name="a delivery", begin=have_events, act=deliver, again=deliver),
    Scenario(name="a batch", begin=have_a_batch, act=deliver_batch, again=deliver_batch),
    Scenario(name="calls", begin=owe_calls, act=call, again=call_until_done),
    Scenario(name="a scan", begin=be_listed, act=scan, again=partial(free_and, scan)),
    Scenario(name="reads", begin=ask_for_reads, act=read, again=partial(free_and, read)),
    Scenario(name="by hand", begin=be_listed, act=by_hand, again=partial(free_and, by_hand)),
    Scenario(name="one by hand", begin=be_listed, act=one_by_hand, again=one_by_hand),
    Scenario(name="a replay", begin=be_quarantined, act=replay, again=replay),
    Scenario(name="a redrive", begin=be_refused, act=redrive, again=redrive_and_call),
    Scenario(name="a purge", begin=grow_old, act=purged, again=purged),
    Scenario(name="a start", begin=nothing, act=look, again=look),
    Scenario(name="a migration", begin=nothing, act=migrated, again=migrated),
)

#: What an operation may say that it could not do: then it is done again.
SAID = (DatabaseAwayError, BusyError)
