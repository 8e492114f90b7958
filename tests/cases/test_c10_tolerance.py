"""The time of signing has a tolerance to both sides, and who is outside it can be seen."""

import hmac
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from reconciler.daemon_database import DatabaseWatch
from reconciler.lifecycle import Progress
from reconciler.web.metrics import Metrics
from tests.cases.house import a_house
from tests.receiver.receiving import receiving
from tests.receiver.senders import NOW, SECRET, SHOP, body_of, order, signed

pytestmark = pytest.mark.anyio

COMPOUND = """
[senders.shop]
preset = "stripe"
secrets = ["env:SHOP_SECRET"]

[senders.shop.signature]
tolerance = "300s"
"""
AGES = {-301: 401, -300: 200, -299: 200, 0: 200, 299: 200, 300: 200, 301: 401, 10**9: 401}


def compound(body: bytes, *, now: int) -> dict[str, str]:
    mac = hmac.new(SECRET.encode(), b"%d.%b" % (now, body), "sha256").hexdigest()
    return {"Stripe-Signature": f"t={now},v1={mac}"}


@pytest.mark.parametrize("scheme", ["a header of its own", "in the signature's header"])
async def test_five_minutes_to_both_sides(engine: AsyncEngine, tmp_path: Path, scheme: str) -> None:
    """
    A captured delivery is refused when it is too old, and so is one from the future; a clock
    that is a little off, ours or theirs, costs nothing. Which side it was is told to nobody
    outside, and counted: a skewed host must not look like an attack.
    """
    own = scheme == "a header of its own"
    sign = signed if own else compound
    async with receiving(engine, tmp_path, SHOP if own else COMPOUND) as shop:
        found = {}
        for age in AGES:
            body = body_of({**order(f"evt_{age}"), "type": "t"})
            answer = await shop.post(body, headers=sign(body, now=NOW - age))
            found[age] = answer.status_code
            if answer.status_code == 401:
                assert {"error": "signature"} == answer.json()
        assert AGES == found
        reasons = [told.reason for told in shop.told if told.status == 401]
        assert ["too_new", "too_old", "too_old"] == reasons
        assert 5 == (await shop.counts())["processed_events"]

    metrics = Metrics(senders=("shop",))
    for told in shop.told:
        metrics.answered(
            sender=told.sender, answer=told.reason or told.outcome, seconds=told.seconds
        )
    shown = metrics.render().decode()
    for answer, count in {"too_old": 2, "too_new": 1, "ignored": 5}.items():
        line = f'reconciler_webhook_requests_total{{answer="{answer}",sender="shop"}} {count}.0'
        assert line in shown


async def test_a_wrong_signature_is_wrong_however_it_is_dated(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """Only a right signature says something about clocks; and a date is part of what is signed."""
    body = body_of(order())
    async with receiving(engine, tmp_path) as shop:
        for age in (-301, 0, 301):
            forged = signed(body, now=NOW - age) | {"X-Signature": "00" * 32}
            assert 401 == (await shop.post(body, headers=forged)).status_code
        redated = signed(body, now=NOW - 301) | {"X-Signature-Timestamp": str(NOW)}
        assert 401 == (await shop.post(body, headers=redated)).status_code
        assert ["wrong"] * 4 == [told.reason for told in shop.told]


@pytest.mark.parametrize(
    "stamp",
    ["", "now", "-1", "+1796119200", "1_796_119_200", "1796119200.0", "0x6b", "١٧٩٦", "1" * 40],
)
async def test_a_time_that_is_none_is_refused_and_never_an_error(
    engine: AsyncEngine, tmp_path: Path, stamp: str
) -> None:
    body = body_of(order())
    mac = hmac.new(SECRET.encode(), stamp.encode() + b"." + body, "sha256").hexdigest()
    headers = [("X-Signature", mac), ("X-Signature-Timestamp", stamp.encode())]
    async with receiving(engine, tmp_path) as shop:
        answer = await shop.http.post("/webhooks/shop", content=body, headers=headers)
        assert 401 == answer.status_code
        assert {} == await shop.counts()


async def test_the_tolerance_is_the_senders(engine: AsyncEngine, tmp_path: Path) -> None:
    """One that signs once and repeats for an hour needs an hour; it is one line to say."""
    configuration = f'{SHOP}\n[senders.shop.signature]\ntolerance = "1h"\n'
    async with receiving(engine, tmp_path, configuration) as shop:
        codes = []
        for age in (2400, 3600, 3601, -3600, -3601):
            body = body_of(order(f"evt_{age}"))
            headers = signed(body, now=NOW - age)
            codes.append((await shop.post(body, headers=headers)).status_code)
        assert [200, 200, 401, 200, 401] == codes


async def test_a_clock_that_is_wrong_is_told_before_somebody_suspects_an_attack(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    """
    Ours against the database's, to either side: warned of once, and again when it went wrong
    again. A second or two is nothing, and nothing is refused for it.
    """
    async with a_house(engine, tmp_path) as house:
        watch = DatabaseWatch(assembly=house.assembly, engine=engine, progress=Progress())
        told = []
        for seconds in (0, 2, 600, 601, -2, -600, 0):
            with capture_logs() as logs:
                skew = await watch.look_at_clock(
                    clock=lambda: datetime.now(UTC) + timedelta(seconds=seconds)  # noqa: B023
                )
            assert abs(skew.total_seconds() - seconds) < 1
            told.append([line["event"] for line in logs])
    warned = ["daemon.clock_skewed"]
    assert [[], [], warned, [], [], warned, []] == told
