"""Versions and times: one strict parser, compared as integers."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.ledger.versions import (
    HIGHEST,
    LOWEST,
    VersionError,
    digits,
    format_time,
    from_datetime,
    parse_time,
    parse_version,
    to_datetime,
    zone_of,
)
from reconciler.settings.models import TimeSpec, VersionSpec

INTEGER = VersionSpec(value="v")
TIMESTAMP = VersionSpec(value="v", kind="timestamp")
TEN = 1796119200 * 10**9  # 2026-12-01T10:00:00Z
SECOND = 10**9


def spec(time_format="rfc3339", zone=None):
    return TimeSpec(value="v", format=time_format, zone=zone)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (7, 7),
        (-7, -7),
        ("7", 7),
        ("-7", -7),
        ("0", 0),
        (HIGHEST, HIGHEST),
        (str(HIGHEST), HIGHEST),
        (LOWEST, LOWEST),
        (str(LOWEST), LOWEST),
    ],
    ids=repr,
)
def test_an_integer_version_is_a_whole_number_or_its_digits(value, expected):
    assert expected == parse_version(value, INTEGER)


NO_INTEGERS = [
    *(None, True, False, Decimal("7.0"), Decimal(7), Decimal("1E+3"), [], {}, [7], ""),
    *(" 7 ", "7 ", "\n7", "7\n", "7.0", "1_0", "+7", "07", "00", "-0", "-07", "- 7", "0x7", "1e3"),
    *("seven", "v7", "\u0667", "1\u0667", "\uff17", "7\x00", "--7", "-"),
]


@pytest.mark.parametrize("value", NO_INTEGERS, ids=repr)
def test_nothing_else_is_an_integer_version(value):
    """No guess: what is not written as a version is refused, once and with a reason."""
    with pytest.raises(VersionError):
        parse_version(value, INTEGER)


@pytest.mark.parametrize(
    "value",
    [2**63, -(2**63) - 1, str(2**63), str(-(2**63) - 1), 10**300, "9" * 4000],
    ids=lambda value: repr(value)[:40],
)
def test_a_version_beyond_64_bits_is_refused(value):
    with pytest.raises(VersionError, match="beyond 64 bits"):
        parse_version(value, INTEGER)


def test_versions_are_compared_as_numbers():
    """A counter that gains a digit goes on; "1000000" is newer than "999999"."""
    assert parse_version("999999", INTEGER) < parse_version("1000000", INTEGER)
    assert parse_version("9", INTEGER) < parse_version(10, INTEGER)


@given(st.integers(LOWEST, HIGHEST))
def test_digits_and_number_are_one_version(number):
    assert number == parse_version(number, INTEGER) == parse_version(str(number), INTEGER)


@given(st.text(max_size=8) | st.from_regex(r"[-+ ]?[0-9_.]{1,6}\s?", fullmatch=True))
def test_only_what_python_writes_is_read(text):
    try:
        number = parse_version(text, INTEGER)
    except VersionError:
        return
    assert text == str(number)


def test_an_observed_version_is_never_read():
    with pytest.raises(VersionError):
        parse_version(7, VersionSpec(kind="observed"))


def test_times_are_compared_as_instants():
    """Z, offsets and digits of the fraction do not invert the order; equal instants are equal."""
    first = parse_version("2026-12-01T10:00:00Z", TIMESTAMP)
    second = parse_version("2026-12-01T11:00:00.1+01:00", TIMESTAMP)
    third = parse_version("2026-12-01T10:00:00.10Z", TIMESTAMP)
    assert TEN == first
    assert first < second
    assert third == second


TIMES = {
    "2026-12-01T10:00:00Z": TEN,
    "2026-12-01t10:00:00z": TEN,
    "2026-12-01 10:00:00Z": TEN,
    "2026-12-01T10:00:00+00:00": TEN,
    "2026-12-01T10:00:00-00:00": TEN,
    "2026-12-01T02:30:00-07:30": TEN,
    "2026-12-01T23:59:00+13:59": TEN,
    "2026-12-01T10:00:00.000000001Z": TEN + 1,
    "2026-12-01T10:00:00.123456789Z": TEN + 123456789,
    "2026-12-01T10:00:00.100000000000Z": TEN + SECOND // 10,
    "1969-12-31T23:59:59.5Z": -SECOND // 2,
    "2016-12-31T23:59:60Z": 1483228800 * SECOND,
    "2016-12-31T23:59:60.25Z": 1483228800 * SECOND + SECOND // 4,
    "2017-01-01T00:59:60+01:00": 1483228800 * SECOND,
    "2024-02-29T00:00:00Z": 1709164800 * SECOND,
    "1677-09-21T00:12:43.145224192Z": LOWEST,
    "2262-04-11T23:47:16.854775807Z": HIGHEST,
}


@pytest.mark.parametrize(("text", "expected"), TIMES.items(), ids=[*TIMES])
def test_a_time_of_rfc_3339_is_read_to_the_nanosecond(text, expected):
    assert expected == parse_time(text, spec())


NO_TIMES = [
    *(None, True, 1796119200, Decimal("1.5"), [], {}, "", "now", "infinity", "2026-12-01"),
    *("2026-12-01T10:00:00", "2026-12-01T10:00Z", "2026-12-01T10:00:00 Z", "20261201T100000Z"),
    *("2026-12-01T10:00:00+01", "2026-12-01T10:00:00+0100", "2026-12-01T10:00:00 UTC"),
    *("2026-12-01T10:00:00.Z", "2026-12-01T10:00:00,5Z", "2026-12-01T10:00:00Z ", " 2026-12-01"),
    *(
        "2026-02-29T10:00:00Z",
        "2026-13-01T10:00:00Z",
        "2026-00-01T10:00:00Z",
        "0000-01-01T00:00:00Z",
    ),
    *(
        "2026-12-01T24:00:00Z",
        "2026-12-01T10:60:00Z",
        "2026-12-01T10:00:61Z",
        "+2026-12-01T10:00:00Z",
    ),
    *("2026-12-01T10:00:60Z", "2026-12-01T23:59:60Z", "2026-12-31T23:59:60+01:00"),
    *("2026-12-01T10:00:00+24:00", "2026-12-01T10:00:00+01:60", "2026-12-01T10:00:00\u221201:00"),
    *("2026-12-01T10:00:00.1234567891Z", "20000-01-01T00:00:00Z", "12026-12-01T10:00:00Z"),
    *("1677-09-21T00:12:43.145224191Z", "2262-04-11T23:47:16.854775808Z", "9999-12-31T23:59:59Z"),
    *(
        "0001-01-01T00:00:00+23:00",
        "9999-12-31T23:59:60Z",
        "\u0662026-12-01T10:00:00Z",
        "1796119200",
    ),
    "2026-12-01T10:00:00Z\n",
    "2026-12-01T10:00:00." + "1" * 100_000 + "Z",
]


@pytest.mark.parametrize("value", NO_TIMES, ids=lambda value: repr(value)[:40])
def test_nothing_else_is_a_time(value):
    with pytest.raises(VersionError):
        parse_time(value, spec())


def test_a_time_without_offset_needs_a_declared_zone():
    assert TEN == parse_time("2026-12-01T11:00:00", spec(zone="Europe/Berlin"))
    assert TEN == parse_time("2026-12-01T10:00:00", spec(zone="UTC"))
    assert TEN == parse_time("2026-12-01T10:00:00Z", spec(zone="Europe/Berlin"))
    assert TEN == parse_time("2026-12-01T12:00:00+02:00", spec(zone="Europe/Berlin"))
    with pytest.raises(VersionError, match="no offset, and no `zone`"):
        parse_time("2026-12-01T10:00:00", spec())


@pytest.mark.parametrize(
    "local",
    ["2026-10-25T02:00:00", "2026-10-25T02:30:00", "2026-10-25T02:59:59.9", "2026-03-29T02:30:00"],
)
def test_an_hour_that_happens_twice_or_never_is_not_guessed(local):
    with pytest.raises(VersionError, match="clocks were changed"):
        parse_time(local, spec(zone="Europe/Berlin"))


def test_the_hours_around_a_change_of_clocks_are_read():
    berlin = spec(zone="Europe/Berlin")
    assert parse_time("2026-10-24T23:59:59Z", spec()) == parse_time("2026-10-25T01:59:59", berlin)
    assert parse_time("2026-10-25T02:00:00Z", spec()) == parse_time("2026-10-25T03:00:00", berlin)
    assert parse_time("2026-03-29T01:00:00Z", spec()) == parse_time("2026-03-29T03:00:00", berlin)


def test_an_unknown_zone_is_named():
    with pytest.raises(VersionError, match="Europe/Atlantis"):
        zone_of("Europe/Atlantis")
    for name in ("../../etc/passwd", "/etc/localtime", "", "Europe"):
        with pytest.raises(VersionError):
            zone_of(name)


@pytest.mark.parametrize(
    ("time_format", "value", "expected"),
    [
        ("s", 1796119200, TEN),
        ("s", "1796119200", TEN),
        ("s", Decimal("1796119200.5"), TEN + SECOND // 2),
        ("s", "1796119200.123456789", TEN + 123456789),
        ("s", "1796119200.1234567890000", TEN + 123456789),
        ("s", Decimal("1796119200.000"), TEN),
        ("s", Decimal("1.7961192E+9"), TEN),
        ("s", -1, -SECOND),
        ("s", "-0.5", -SECOND // 2),
        ("ms", 1796119200001, TEN + 10**6),
        ("ms", "1796119200001", TEN + 10**6),
        ("us", 1796119200000001, TEN + 1000),
        ("ns", 1796119200000000001, TEN + 1),
        ("ns", HIGHEST, HIGHEST),
    ],
    ids=repr,
)
def test_a_count_since_1970_is_read_in_its_declared_unit(time_format, value, expected):
    assert expected == parse_time(value, spec(time_format))


@pytest.mark.parametrize(
    ("time_format", "value"),
    [
        *(("s", bad) for bad in (None, True, "", " 1", "1 ", "+5", "1e9", "1_000", "\u0661", ".5")),
        *(("s", bad) for bad in ("1.", "01", "-", "2026-12-01T10:00:00Z", "0x1", "1.2.3", [], {})),
        *(("s", bad) for bad in (Decimal("0.1234567891"), "0.1234567891", Decimal("1E+4000"))),
        *(("s", bad) for bad in (2**63, 1796119200000, "1796119200000", Decimal("1E-4000"))),
        *(("ms", bad) for bad in (True, "1.5", Decimal("1.5"), Decimal("1.0"), 2**63, None)),
        *(
            ("ns", bad)
            for bad in (2**63, "9223372036854775808", Decimal(1), "-9223372036854775809")
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_nothing_else_is_a_count(time_format, value):
    """Milliseconds where seconds are declared are out of range, not a time far in the future."""
    with pytest.raises(VersionError):
        parse_time(value, spec(time_format))


moments = st.integers(LOWEST, HIGHEST)


@given(moments)
def test_what_is_written_is_read_again(nanoseconds):
    assert nanoseconds == parse_time(format_time(nanoseconds), spec())
    assert nanoseconds == parse_time(format_time(nanoseconds, digits=9), spec())
    assert nanoseconds == parse_time(format_time(nanoseconds, "s", digits=9), spec("s"))
    assert nanoseconds == parse_time(format_time(nanoseconds, "ns"), spec("ns"))


@given(st.integers(-(2**62), 2**62), st.integers(0, 9), st.sampled_from(["rfc3339", "s"]))
def test_what_is_cut_off_lies_in_the_past(nanoseconds, places, time_format):
    """A scan that starts from a shorter text reads more, never less."""
    text = format_time(nanoseconds, time_format, digits=places)
    read = parse_time(text, spec(time_format))
    assert 0 <= nanoseconds - read < 10 ** (9 - places)
    assert places == digits(text)


@pytest.mark.parametrize(("time_format", "unit"), [("s", 10**9), ("ms", 10**6), ("us", 1000)])
@given(nanoseconds=st.integers(-(2**62), 2**62))
def test_whole_counts_lie_in_the_past_too(time_format, unit, nanoseconds):
    read = parse_time(format_time(nanoseconds, time_format), spec(time_format))
    assert 0 <= nanoseconds - read < unit


@given(
    st.datetimes(datetime.fromisoformat("1700-01-01"), datetime.fromisoformat("2262-01-01")),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_we_read_what_python_writes(local, offset):
    moment = local.replace(tzinfo=timezone(timedelta(minutes=offset)))
    assert from_datetime(moment) == parse_time(moment.isoformat(), spec())
    assert moment == to_datetime(from_datetime(moment))


@given(st.datetimes(datetime.fromisoformat("1950-01-01"), datetime.fromisoformat("2037-01-01")))
def test_a_declared_zone_is_the_zone_database_s(local):
    moment = local.replace(tzinfo=ZoneInfo("America/New_York"))
    try:
        read = parse_time(local.isoformat(), spec(zone="America/New_York"))
    except VersionError:
        assert moment.replace(fold=0).utcoffset() != moment.replace(fold=1).utcoffset()
        return
    assert from_datetime(moment.astimezone(UTC)) == read


def test_a_watermark_keeps_the_sender_s_digits():
    for text in (
        "2026-12-01T10:00:00Z",
        "2026-12-01T10:00:00.0Z",
        "2026-12-01T10:00:00.120Z",
        "2026-12-01T10:00:00.123456789Z",
    ):
        assert text == format_time(parse_time(text, spec()), digits=digits(text))
    berlin = "2026-12-01T11:00:00.500+01:00"
    assert "2026-12-01T10:00:00.500Z" == format_time(
        parse_time(berlin, spec()), digits=digits(berlin)
    )
    assert 2 == digits(Decimal("1796119200.50"))
    assert "1796119200.50" == format_time(TEN + SECOND // 2, "s", digits=2)
    assert (
        0 == digits(1796119200) == digits(None) == digits("1796119200") == digits(Decimal("1E+2"))
    )


def test_the_reason_does_not_show_the_value():
    for value in ("tok_live_1", "2026-12-01T10:00:00 tok_live_1", Decimal("77.77")):
        for wanted in (INTEGER, TIMESTAMP):
            with pytest.raises(VersionError) as refused:
                parse_version(value, wanted)
            assert str(value) not in str(refused.value)
