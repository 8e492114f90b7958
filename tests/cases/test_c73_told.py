"""C73 and its siblings: what never succeeds is told, and what was answered is kept, once."""

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import relay
from outbox.entry import State
from outbox.resting import Rested
from outbox.verdict import Answer
from reconciler.ledger.following import NAMES, Following
from reconciler.ledger.user_sql import verify
from reconciler.operations import resolving
from reconciler.operations.acting import Order
from tests.cases.house import POLICY, a_house, order
from tests.outbox.pretend import Answers, Misbehaves

pytestmark = pytest.mark.anyio

ALERTS = """
[destinations.desk]
base_url = "{url}"
allow_private = ["127.0.0.0/8"]
max_attempts = 1

[effects.told]
on = ["reconciler:dead", "reconciler:uncertain"]
destination = "desk"
request = "POST /alerts"

[effects.told.json]
what = "{{{{ type }}}}"
where = "{{{{ body.destination }}}}"
why = "{{{{ body.reason }}}}"
"""

KEEPING = """
[effects.kept]
on = ["shop:order.updated"]
if_stale = "count"
destination = "payments"
request = "POST /kept"
json = {{ of = "{{{{ key }}}}" }}
idempotency_key = "{{{{ event_id }}}}:kept"

[effects.kept.delivered]
sql = "INSERT INTO charges (order_id, charge) VALUES (:order_id, :charge)"
params = {{ order_id = "key", charge = "body.id" }}
"""


PLAIN = """
[effects.plain]
on = ["shop:order.updated"]
if_stale = "count"
destination = "payments"
request = "POST /plain"
idempotency_key = "{{ event_id }}:plain"
"""


async def call(house) -> int:
    following = Following(rules=house.assembly.rules)
    return await relay.run_once(house.engine, house.assembly.destinations, POLICY, follow=following)


async def test_what_is_dead_is_told_once_an_hour_and_never_of_itself(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    Three captures are refused for good, and so is what tells of them. The desk is called once:
    the second and the third of the hour are not told, and the alert that died raises none.
    """
    async with a_house(engine, tmp_path, more=ALERTS.format(url="http://127.0.0.1:9")) as house:
        house.pretend.behave = lambda _, __: Answers(status=402)
        for number in range(3):
            await house.outcome(order(f"evt_{number}", f"ord_{number}", paid=True))
            await call(house)
        await call(house)
        entries = await house.rows(
            "select sender, effect, state, idempotency_key, convert_from(body, 'utf8')"
            " from outbox where effect = 'told'"
        )
        ((sender, _, state, key, body),) = entries
        assert ("reconciler", "dead") == (sender, state)
        assert key.startswith("dead:payments:")
        assert '{"what":"dead","where":"payments","why":"answered 402"}' == body


async def test_what_was_answered_is_kept_with_the_mark(engine: AsyncEngine, tmp_path: Path) -> None:
    """The provider's id is written in the transaction that marks the call delivered, once."""
    async with a_house(engine, tmp_path, more=KEEPING.format()) as house:
        await house.run_sql("create table public.charges (order_id text, charge text not null)")
        assert [] == await verify(engine, house.assembly.rules)
        house.pretend.behave = lambda _, __: Answers(body=b'{"id": "ch_1"}')
        await house.outcome(order("evt_1"))
        await call(house)
        await call(house)
        assert [("ord_42", "ch_1")] == await house.rows("select * from charges")
        assert [("delivered", None)] == await house.rows("select state, last_error from outbox")


@pytest.mark.parametrize(
    "answer",
    [
        *(b"{}", b"no json", b'{"id": null}', b'{"id": "a\\u0000b"}', b'{"id": "\\ud800"}'),
        *(b'{"id": ["\\udfff"]}', b'{"id": 1e99999999}', b'{"id": 1e99999999999999999999}'),
    ],
)
async def test_a_statement_that_fails_loses_no_mark_and_repeats_no_call(
    engine: AsyncEngine, tmp_path: Path, answer: bytes
) -> None:
    """
    The answer has no id, or one that no database holds, and the table wants one. The call was
    delivered and stays so; what failed is said with the entry, and nothing is called again.
    """
    async with a_house(engine, tmp_path, more=KEEPING.format()) as house:
        await house.run_sql("create table public.charges (order_id text, charge text not null)")
        house.pretend.behave = lambda _, __: Answers(body=answer)
        await house.outcome(order("evt_1"))
        await house.outcome(order("evt_2", "ord_2"))
        await call(house)
        assert 0 == await call(house)
        assert 2 == len(house.pretend.calls)
        assert [] == await house.rows("select * from charges")
        found = await house.rows("select state, last_error from outbox")
        assert ["delivered", "delivered"] == [state for state, _ in found]
        assert all("effects.kept.delivered failed: " in said for _, said in found)


async def test_slow_statements_hold_up_neither_marks_nor_each_other_for_long(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    Somebody holds the table of charges for a while, and eight charges were answered at once.
    Together they would take sixteen seconds of one transaction: one after the other they have
    their time, and what nothing follows is marked first.
    """
    async with a_house(engine, tmp_path, more=KEEPING.format() + PLAIN) as house:
        await house.run_sql("create table public.charges (order_id text, charge text not null)")
        house.pretend.behave = lambda _, __: Answers(body=b'{"id": "ch_1"}')
        for number in range(3):
            await house.outcome(order(f"evt_{number}", f"ord_{number}"))
        points: list[str] = []
        follow = Following(rules=house.assembly.rules, together=timedelta(0))
        destinations = house.assembly.destinations
        await relay.run_once(engine, destinations, POLICY, follow=follow, point=points.append)
        # all six at once, in vain; the three plain ones; then each of the others for itself
        assert 5 == points.count("relay-before-mark")
        assert 3 == len(await house.rows("select * from charges"))
        assert {("delivered", None)} == set(
            await house.rows("select state, last_error from outbox")
        )


async def test_what_has_waited_too_long_is_marked_without_its_statement(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """A lease runs out: that the charge was answered must not be forgotten over its id."""
    async with a_house(engine, tmp_path, more=KEEPING.format()) as house:
        await house.run_sql("create table public.charges (order_id text, charge text not null)")
        await house.outcome(order("evt_1"))
        (row,) = await house.rows(
            "select id, sender, event_id, effect, part, kind, key, destination, idempotency_key"
            " from outbox"
        )
        names = ("id", *NAMES)
        late = Rested(
            **dict(zip(names, row, strict=True)),
            attempts=1,
            state=State.DELIVERED,
            reason=None,
            answer=Answer(status=200, headers=(), body=b'{"id": "ch_1"}', complete=True),
            late=True,
        )
        async with engine.begin() as connection:
            await Following(rules=house.assembly.rules).follow(connection, [late])
        assert [] == await house.rows("select * from charges")
        ((said,),) = await house.rows("select last_error from outbox")
        assert "those before it took too long" in said


async def test_a_misspelt_table_stops_the_start(engine: AsyncEngine, tmp_path: Path) -> None:
    """It is prepared like `apply`: a mistake is found before the first call."""
    async with a_house(engine, tmp_path, more=KEEPING.format()) as house:
        (problem,) = await verify(engine, house.assembly.rules)
        assert "effects.kept.delivered.sql" == problem.key
        assert "charges" in problem.message


async def test_a_persons_word_has_no_answer_to_keep(engine: AsyncEngine, tmp_path: Path) -> None:
    """Resolved as delivered: the statement wants an id that nobody has, and says so."""
    more = KEEPING.format().replace("if_stale", "idempotent = false\nif_stale")
    async with a_house(engine, tmp_path, more=more) as house:
        await house.run_sql("create table public.charges (order_id text, charge text)")
        house.pretend.behave = lambda _, __: Misbehaves("resets")
        await house.outcome(order("evt_1"))
        await call(house)
        ((entry, state),) = await house.rows("select id, state from outbox")
        assert "uncertain" == state
        following = Following(rules=house.assembly.rules)
        told = Order(engine=engine, assembly=house.assembly, actor="ann", reason="seen")
        await resolving.resolve(told, [entry], delivered=True, follow=following)
        assert [] == await house.rows("select * from charges")
        ((state, said),) = await house.rows("select state, last_error from outbox")
        assert "delivered" == state
        assert "it wants the answer" in said
