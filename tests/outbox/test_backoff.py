"""Waits: growing, spread, and never shorter than asked for (P16, C86, C88)."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outbox.backoff import Backoff, RetryAfter, delay, read_retry_after

NOW = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
BACKOFF = Backoff(base=timedelta(seconds=2), cap=HOUR)


def read(value: str, *others: tuple[str, str]) -> float | None:
    found = read_retry_after((("retry-after", value), *others), now=NOW, most=HOUR)
    return None if found is None else found.wait.total_seconds()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("20", 20),
        (" 20 ", 20),
        ("0", 0),
        ("1.5", 1.5),
        (".25", 0.25),
        ("-5", 0),
        ("+5", 5),
        ("3601", 3600),
        ("9" * 400, 3600),
        ("9" * 10_000, 3600),
        ("-" + "9" * 400, 0),
        ("Tue, 01 Dec 2026 10:00:20 GMT", 20),
        ("Tuesday, 01-Dec-26 10:00:20 GMT", 20),
        ("Tue Dec  1 10:00:20 2026", 20),
        ("Tue, 01 Dec 2026 11:00:20 +0100", 20),
        ("Tue, 01 Dec 2026 09:59:00 GMT", 0),
        ("Fri, 01 Jan 1960 00:00:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600),
        ("", None),
        ("soon", None),
        ("20s", None),
        ("1e3", None),
        ("inf", None),
        ("nan", None),
        ("٢٠", None),
        ("20, 20", None),
        ("Tue, 99 Dec 2026 10:00:20 GMT", None),
        ("Tue, 01 Dec 99999999999 10:00:20 GMT", None),
        ("2026-12-01T10:00:20Z", None),
    ],
)
def test_every_spelling_of_retry_after_is_read_or_ignored(value, seconds):
    assert seconds == read(value)


def test_a_date_counts_from_the_answers_own_date():
    """The destination's clock is an hour ahead of ours; what it means is 20 seconds."""
    ahead = "Tue, 01 Dec 2026 11:00:20 GMT"
    assert 20 == read(ahead, ("date", "Tue, 01 Dec 2026 11:00:00 GMT"))
    assert 3600 == read(ahead, ("date", "not a date"))


def test_no_header_is_no_wish():
    assert read_retry_after((("date", "x"),), now=NOW, most=HOUR) is None


@given(st.text())
@example("0\x1f")  # a separator that `strip` takes off and `float` does not
def test_nothing_that_a_header_says_raises(value):
    seconds = read(value, ("date", value))
    assert seconds is None or 0 <= seconds <= 3600


def test_waits_grow_up_to_the_cap_whatever_the_attempt():
    top = [delay(n, BACKOFF, jitter=1).total_seconds() for n in (1, 2, 3, 11, 12, 64, 10**9)]
    assert [2, 4, 8, 2048, 3600, 3600, 3600] == top
    assert timedelta(0) == delay(12, BACKOFF, jitter=0)


def test_a_matter_of_configuration_waits_about_the_cap_from_the_first_time():
    assert timedelta(minutes=30) == delay(1, BACKOFF, jitter=0, slowly=True)
    assert HOUR == delay(1, BACKOFF, jitter=1, slowly=True)


@given(
    attempt=st.integers(1, 100),
    asked=st.integers(0, 3600),
    jitter=st.floats(0, 1, exclude_max=True),
    slowly=st.booleans(),
)
def test_jitter_never_shortens_what_was_asked_for(attempt, asked, jitter, slowly):
    wish = RetryAfter(wait=timedelta(seconds=asked), most=HOUR)
    wait = delay(attempt, BACKOFF, jitter=jitter, asked=wish, slowly=slowly)
    assert timedelta(seconds=asked) <= wait <= HOUR


def test_those_told_to_wait_equally_long_do_not_come_back_together():
    wish = RetryAfter(wait=timedelta(seconds=60), most=HOUR)
    waits = {delay(1, BACKOFF, jitter=n / 100, asked=wish) for n in range(100)}
    assert 100 == len(waits)
    assert timedelta(seconds=14) < max(waits) - min(waits)
