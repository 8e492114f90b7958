"""Effects in lanes: what is frozen of them, and what `check` says where they order nothing."""

import pytest
from sqlalchemy import text

from reconciler.ledger.handlers import handler
from reconciler.ledger.lane_questions import lane_worries
from reconciler.ledger.reactions import react

from .shop import CAPTURE, PENDING, change, fact, problems_of, rows, rules_for

pytestmark = pytest.mark.anyio

LANES = """
[effects.book]
on_change = ["shop:order"]
destination = "mailer"
request = "POST /v1/books"
lane = "order:{{ key }}"
after_dead = "hold"

[effects.note]
on = ["shop:refund.succeeded"]
destination = "payments"
request = "POST /v1/notes"
lane = "order:{{ body.data.order_id }}"
"""


@pytest.fixture
async def connection(engine):
    async with engine.connect() as connection, connection.begin():
        yield connection


async def in_lanes(connection):
    return await rows(
        connection,
        "select effect, ordered, lane, lane_position, hold_after_dead"
        " from reconciler.outbox order by lane_position, effect",
    )


async def test_a_lane_joins_effects_kinds_and_destinations(connection):
    """A change and a fact about one order, at two destinations: in the order in which they came."""
    rules = rules_for(CAPTURE + LANES)
    await react(connection, rules, [change(state={"paid": True, "amount": 1})])
    [[asked]] = await react(connection, rules, [fact(body={"data": {"order_id": "ord_42"}})])
    assert (PENDING, None) == (asked.state, asked.reason)
    assert [
        ("book", False, "order:ord_42", 1, True),
        ("note", False, "order:ord_42", 2, False),
        ("capture", True, None, None, None),
    ] == await in_lanes(connection)


@pytest.mark.parametrize(
    ("order_id", "said"),
    [(None, "null"), ("", None), ("x" * 1100, "longer than 1024 bytes"), (" ", None)],
)
async def test_a_lane_that_cannot_be_named_leaves_its_effect_unrendered(connection, order_id, said):
    """It is not called out of order instead; alone, an empty name would join what is apart."""
    alone = LANES.replace("order:{{ body.data.order_id }}", "{{ body.data.order_id }}")
    rules = rules_for(alone)
    [[asked]] = await react(connection, rules, [fact(body={"data": {"order_id": order_id}})])
    assert asked.reason.startswith("unrendered: ")
    assert (said or "the lane's name is empty") in asked.reason


async def test_a_handler_names_a_lane(connection):
    @handler("shop", on_change="order")
    async def ask(event, tx):
        await tx.send("payments", "POST /v1/a", effect="a", lane=f"order:{event.key}")

    await react(connection, rules_for(LANES, [*ask.__reconciler_handlers__]), [change()])
    assert [
        ("book", False, "order:ord_42", 1, True),
        ("a", False, "order:ord_42", 2, False),
    ] == await in_lanes(connection)


async def test_a_newer_one_supersedes_and_says_so(connection):
    rules = rules_for(LANES + "supersedes = true\n")
    first = fact(body={"data": {"order_id": "ord_42"}}, event_id="evt_1")
    second = fact(body={"data": {"order_id": "ord_42"}}, event_id="evt_2")
    [[older], [newer]] = await react(connection, rules, [first, second])
    assert ("discarded", "pending") == (older.state, newer.state)
    assert [("evt_1", True), ("evt_2", False)] == (
        await connection.execute(
            text(
                "select event_id, last_error like 'superseded by %' is true"
                " from reconciler.outbox order by 1"
            )
        )
    ).all()


ALONE = """
[effects.sync]
on_change = ["shop:order"]
destination = "mailer"
request = "POST /v1/sync"
"""


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [
        ("supersedes = true", "supersedes", "say a lane"),
        ('after_dead = "hold"', "after_dead", "say a lane"),
        ('lane = "{{ version }}"', "lane", "a lane of its own"),
        ('lane = "{{ key }}:{{ event_id }}"', "lane", "a lane of its own"),
        ('lane = "{{ body.id }}"', "lane", "do not share"),
        ('lane = "{{ state.colour }}"', "lane", "no field 'colour'"),
        ('lane = "{{ nothing }}"', "lane", "nothing"),
        (
            'lane = "{{ key }}"\nsupersedes = true\nidempotency_key = "sync:{{ key }}"',
            "supersedes",
            "key used",
        ),
    ],
)
def test_what_orders_nothing_is_refused(words, key, said):
    found = problems_of(ALONE + words)
    assert [f"effects.sync.{key}"] == list(found)
    assert said in found[f"effects.sync.{key}"]


@pytest.mark.parametrize(
    ("lane", "worried"),
    [
        ("order:{{ key }}", []),
        ("status:{{ state.status }}", ["effects.sync.supersedes"]),
        ("status:{{ state.status }}:{{ key }}", []),
    ],
)
def test_a_lane_in_which_one_resource_discards_another_deserves_a_second_look(lane, worried):
    """What is newest of all paid orders would discard what waits about another: `check` warns."""
    rules = rules_for(ALONE + f'lane = "{lane}"\nsupersedes = true\n')
    assert worried == [each.key for each in lane_worries(rules.senders["shop"].effects)]


def test_an_ordered_destination_is_order_enough():
    text_ = ALONE.replace("mailer", "payments")
    rules = rules_for(text_ + 'supersedes = true\nafter_dead = "hold"\n')
    (effect,) = rules.senders["shop"].effects
    assert (True, True, None) == (effect.supersedes, effect.hold_after_dead, effect.lane)
