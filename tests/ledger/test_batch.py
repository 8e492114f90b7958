"""A batch equals its events one by one, in as many statements whatever its size."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger.batch import Result
from reconciler.ledger.event import Event, Outcome
from tests.ledger.shop import CAPTURE, GET, LIST, RECEIPT, SHOP, Shop

pytestmark = pytest.mark.anyio

TABLES = (
    "processed_events",
    "event_bodies",
    "resources",
    "corrections",
    "quarantine",
    "fetch_requests",
    "outbox",
    "effect_keys",
)


def history(  # noqa: C901 - a die with twelve sides
    shop: Shop, dice: random.Random, started: datetime
) -> list[Event]:
    """What may come about three orders: late, twice, tied, deleted, thin, listed, read."""
    events: list[Event] = []
    for _ in range(dice.randint(5, 25)):
        key, version = dice.choice("abc"), dice.randint(1, 5)
        state: dict[str, Any] = {"status": dice.choice("xy"), "paid": dice.choice([True, False])}
        if dice.random() < 0.6:
            state["amount"] = dice.randint(1, 2)
        match dice.randint(0, 11):
            case 0:
                events.append(shop.event("order.deleted", version, key=key))
            case 1:
                events.append(shop.event("order.paid", version, key=key))
            case 2:
                events.append(shop.event("order.paid", None, key=key, **state))
            case 3:
                events.append(shop.listed(version, key=key, **state))
            case 4:
                events.append(shop.read(version, key=key, started=started, **state))
            case 5:
                events.append(shop.gone(key=key, started=started))
            case 6 if events and events[-1].raw:
                events.append(dice.choice([one for one in events if one.raw]))
            case 7:
                events.append(shop.event("unheard.of", version, key=key))
            case 8 | 9:
                events.append(shop.event("order.paid", version, key=key, **state))
            case _:
                events.append(shop.event("order.updated", version, key=key, **state))
    return events


async def world(shop: Shop) -> dict[str, Any]:
    """All that a history leaves behind, but for times and our own ids."""
    found: dict[str, Any] = {}
    found["resources"] = await shop.rows(
        "select key, version, revision, state, deleted, origin from resources order by key"
    )
    found["claims"] = await shop.rows(
        "select event_id, event_type, kind, key, version, outcome, state_digest"
        " from processed_events order by event_id"
    )
    found["calls"] = await shop.rows(
        "select event_id, effect, kind, key, revision, idempotency_key, state, last_error,"
        " convert_from(body, 'utf8') as body from outbox order by key, revision, event_id, effect"
    )
    found["requests"] = await shop.rows(
        "select key, at_least, reason from fetch_requests order by key"
    )
    found["corrections"] = await shop.rows(
        "select key, drift, old_version, new_version, differences, event_id,"
        " late_event_at is not null as late from corrections order by key, event_id"
    )
    return found


def told(results: list[Result]) -> list[Any]:
    return [
        (r.outcome, r.change, r.previous, r.drift, [asked.effect for asked in r.effects])
        for r in results
    ]


async def empty(shop: Shop) -> None:
    await shop.do(f"truncate {', '.join(TABLES)}")


@pytest.mark.parametrize("seeds", [range(n, n + 10) for n in range(0, 40, 10)], ids=str)
@pytest.mark.parametrize("config", [GET, ""], ids=["with-get", "without-get"])
async def test_a_batch_equals_one_by_one(engine: AsyncEngine, config: str, seeds: range) -> None:
    """
    The same history as one batch, and event by event: the same rows, outcomes, calls, requests.
    """
    shop = await Shop.open(engine, SHOP + LIST + config + CAPTURE + RECEIPT)
    for seed in seeds:
        dice = random.Random(seed)
        before = history(shop, dice, await shop.now()) if dice.random() < 0.5 else []
        later = history(shop, dice, await shop.now())
        if not config:
            later = [one for one in later if one.origin.value != "read"]
            before = [one for one in before if one.origin.value != "read"]

        await shop.takes(*before)
        at_once = told(await shop.takes(*later))
        world_at_once = await world(shop)
        await empty(shop)
        await shop.takes(*before)
        one_by_one = told([await shop.take(one) for one in later])
        world_one_by_one = await world(shop)
        await empty(shop)

        assert one_by_one == at_once, seed
        assert world_one_by_one == world_at_once, seed


@contextmanager
def counting(engine: AsyncEngine) -> Iterator[list[str]]:
    sent: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        sent.append(statement)

    sqlalchemy_event.listen(engine.sync_engine, "before_cursor_execute", note)
    yield sent
    sqlalchemy_event.remove(engine.sync_engine, "before_cursor_execute", note)


async def test_statements_do_not_grow_with_the_batch(engine: AsyncEngine) -> None:
    """One event or two hundred: the same round trips, and not many."""
    shop = await Shop.open(engine)
    counts = []
    for size in (1, 200):
        events = [
            shop.event("order.paid", 1, key=f"ord_{size}_{n}", paid=True, status="s", amount=n)
            for n in range(size)
        ]
        with counting(engine) as sent:
            results = await shop.takes(*events)
        assert {Outcome.APPLIED} == {result.outcome for result in results}
        counts.append(len(sent))

    assert counts[0] == counts[1]
    assert 9 == counts[0], sent


async def test_statements_of_the_worst_batch_are_bounded(engine: AsyncEngine) -> None:
    """All outcomes in one batch: more round trips, and still none for each event."""
    shop = await Shop.open(engine)
    counts = []
    for size in (2, 40):
        events: list[Event] = []
        started = await shop.now()
        for n in range(size):
            key = f"ord_{size}_{n}"
            first = shop.event("order.paid", 5, key=key, at="2026-01-01T00:00:00Z", paid=True)
            events += [
                first,
                first,
                shop.event("order.paid", 5, key=key, paid=False),
                shop.event("order.paid", 3, key=key, paid=False),
                shop.event("order.paid", 5, key=key),
                shop.event("order.deleted", 6, key=key),
                shop.event("order.paid", 7, key=key, paid=True),
                shop.listed(4, key=f"{key}b", paid=True),
                shop.read(7, key=f"{key}c", started=started, paid=True),
                shop.gone(key=f"{key}d", started=started),
            ]
        with counting(engine) as sent:
            await shop.takes(*events)
        counts.append(len(sent))

    assert counts[0] == counts[1]
    assert 26 >= counts[0], sent
