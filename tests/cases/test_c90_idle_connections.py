"""A destination that closes idle connections as we write: one effect, under one key."""

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cases.house import a_house, order
from tests.outbox.pretend import Answers, Call, Misbehaves

pytestmark = pytest.mark.anyio


async def test_a_call_over_a_connection_that_is_just_closed(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    C90: after every answer the destination closes the connection; every third time it does so
    only after it has read the next request, performed or not. No call counts as refused for good:
    each is repeated with its key and its bytes until it is answered, and performed once.
    """
    performed: dict[str, int] = {}
    tries: dict[str, int] = {}

    def behave(number: int, call: Call) -> Answers | Misbehaves:
        tries[call.key] = tries.get(call.key, 0) + 1
        if number % 3 == 0 and tries[call.key] < 3:
            if number % 2:
                performed.setdefault(call.key, number)
            return Misbehaves("closes" if number % 2 else "resets")
        performed.setdefault(call.key, number)
        return Misbehaves("closes_after")

    async with a_house(engine, tmp_path) as house:
        house.pretend.behave = behave
        for number in range(9):
            await house.outcome(order(f"e{number}", f"k{number}", paid=True, amount=1))
            await house.call()
        for _ in range(6):
            await house.run_sql(
                "update outbox set due_at = now() where state = 'pending' and due_at is not null"
            )
            await house.call()
        assert {("delivered",)} == set(await house.rows("select state from outbox"))
        assert 9 == len(performed)
        assert max(tries.values()) > 1
        assert 9 == len({(call.key, call.body) for call in house.pretend.calls})
