"""Versions are compared as what they mean, whoever writes them and however."""

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.cases.house import a_house, item, order

pytestmark = pytest.mark.anyio

CLIMB: list[object] = ["-2", -1, "9", 10, "99", "100", 999999, "1000000", "9999999999", 10000000000]

TIME = '{ value = "version", kind = "timestamp" }'
INSTANTS: list[object] = [
    "2026-12-01T09:59:59.999999999Z",
    "2026-12-01T10:00:00Z",
    "2026-12-01T11:00:00.1+01:00",
    "2026-12-01T10:00:00.11Z",
    "2026-12-01T05:00:00.2-05:00",
    "2026-12-01T10:00:01+00:00",
    "2026-12-01T23:30:02+13:30",
    "2026-12-01T10:00:03.000000001-00:00",
    "2026-12-02T00:00:00Z",
]
EPOCHS: dict[str, list[object]] = {
    "s": [999999999, 1000000000, "1796119200"],
    "ms": [999999999999, "1000000000000", 1796119200001],
    "us": ["999999999999999", 1000000000000000],
    "ns": [999999999999999999, "1000000000000000000"],
}


KINDS = {
    "counters": ('"version"', CLIMB),
    "instants": (TIME, INSTANTS),
    **{unit: (TIME.replace("}", f', format = "{unit}" }}'), n) for unit, n in EPOCHS.items()},
}
PATHS = [
    *((kind, path) for kind in KINDS for path in ("batch", "all in turn")),
    *((kind, path) for kind in ("counters", "instants") for path in ("webhook", "listing", "read")),
]


@pytest.mark.parametrize(("kind", "path"), PATHS)
async def test_each_is_newer_than_the_one_before(
    engine: AsyncEngine, tmp_path: Path, kind: str, path: str
) -> None:
    """
    Where a counter gains a digit, a fraction is written or an offset changes, text would turn
    the order round. Every path takes the next one and leaves the one before alone.
    """
    ways = ["webhook", "listing", "read"]
    version, rising = KINDS[kind]
    async with a_house(engine, tmp_path, version=version, batches=path == "batch") as house:
        if path == "batch":
            events = [order(f"e{n}", version=one, status=f"s{n}") for n, one in enumerate(rising)]
            assert ["applied"] * len(rising) == await house.outcomes(events)
            late = [order(f"l{n}", version=one, status=f"s{n}") for n, one in enumerate(rising)]
            assert ["stale"] * len(rising) == await house.outcomes(late)
            return
        for number, one in enumerate(rising):
            way = ways[number % 3] if path == "all in turn" else path
            status = f"s{number}"
            match way:
                case "webhook":
                    event = order(f"e{number}", version=one, status=status)
                    assert "applied" == await house.outcome(event)
                case "listing":
                    house.listed = [item(version=one, status=status)]
                    (told,) = (await house.reconcile()).items
                    assert "corrected" == told["result"]
                case _:
                    house.got = {"ord_42": item(version=one, status=status)}
                    (told,) = (await house.reconcile("ord_42")).items
                    assert "corrected" == told["result"]
            if number:
                before = order(f"o{number}", version=rising[number - 1], status="old")
                assert "stale" == await house.outcome(before)
            assert [(status,)] == await house.rows("select state->>'status' from resources")


async def test_equal_instants_are_equal_however_they_are_written(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    `10:00:00.10Z` and `11:00:00.1+01:00` tie: the same content is the same fact, other content
    waits for a read, and the listing's spelling of it is in sync.
    """
    spelled = ["2026-12-01T11:00:00.1+01:00", "2026-12-01T10:00:00.10Z",
               "2026-12-01T10:00:00.100000000+00:00", "2026-11-30T22:00:00.1-12:00"]  # fmt: skip
    async with a_house(engine, tmp_path, version=TIME) as house:
        assert "applied" == await house.outcome(order("e0", version=spelled[0]))
        for number, same in enumerate(spelled[1:]):
            assert "stale" == await house.outcome(order(f"s{number}", version=same))
            house.listed = [item(version=same)]
            assert [] == (await house.reconcile()).items
            other = order(f"t{number}", version=same, status=f"other{number}")
            assert "tied" == await house.outcome(other)
        assert [("new",)] == await house.rows("select state->>'status' from resources")
        assert [("ord_42",)] == await house.rows("select key from fetch_requests")
