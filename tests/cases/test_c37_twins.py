"""Twins: one event at many doors at once, and a first one that comes to nothing."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.database import engine_for
from reconciler.ledger.commit import commit
from reconciler.ledger.event import Event
from reconciler.receiver.envelope import read_delivery
from tests.cases.house import SHOP, House, a_house, order
from tests.receiver.receiving import receiving
from tests.receiver.senders import body_of

pytestmark = pytest.mark.anyio

TABLES = """
create table public.audit (event_id text not null);
create table public.refunds (order_id text primary key, event_id text not null);
"""
APPLY = """
[[senders.shop.apply]]
on = ["refund.*"]
sql = "INSERT INTO public.audit VALUES (:id)"
params = { id = "event_id" }

[[senders.shop.apply]]
on = ["refund.succeeded"]
sql = "INSERT INTO public.refunds VALUES (:order, :id)"
params = { order = "body.data.order_id", id = "event_id" }
"""


def refund(event_id: str, order_id: str = "ord_42") -> dict[str, object]:
    data = {"order_id": order_id, "amount": 10}
    return {"id": event_id, "type": "refund.succeeded", "data": data}


async def until_blocked(engine: AsyncEngine, *, by: int = 1) -> None:
    """Wait until so many transactions wait for a lock of another."""
    waiting = text("select count(distinct pid) from pg_locks where not granted")
    async with asyncio.timeout(10), engine.connect() as connection:
        while (await connection.scalar(waiting) or 0) < by:
            await asyncio.sleep(0.01)
            await connection.rollback()


async def make_tables(house: House) -> None:
    for statement in TABLES.strip().splitlines():
        await house.run_sql(statement)


async def test_two_daemons_hear_one_event_twenty_times_each(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    """
    Over two receivers and as many connections as deliveries: all hear 200, one applies it, and
    there is one row of the user's, one state and one call of each kind.
    """
    other_engine = engine_for(database_url)
    async with a_house(engine, tmp_path, more=APPLY) as house:
        await make_tables(house)
        configuration = (tmp_path / "reconciler.toml").read_text()
        async with receiving(other_engine, tmp_path, configuration) as other:
            for event in (refund("r1"), order("e1", paid=True, amount=5)):
                async with asyncio.TaskGroup() as group:
                    doors = (house.receiver, other)
                    tasks = [
                        group.create_task(door.deliver(event)) for _ in range(20) for door in doors
                    ]
                answers = [task.result() for task in tasks]
                assert {200} == {answer.status_code for answer in answers}
                outcomes = Counter(answer.json()["outcome"] for answer in answers)
                assert {"applied": 1, "duplicate": 39} == outcomes
        assert [("r1",)] == await house.rows("select event_id from public.audit")
        assert 2 == await house.call()
        assert {"ord_42": 1} == await house.held()
    await other_engine.dispose()


async def test_only_a_claim_that_was_there_makes_a_duplicate(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    The user's own table refuses a second refund of one order. That is no duplicate: 500, a copy
    that can be seen, nothing of it written; those who were committed together with it are
    served. When the row is out of the way, the retry is applied and closes the copy.
    """
    async with a_house(engine, tmp_path, more=APPLY) as house:
        await make_tables(house)
        assert "applied" == await house.outcome(refund("r1"))
        events = [refund("r2"), *(refund(f"n{number}", f"o{number}") for number in range(9))]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(house.deliver(event)) for event in events]
        codes = [task.result().status_code for task in tasks]
        assert [500] + [200] * 9 == codes
        assert [] == await house.rows("select 1 from processed_events where event_id = 'r2'")
        assert 10 == len(await house.rows("select 1 from public.audit"))

        await house.run_sql("delete from public.refunds where order_id = 'ord_42'")
        assert "applied" == await house.outcome(refund("r2"))
        assert "duplicate" == await house.outcome(refund("r1"))
        copies = await house.rows("select event_id, state from quarantine")
        assert [("r2", "superseded")] == copies
        assert 11 == len(await house.rows("select 1 from public.audit"))


async def test_a_duplicate_leaves_the_transaction_usable(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    Known and new events in one batch, and one id twice in it: what is new is written to the
    user's tables too, in the transaction in which the others were found known.
    """
    async with a_house(engine, tmp_path, more=APPLY, batches=True) as house:
        await make_tables(house)
        known = refund("r0", "o0")
        assert ["applied"] == await house.outcomes([known])
        told = await house.outcomes([known, refund("r1", "o1"), known, refund("r2", "o2"),
                                     refund("r1", "o1")])  # fmt: skip
        assert ["duplicate", "applied", "duplicate", "applied", "duplicate"] == told
        audited = await house.rows("select event_id from public.audit order by 1")
        assert [("r0",), ("r1",), ("r2",)] == audited


@pytest.mark.parametrize("fate", ["is cut off", "rolls back", "commits"])
async def test_a_twin_in_flight_is_waited_for(
    engine: AsyncEngine, database_url: str, tmp_path: Path, fate: str
) -> None:
    """
    The first delivery is held up in the user's own statement, another daemon gets the second.
    It says nothing before the first is through. Cut off, the first is run again on a good
    connection; whatever happens, one of the two applies it and nobody hears of a loss.
    """
    other_engine = engine_for(database_url)
    async with a_house(engine, tmp_path, more=APPLY) as house:
        await make_tables(house)
        configuration = (tmp_path / "reconciler.toml").read_text()
        async with receiving(other_engine, tmp_path, configuration) as other:
            async with engine.connect() as holder:
                if fate == "rolls back":
                    await holder.execute(text("insert into public.refunds values ('ord_42', 'x')"))
                else:
                    await holder.execute(text("lock table public.audit"))
                first = asyncio.create_task(house.deliver(refund("r1")))
                await until_blocked(other_engine)
                second = asyncio.create_task(other.deliver(refund("r1")))
                await until_blocked(other_engine, by=2)
                assert (False, False) == (first.done(), second.done())
                if fate == "is cut off":
                    await house.run_sql(
                        "select pg_terminate_backend(pid) from pg_locks"
                        " where not granted and relation = 'public.audit'::regclass"
                    )
                if fate == "rolls back":
                    await holder.commit()  # the user's own key: the first fails, and the second
                else:
                    await holder.rollback()
            codes = sorted([(await first).status_code, (await second).status_code])
        written = await house.rows("select event_id from public.audit")
        claimed = await house.rows("select event_id from processed_events")
        if fate == "rolls back":
            assert ([500, 500], [], []) == (codes, written, claimed)
        else:
            assert ([200, 200], [("r1",)], [("r1",)]) == (codes, written, claimed)
            outcomes = {(await each).json()["outcome"] for each in (first, second)}
            assert {"applied", "duplicate"} == outcomes
            assert 1 == await house.call()
    await other_engine.dispose()


async def test_a_twin_that_is_stuck_is_never_called_a_duplicate(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """Elsewhere its claim is neither committed nor gone: 503 and come again, for a batch too."""
    more = '\n[senders.shop.event]\nitems = "events"\n'
    async with a_house(engine, tmp_path, more=APPLY + more) as house:
        await make_tables(house)
        async with engine.connect() as twin:
            await twin.execute(
                text(
                    "insert into reconciler.processed_events"
                    " (sender, event_id, event_type, outcome, body_digest)"
                    " values ('shop', 'r1', 'refund.succeeded', 'applied', 'x')"
                )
            )
            both = {"events": [refund("r0", "o0"), refund("r1", "o1")]}
            answer = await house.deliver(both)
            assert (503, "5") == (answer.status_code, answer.headers["retry-after"])
            assert "duplicate" not in answer.text
            await twin.rollback()
        again = await house.deliver(both)
        assert 200 == again.status_code
        assert "applied" == again.json()["results"][1]["outcome"]
        audited = await house.rows("select event_id from public.audit order by 1")
        assert [("r0",), ("r1",)] == audited


HANDLERS = """
from sqlalchemy.exc import IntegrityError

from reconciler import Event, Transaction, handler


@handler("shop", on="refund.succeeded")
async def remember(event: Event, tx: Transaction) -> None:
    order = {"order": event.body["data"]["order_id"], "id": event.event_id}
    try:
        await tx.execute("INSERT INTO public.refunds VALUES (:order, :id)", order)
    except IntegrityError:
        await tx.execute("INSERT INTO public.audit VALUES (:id)", {"id": f"again {event.event_id}"})
    await tx.execute("INSERT INTO public.audit VALUES (:id)", {"id": event.event_id})
"""


async def test_an_error_that_a_handler_caught_is_over(engine: AsyncEngine, tmp_path: Path) -> None:
    """
    A second refund of one order: the user's own key refuses it, their handler takes that for
    what it is and writes two more rows. All of it is committed; a repetition changes nothing.
    """
    (tmp_path / "cases_c37_handlers.py").write_text(HANDLERS)
    configuration = 'handlers = ["cases_c37_handlers"]\n' + SHOP
    async with a_house(engine, tmp_path, configuration=configuration) as house:
        await make_tables(house)
        contract, rules = house.assembly.contracts["shop"], house.assembly.rules
        told = []
        for id_ in ("r1", "r2", "r2", "r1"):
            (event,) = read_delivery(contract, body_of(refund(id_)), {}).events
            assert isinstance(event, Event)
            (result,) = await commit(engine, rules, [event])
            told.append(result.outcome.value)
        assert ["applied", "applied", "duplicate", "duplicate"] == told
        audited = await house.rows("select event_id from public.audit order by 1")
        assert [("again r2",), ("r1",), ("r2",)] == audited
        assert [("ord_42", "r1")] == await house.rows("select * from public.refunds")
