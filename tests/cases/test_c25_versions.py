"""A version is a whole number or its digits, and nothing is guessed, by no path."""

import json
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cases.house import a_house, item, order

pytestmark = pytest.mark.anyio

WRONG = [
    "true", "false", '" 7 "', '"7 "', '"7.0"', "7.0", "7.5", "7e0", "7E0", '"7e0"', '"1_0"',
    '"+7"', '"-"', '"0x7"', '""', '"seven"', '"\u0667"', '"\uff17"', '"\u00b2"', "[7]", '{"v":7}',
    '"NaN"', '"true"', '"7\\n"', '"1,000"', '"7n"',
]  # fmt: skip
RIGHT = {
    "7": 7,
    '"7"': 7,
    "0": 0,
    '"0"': 0,
    "-3": -3,
    '"-3"': -3,
    '"9223372036854775807"': 2**63 - 1,
}

TIMES = '{ value = "version", kind = "timestamp" }'
WRONG_TIMES = [
    "true", "1796119200", '"1796119200"', '"2026-12-01"', '"2026-12-01T10:00:00"',
    '"2026-12-01 10:00"', '" 2026-12-01T10:00:00Z"', '"2026-12-01T10:00:00Z "',
    '"2026-13-01T10:00:00Z"',
    '"2026-12-01T25:00:00Z"', '"01/12/2026"', '"now"', '""', '"2026-12-01T10:00:00+99:00"',
]  # fmt: skip


def event(event_id: str, key: str, version: str) -> bytes:
    return json.dumps(order(event_id, key, version="?")).replace('"?"', version).encode()


def listed(key: str, version: str) -> bytes:
    return json.dumps(item(key, version="?")).replace('"?"', version).encode()


@pytest.mark.parametrize(("kind", "wrong"), [('"version"', WRONG), (TIMES, WRONG_TIMES)])
async def test_no_path_guesses(
    engine: AsyncEngine, tmp_path: Path, kind: str, wrong: list[str]
) -> None:
    """
    Each by webhook, as an item of the listing, and as the answer of a read: refused, visible,
    and once. What we hold of the same order neither loses to it nor beats it.
    """
    good = "5" if kind == '"version"' else '"2026-12-01T10:00:00Z"'
    async with a_house(engine, tmp_path, version=kind) as house:
        for number in range(len(wrong)):
            assert "applied" == await house.outcome(event(f"good{number}", f"k{number}", good))
        before = await house.held()

        for number, version in enumerate(wrong):
            bad = event(f"bad{number}", f"k{number}", version)
            assert "quarantined" == await house.outcome(bad), version
            (tried,) = await house.tried(bad)
            assert "quarantined" == tried["outcome"]
        house.listed = [listed(f"l{number}", version) for number, version in enumerate(wrong)]
        house.listed += [listed(key, good) for key in ("neighbour", *before)]
        done = await house.reconcile()
        assert [True] == [scan.completed for scan in done.scans]
        house.got = {
            f"k{number}": listed(f"k{number}", version) for number, version in enumerate(wrong)
        }
        for key in house.got:
            (told,) = (await house.reconcile(key)).items
            assert "failed" == told["result"], house.got[key]

        after = await house.held()
        assert before == {key: version for key, version in after.items() if key != "neighbour"}
        assert "neighbour" in after
        counted = await house.rows("select count(*) from quarantine where fault like '%version%'")
        assert [(2 * len(wrong),)] == counted


async def test_in_a_batch_the_others_count(engine: AsyncEngine, tmp_path: Path) -> None:
    async with a_house(engine, tmp_path, batches=True) as house:
        mixed: list[bytes] = []
        for number, version in enumerate(WRONG):
            mixed += [event(f"b{number}", "x", version), event(f"g{number}", f"g{number}", "1")]
        assert ["quarantined", "applied"] * len(WRONG) == await house.outcomes(mixed)


async def test_a_number_and_its_digits_are_one_version(engine: AsyncEngine, tmp_path: Path) -> None:
    async with a_house(engine, tmp_path) as house:
        for number, (written, version) in enumerate(RIGHT.items()):
            assert "applied" == await house.outcome(event(f"e{number}", f"k{number}", written))
            assert version == (await house.held())[f"k{number}"]


async def test_null_and_nothing_are_no_version_and_ask_for_a_read(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """Not a guess either: what the sender did not say is asked for."""
    async with a_house(engine, tmp_path) as house:
        without = order("e2")
        del without["data"]["version"]
        assert "deferred" == await house.outcome(event("e1", "ord_42", "null"))
        assert "deferred" == await house.outcome(without)
        assert [("ord_42",)] == await house.rows("select key from fetch_requests")
        assert [] == await house.rows("select 1 from quarantine")
