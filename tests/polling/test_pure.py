"""Stories of the decisions alone: rates, Retry-After, circles, watermark, drift, seen keys."""

import doctest
import random
from datetime import UTC, datetime, timedelta

import pytest

from reconciler.ledger.drifts import Found
from reconciler.polling import rate, retry_after
from reconciler.polling.drift import Patience, Step, absent_too_many, next_step
from reconciler.polling.errors import PageBrokenError
from reconciler.polling.rate import Rate
from reconciler.polling.retry_after import parse_retry_after
from reconciler.polling.seen import Seen
from reconciler.polling.trail import Trail
from reconciler.polling.watermark import Reach, Stamp, moved, watermark_of

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)
NOW_NS = 1_796_119_200 * 10**9
MINUTE = 60 * 10**9


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def test_the_rate_holds_in_every_window():
    """Of forty requests at 10/s, no second has more than ten, and none waits for nothing."""
    clock = Clock()
    bucket = Rate(count=10, period=1.0, clock=clock, sleep=clock.sleep)
    times = []
    for _ in range(40):
        await bucket.take()
        times.append(clock.now)

    assert all(later - earlier >= 1.0 for earlier, later in zip(times, times[10:], strict=False))
    assert 3.0 == pytest.approx(times[-1])


def test_rates_and_delays_say_what_they_mean():
    """The examples in the docstrings are true."""
    for module in (rate, retry_after):
        assert 0 == doctest.testmod(module).failed


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "-1"}, 0),
        ({"retry-after": "1e9"}, 3600),
        ({"retry-after": "inf"}, 3600),
        ({"retry-after": "-inf"}, 0),
        ({"retry-after": "Tue, 01 Dec 2026 10:00:20 GMT"}, 20),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 3600),
        (
            {
                "retry-after": "Tue, 01 Dec 2026 12:00:20 GMT",
                "date": "Tue, 01 Dec 2026 12:00:00 GMT",
            },
            20,
        ),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "Tue, 99 Dec 2026 10:00:20 GMT"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_in_all_its_spellings(headers, seconds):
    """C86: seconds and dates are understood, absurd ones clamped, unreadable ones ignored."""
    expected = None if seconds is None else timedelta(seconds=seconds)

    assert expected == parse_retry_after(headers, now=NOW)


@pytest.mark.parametrize("circle", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("lead", [0, 1, 5, 50])
def test_a_circle_is_found_wherever_it_begins(lead, circle):
    """C112: a listing that goes in circles of any length is found out within a few rounds."""

    def walk() -> None:
        trail = Trail()
        for at in range(4 * (lead + circle) + 4):
            place = at if at < lead else lead + (at - lead) % circle
            trail = Trail.from_json(trail.step(f"p{place}").to_json())

    with pytest.raises(PageBrokenError):
        walk()


def test_a_long_way_is_no_circle():
    """A hundred thousand pages, none twice."""
    trail = Trail()
    for at in range(100_000):
        trail = trail.step(str(at))

    assert trail.anchor


def test_the_watermark_stays_behind_what_was_left():
    """A5: it is the older of the newest item read and the oldest one left for its webhook."""
    reach = Reach().read(Stamp(ns=10)).read(Stamp(ns=30)).read(Stamp(ns=20))
    assert Stamp(ns=30) == watermark_of(reach, pass_started=100)

    reach = Reach.from_json(reach.left(Stamp(ns=15)).left(Stamp(ns=25)).to_json())
    assert Stamp(ns=15) == watermark_of(reach, pass_started=100)


def test_an_item_from_the_future_does_not_blind_us():
    """B6: a watermark never lies beyond the time at which the pass began."""
    reach = Reach().read(Stamp(ns=10**18, digits=3))

    assert Stamp(ns=500, digits=3) == watermark_of(reach, pass_started=500)


def test_the_watermark_never_moves_backwards():
    """P13: an incremental pass that saw nothing newer leaves it where it is."""
    assert Stamp(ns=20) == moved(Stamp(ns=20), Stamp(ns=10))
    assert Stamp(ns=30) == moved(Stamp(ns=20), Stamp(ns=30))
    assert Stamp(ns=20) == moved(Stamp(ns=20), None)
    assert Stamp(ns=10) == moved(None, Stamp(ns=10))
    assert moved(None, None) is None


def decide(finding, *, changed_at=None, since=None, grace=timedelta(minutes=2), readable=True):
    return next_step(
        finding,
        changed_at=changed_at,
        since=since,
        patience=Patience(now=NOW, grace=grace),
        readable=readable,
    )


@pytest.mark.parametrize("finding", [Found.MISSING, Found.BEHIND])
def test_a_young_change_is_left_for_its_webhook(finding):
    """Within grace the webhook may still come; afterwards the scan corrects."""
    assert Step.LEAVE == decide(finding, changed_at=NOW_NS - MINUTE)
    assert Step.CORRECT == decide(finding, changed_at=NOW_NS - 2 * MINUTE)
    assert Step.CORRECT == decide(finding, changed_at=NOW_NS - MINUTE, grace=timedelta(0))


def test_what_keeps_changing_is_corrected_all_the_same():
    """An item that is always young is not left for ever: our row has been behind for grace."""
    young = NOW_NS - MINUTE // 2

    assert Step.LEAVE == decide(Found.BEHIND, changed_at=young, since=NOW - timedelta(minutes=1))
    assert Step.CORRECT == decide(Found.BEHIND, changed_at=young, since=NOW - timedelta(minutes=2))


def test_without_a_time_only_standing_for_grace_counts():
    """No changed_at: the first sight is never enough, unless grace is zero."""
    assert Step.LEAVE == decide(Found.MISSING)
    assert Step.CORRECT == decide(Found.MISSING, since=NOW - timedelta(minutes=3))
    assert Step.CORRECT == decide(Found.MISSING, grace=timedelta(0))


def test_a_stamp_in_the_future_is_just_now():
    """A skewed sender neither hides its changes for ever nor has them corrected at once."""
    future = NOW_NS + 3600 * 10**9

    assert Step.LEAVE == decide(Found.BEHIND, changed_at=future)
    assert Step.CORRECT == decide(Found.BEHIND, changed_at=future, since=NOW - timedelta(minutes=2))


def test_what_is_no_drift_is_left_alone():
    """C117: a listing that lags behind our state changes nothing."""
    assert Step.NOTHING == decide(Found.AHEAD)


def test_only_a_read_settles_a_conflict_or_revives():
    """An equal version with other content, and a newer one over a tombstone, ask for a read."""
    assert Step.READ == decide(Found.CONFLICT)
    assert Step.NOTHING == decide(Found.CONFLICT, readable=False)
    assert Step.READ == decide(Found.BURIED, changed_at=0)
    assert Step.CORRECT == decide(Found.BURIED, changed_at=0, readable=False)


def braked(absent: int, held: int, *, listed: int = 1, percent: int = 5) -> bool:
    return absent_too_many(absent=absent, held=held, listed=listed, percent=percent)


def test_the_mass_change_brake():
    """A few may always be missing, more only up to the declared percentage."""
    assert not braked(20, 20)
    assert braked(21, 100)
    assert not braked(50, 1000)
    assert braked(51, 1000)


def test_an_empty_listing_is_suspected_sooner():
    """Three resources may all be gone; of ten it is likelier that the listing is broken."""
    assert not braked(3, 3, listed=0)
    assert braked(4, 4, listed=0)
    assert not braked(400, 400, listed=0, percent=100)


def test_seen_keys_are_found_again():
    """What was added is seen, in any order; what was not is not."""
    keys = [f"ord_{number}" for number in range(5000)]
    random.Random(1).shuffle(keys)
    seen = Seen()
    for key in keys:
        seen.add(key)

    assert all(key in seen for key in keys)
    assert not any(f"{key}x" in seen for key in keys)
