"""Calls about one resource: one after the other, and nobody else waits for them."""

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cases.house import SHOP, House, a_house, order
from tests.outbox.pretend import Answers, Behaviour, Call, Misbehaves

pytestmark = pytest.mark.anyio

ORDERED = SHOP.replace("[destinations.payments]\n", "[destinations.payments]\nordered = true\n")
REFUND = """
[effects.refund]
on_change = ["shop:order"]
becomes = "state.status == 'refunded'"
destination = "payments"
request = "POST /refunds/{{ key }}"
json = { of = "{{ key }}" }

[effects.note]
on = ["shop:order.*"]
if_stale = "count"
destination = "payments"
request = "POST /notes/{{ key }}"
json = { of = "{{ key }}" }
idempotency_key = "{{ event_id }}:note"
"""


async def passes(house: House) -> None:
    """What was put off becomes due; where calls failed in a row, so does the next probe."""
    await house.run_sql(
        "update outbox set due_at = now() where state = 'pending' and due_at is not null"
    )
    await house.run_sql("update destination_flow set probe_at = now() where breaker = 'open'")


async def until_done(house: House) -> None:
    """Two relays at once, again and again, until nothing waits any more."""
    for _ in range(100):  # a destination that failed in a row gets one call at a time
        async with asyncio.TaskGroup() as relays:
            for _ in range(2):
                relays.create_task(house.call())
        await passes(house)
        if not await house.rows("select 1 from outbox where state = 'pending'"):
            return
    raise AssertionError(await house.rows("select key, effect, state from outbox"))


@pytest.mark.parametrize("trouble", ["answers 503", "closes the connection", "says too many"])
async def test_a_refund_never_overtakes_its_charge(
    engine: AsyncEngine, tmp_path: Path, trouble: str
) -> None:
    """
    Ten orders are paid, noted and refunded. The first calls of five of them fail and wait; the
    others are through long before. Of each order the charge comes first, then its note, then
    the refund and its note: whatever two relays take at the same moment.
    """
    failures: defaultdict[str, int] = defaultdict(int)
    troubles: dict[str, Behaviour] = {
        "answers 503": Answers(status=503),
        "closes the connection": Misbehaves("closes"),
        "says too many": Answers(status=429, headers=(("Retry-After", "5"),)),
    }
    succeeded: defaultdict[str, list[str]] = defaultdict(list)

    def behave(_number: int, call: Call) -> Behaviour:
        what, key = call.target.strip("/").split("/")
        failures[call.key] += 1
        if key in {"k0", "k1", "k2", "k3", "k4"} and failures[call.key] <= 2:
            return troubles[trouble]
        succeeded[key].append(what)
        return Answers()

    async with a_house(engine, tmp_path, configuration=ORDERED, more=REFUND) as house:
        house.pretend.behave = behave
        for number in range(10):
            paid = order(f"p{number}", f"k{number}", version=1, paid=True, amount=1)
            await house.outcome(paid)
            refunded = order(f"r{number}", f"k{number}", version=2, paid=True, status="refunded")
            await house.outcome(refunded)
        for _ in range(8):
            await house.call()
        done = {key for key, calls in succeeded.items() if len(calls) == 4}
        assert {f"k{number}" for number in range(5, 10)} == done
        assert not {f"k{number}" for number in range(5)} & succeeded.keys()
        await until_done(house)
        expected = ["charges", "notes", "refunds", "notes"]
        assert {f"k{number}": expected for number in range(10)} == dict(succeeded)


async def test_a_charge_that_is_refused_for_good_lets_the_refund_go(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """That is the stated rule: dead releases; with `after_dead = "hold"` it does not."""
    hold = ORDERED.replace("ordered = true\n", 'ordered = true\nafter_dead = "hold"\n')
    for number, (configuration, expected) in enumerate(((ORDERED, ["/refunds/k"]), (hold, []))):
        async with a_house(engine, tmp_path, configuration=configuration, more=REFUND) as house:
            house.pretend.behave = lambda _, call: Answers(
                status=400 if "charges" in call.target else 200
            )
            key = f"k{number}"
            await house.outcome(order(f"p{key}", key, version=1, paid=True, amount=1))
            refunded = order(f"r{key}", key, version=2, paid=True, status="refunded")
            await house.outcome(refunded)
            for _ in range(6):
                await house.call()
            called = [each.target for each in house.pretend.calls if "refunds" in each.target]
            assert [each.replace("/k", f"/{key}") for each in expected] == called
