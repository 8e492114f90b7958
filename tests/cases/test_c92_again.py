"""C92: sending again by hand does nothing, or does too much."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.redriving import Refusal
from reconciler.operations import repeating
from reconciler.operations.acting import Order
from tests.cases.house import SHOP, a_house, order
from tests.outbox.pretend import Answers, in_turn
from tests.outbox.test_redriving import redriven
from tests.outbox.world import an_entry

pytestmark = pytest.mark.anyio


async def test_each_redrive_really_calls_and_what_was_sent_is_not_sent_again(world, pretend):
    """
    Dead, redriven, dead again; the destination is mended, and the second redrive of the same day
    really calls, under the key of the first attempt. What was delivered is refused.
    """
    pretend.behave = in_turn(Answers(status=400), Answers(status=400), Answers())
    (one,) = await world.enqueue(an_entry())
    await world.relay_once()
    for expected in ("dead", "delivered"):
        assert [None] == await redriven(world, one.id)
        await world.relay_once()
        assert [expected] == await world.states()
    await world.time_passes(timedelta(minutes=1))
    assert [Refusal.DELIVERED] == await redriven(world, one.id)
    assert 0 == await world.relay_once()
    assert ["key_1"] * 3 == pretend.keys
    assert [1, 2, 3] == [attempt.attempt for attempt in await world.attempts()]


AT = 'base_url = "{destination}"\n'


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ('json = {{ amount = 5, of = "{{{{ key }}}}" }}', "idempotency_key"),
        ('json = {{ of = "{{{{ key }}}}", meta = {{ a = 1 }} }}', "meta.key"),
        ('form = {{ of = "{{{{ key }}}}", amount = 5 }}', "meta.key"),
    ],
)
async def test_what_is_done_again_carries_its_new_key_wherever_keys_go(
    engine: AsyncEngine, tmp_path: Path, content: str, field: str
) -> None:
    """
    The destination looks for the key in the body. A repetition under the old one there would be
    answered from its memory: nothing would be done, and the entry would say `delivered`.
    """
    shop = SHOP.replace(AT, f'{AT}key_field = "{field}"\n')
    start = shop.index("json = {{ amount = ")
    shop = shop[:start] + content + shop[shop.index("\n", start) :]
    async with a_house(engine, tmp_path, configuration=shop) as house:
        await house.outcome(order("evt_1", paid=True))
        await house.call()
        ((entry, key),) = await house.rows("select id, idempotency_key from outbox")
        told = Order(engine=engine, assembly=house.assembly, actor="ann", reason="again")
        item = await repeating.repeat(told, entry)
        assert item["new"]["idempotency_key"] == f"{key}:r1"
        await house.call()
        first, second = [unquote(call.body.decode()) for call in house.pretend.calls]
        assert 1 == first.count(key)
        assert second == first.replace(key, f"{key}:r1")


async def test_no_repetition_without_a_place_for_its_key(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """Asked for when keys went into a header: its body is a list, which holds no field."""
    listed = 'json = ["{{{{ key }}}}"]'
    start = SHOP.index("json = {{ amount = ")
    shop = SHOP[:start] + listed + SHOP[SHOP.index("\n", start) :]
    async with a_house(engine, tmp_path, configuration=shop) as house:
        await house.outcome(order("evt_1", paid=True))
        await house.call()
        ((entry,),) = await house.rows("select id from outbox")
        targets = house.assembly.rules.targets
        keyed = {name: replace(one, key_field="key") for name, one in targets.items()}
        rules = replace(house.assembly.rules, targets=keyed)
        assembly = replace(house.assembly, rules=rules)
        told = Order(engine=engine, assembly=assembly, actor="ann", reason="again")
        item = await repeating.repeat(told, entry)
        assert item["new"] is None
        assert "no_place_for_key" in json.dumps(item, default=str)
