"""Numbers beyond what a double holds: the same digits at the end as at the beginning."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler import exact_json
from reconciler.cli.shared import plain
from reconciler.operations import reading
from tests.cases.house import a_house, item, order, read_json

pytestmark = pytest.mark.anyio

LARGE, NEIGHBOUR = 9007199254740993, 9007199254740992
AMOUNTS = {
    "9007199254740993": 9007199254740993,
    "-9007199254740993": -9007199254740993,
    "123456789012345678901234567890": 123456789012345678901234567890,
    "0.1000000000000000055511151231257827": Decimal("0.1000000000000000055511151231257827"),
    "12.30": Decimal("12.30"),
    "9007199254740993.01": Decimal("9007199254740993.01"),
    "1e400": Decimal("1e400"),
}

TABLE = "create table public.seen (id text primary key, amount numeric, id_number bigint)"
APPLY = """
[[senders.shop.apply]]
on = ["refund.succeeded"]
sql = "INSERT INTO public.seen VALUES (:id, :amount, :number)"
params = { id = "event_id", amount = "body.data.amount", number = "body.data.number" }
"""


def refund(event_id: object, amount: str) -> bytes:
    said = json.dumps(event_id)
    data = f'{{"amount":{amount},"number":{LARGE}}}'
    return f'{{"id":{said},"type":"refund.succeeded","data":{data}}}'.encode()


async def test_neighbouring_ids_stay_two(engine: AsyncEngine, tmp_path: Path) -> None:
    """
    Event ids and keys that are numbers, and differ in the last digit: two events about two
    orders, by webhook, in the listing, and in a read; a number and its digits are one id.
    """
    async with a_house(engine, tmp_path) as house:
        for number in (LARGE, NEIGHBOUR):
            assert "applied" == await house.outcome(order(number, number))  # type: ignore[arg-type]
        assert "duplicate" == await house.outcome(order(LARGE, LARGE))  # type: ignore[arg-type]
        assert {str(NEIGHBOUR): 1, str(LARGE): 1} == await house.held()

        house.listed = [item(LARGE, version=2), item(NEIGHBOUR)]
        house.got = {str(LARGE): item(LARGE, version=2)}
        await house.reconcile()
        assert {str(NEIGHBOUR): 1, str(LARGE): 2} == await house.held()

        house.got = {str(NEIGHBOUR): item(NEIGHBOUR, version=3)}
        (done,) = (await house.reconcile(str(NEIGHBOUR))).items
        assert ("corrected", str(NEIGHBOUR)) == (done["result"], done["key"])
        assert {str(NEIGHBOUR): 3, str(LARGE): 2} == await house.held()


async def test_neighbouring_versions_stay_two(engine: AsyncEngine, tmp_path: Path) -> None:
    """One above 2^53 and the next; the last that 64 bits hold, and the first that they do not."""
    async with a_house(engine, tmp_path) as house:
        told = [
            await house.outcome(order(f"e{number}", version=version))
            for number, version in enumerate(
                [NEIGHBOUR, LARGE, NEIGHBOUR, str(LARGE + 1), 2**63 - 1, 2**63, 10**30]
            )
        ]
        assert ["applied"] * 2 + ["stale"] + ["applied"] * 2 + ["quarantined"] * 2 == told
        assert {"ord_42": 2**63 - 1} == await house.held()


@pytest.mark.parametrize("path", ["webhook", "listing", "read"])
async def test_amounts_go_out_as_they_came_in(
    engine: AsyncEngine, tmp_path: Path, path: str
) -> None:
    """From whichever path: in the state, and in the body of the call that it asks for."""
    async with a_house(engine, tmp_path) as house:
        for number, written in enumerate(AMOUNTS):
            key = f"o{number}"
            said = f'"version":1,"status":"new","paid":true,"amount":{written}}}'
            listed = f'{{"id":"{key}",{said}'.encode()
            match path:
                case "webhook":
                    event = f'{{"id":"{key}","type":"order.paid","data":{{"order_id":"{key}",'
                    await house.outcome(f"{event}{said}}}".encode())
                case "listing":
                    house.listed.append(listed)
                case _:
                    house.got[key] = listed
                    await house.reconcile(key)
        if path == "listing":
            await house.reconcile()
        assert len(AMOUNTS) == await house.call()

        states = dict(await house.rows("select key, state->>'amount' from resources"))
        calls = {call.target.rpartition("/")[2]: call for call in house.pretend.calls}
        for number, (_, amount) in enumerate(AMOUNTS.items()):
            key = f"o{number}"
            sent = read_json(calls[key].body)["amount"]
            assert (amount, amount) == (Decimal(states[key]), Decimal(sent))
            assert "e" not in sent.lower()


async def test_facts_carry_their_numbers_everywhere(engine: AsyncEngine, tmp_path: Path) -> None:
    """Into the user's own table, into the call, alone and inside a whole object."""
    async with a_house(engine, tmp_path, more=APPLY) as house:
        await house.run_sql(TABLE)
        for number, written in enumerate(AMOUNTS):
            assert "applied" == await house.outcome(refund(f"r{number}", written))
        await house.call()

        kept = dict(await house.rows("select id, amount from public.seen"))
        assert {f"r{n}": amount for n, amount in enumerate(AMOUNTS.values())} == kept
        assert [(LARGE,)] == await house.rows("select distinct id_number from public.seen")
        for call in house.pretend.calls:
            sent = read_json(call.body)
            assert str(LARGE) == sent["whole"]["number"]
            amount = AMOUNTS[[*AMOUNTS][int(call.key.removeprefix("r")[0])]]
            assert [amount] * 2 == [Decimal(sent["amount"]), Decimal(sent["whole"]["amount"])]


async def test_reports_and_trials_show_every_digit(engine: AsyncEngine, tmp_path: Path) -> None:
    """Versions and ids are texts in our JSON; amounts are numbers with all their digits."""
    async with a_house(engine, tmp_path) as house:
        await house.outcome(order(LARGE, LARGE, version=LARGE))  # type: ignore[arg-type]
        async with engine.connect() as connection:
            listed = await reading.list_events(connection, equal={}, limit=10)
        (shown,) = json.loads(exact_json.dumps(plain(listed)))["items"]
        assert (str(LARGE), str(LARGE), str(LARGE)) == (
            shown["event_id"],
            shown["key"],
            shown["version"],
        )
        house.got = {str(LARGE): item(LARGE, version=LARGE + 2, amount=NEIGHBOUR, paid=True)}
        done = await house.reconcile(str(LARGE), dry_run=True)
        (told,) = json.loads(exact_json.dumps(plain(done.document())))["items"]
        theirs = {each["path"]: each["theirs"] for each in told["differences"]}
        assert NEIGHBOUR == theirs["amount"]
        assert str(LARGE + 2) in json.dumps(told)
        (tried,) = await house.tried(order("e2", version=LARGE + 3, paid=True, amount=LARGE))
        (effect,) = [one for one in tried["effects"] if one["asked"]]
        assert str(LARGE) in effect["body"]
