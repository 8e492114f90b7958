"""The one parser of versions and times, for every path: what is compared is an integer."""

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Context, Decimal
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from reconciler.errors import ReconcilerError
from reconciler.exact_json import Json
from reconciler.expressions.meaning import describe
from reconciler.settings.models import TimeSpec, VersionSpec

Format = Literal["rfc3339", "s", "ms", "us", "ns"]

LOWEST, HIGHEST = -(2**63), 2**63 - 1  #: what PostgreSQL's bigint holds

_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  #: nanoseconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY = 86_400  #: seconds
_INTEGER = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_SECONDS = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,30})?", re.ASCII)
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,30}))?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))?",
    re.ASCII,
)
_FRACTION = re.compile(r"\.([0-9]+)", re.ASCII)
_EXACT = Context(prec=10_000)


def parse_version(value: Json, spec: VersionSpec) -> int:
    """
    Read a version as *spec* declares it; versions compare as the integers that this returns.

    `integer`: a whole JSON number, or its digits as a text: no plus sign, padding, leading
    zeros or underscores, and no 7.0. `timestamp`: as `parse_time`. `observed` versions are the
    time of a read and are never parsed.

    Raises VersionError for everything else, and for what is beyond 64 bits.
    """
    match spec.kind:
        case "integer":
            return _bounded(_whole(value))
        case "timestamp":
            return parse_time(value, spec)
        case "observed":
            raise VersionError("an observed version is not read from the object")


def parse_time(value: Json, spec: TimeSpec | VersionSpec) -> int:
    """
    Read a time as *spec* declares it, as nanoseconds since 1970-01-01T00:00:00Z.

    `rfc3339`: RFC 3339, with an offset. Without one only where `zone` is declared, and not in
    an hour that the clocks there skip or repeat. Digits beyond nanoseconds must be zeros. A leap
    second (23:59:60 UTC at the end of a month) is the second after it, as on POSIX clocks.
    `s` `ms` `us` `ns`: a whole number, or its digits as a text; `s` also with a fraction.

    Raises VersionError for everything else, and for what is beyond 64 bits (1677 to 2262).
    """
    if spec.format == "rfc3339":
        return _bounded(_from_rfc3339(value, spec.zone))
    if spec.format == "s" and isinstance(value, Decimal | str):
        return _bounded(_from_seconds(value))
    return _bounded(_whole(value) * _UNITS[spec.format])


def digits(value: Json) -> int:
    """
    Count the digits of a second's fraction, as the sender wrote them.

    >>> digits("2026-12-01T10:00:00.120+01:00"), digits("2026-12-01T10:00:00Z"), digits(1796119200)
    (3, 0, 0)
    """
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        return min(max(0, -exponent), 9) if isinstance(exponent, int) else 0
    match = _FRACTION.search(value) if isinstance(value, str) else None
    return min(len(match[1]), 9) if match else 0


def format_time(
    nanoseconds: int, time_format: Format = "rfc3339", *, digits: int | None = None
) -> str:
    """
    Write a time as `parse_time` reads it, RFC 3339 in UTC.

    *digits* are those of the second's fraction (`rfc3339` and `s`); None: as many as it needs in
    `rfc3339`, none in `s`. What they cannot hold is cut off towards the past: a scan that
    starts there reads more, never less.

    >>> format_time(1796119200_120000000), format_time(1796119200_120000000, "s")
    ('2026-12-01T10:00:00.12Z', '1796119200')
    """
    if time_format in ("ms", "us", "ns"):
        return str(nanoseconds // _UNITS[time_format])
    if digits is not None:
        unit = 10 ** (9 - digits)
        nanoseconds = nanoseconds // unit * unit
    seconds, rest = divmod(nanoseconds, 10**9)
    if time_format == "s":
        if not digits:
            return str(seconds)
        whole, rest = divmod(abs(nanoseconds), 10**9)
        return f"{'-' if nanoseconds < 0 else ''}{whole}.{rest:09d}"[: digits - 9 or None]
    fraction = f"{rest:09d}"
    fraction = fraction.rstrip("0") if digits is None else fraction[:digits]
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}{'.' if fraction else ''}{fraction}Z"


def to_datetime(nanoseconds: int) -> datetime:
    """Return a time in UTC, cut to the microseconds that Python and PostgreSQL hold."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def from_datetime(moment: datetime) -> int:
    """Return nanoseconds since 1970, exactly; *moment* says its offset."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """Find a time zone; raises VersionError where this host knows none of that name."""
    if name in ("UTC", "Z"):
        return UTC  # also on hosts without a time zone database
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise VersionError(f"this host knows no time zone {name!r}") from None


class VersionError(ReconcilerError):
    """A version or time cannot be read. *reason* does not show the value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _bounded(number: int) -> int:
    if LOWEST <= number <= HIGHEST:
        return number
    raise VersionError("it is beyond 64 bits")


def _whole(value: Json) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        what = "a number with a point" if isinstance(value, Decimal) else describe(value)
        raise VersionError(f"a whole number is needed, not {what}")
    if not _INTEGER.fullmatch(value):
        raise VersionError("the text is not a whole number in plain digits")
    if len(value) > len(str(LOWEST)):
        raise VersionError("it is beyond 64 bits")
    return int(value)


def _from_seconds(value: Decimal | str) -> int:
    if isinstance(value, str) and not _SECONDS.fullmatch(value):
        raise VersionError("the text is not a number of seconds")
    number = Decimal(value)
    if number.adjusted() > len(str(HIGHEST)):
        raise VersionError("it is beyond 64 bits")
    scaled = _EXACT.scaleb(number, 9)
    if scaled != scaled.to_integral_value():
        raise VersionError("it has more digits than nanoseconds have")
    return int(scaled)


def _from_rfc3339(value: Json, zone: str | None) -> int:
    if not isinstance(value, str):
        raise VersionError(f"a time as a text is needed, not {describe(value)}")
    match = _RFC3339.fullmatch(value)
    if not match:
        raise VersionError("the text is not a time of RFC 3339")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    fraction, utc, sign = match[7] or "", match[8], match[9]
    if hour > 23 or minute > 59 or second > 60:
        raise VersionError("there is no such time of day")
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        raise VersionError("there is no such day") from None
    if utc:
        offset = 0
    elif sign:
        offset = _offset(sign, int(match[10]), int(match[11]))
    else:
        offset = _zone_offset(datetime(year, month, day, hour, minute, min(second, 59)), zone)  # noqa: DTZ001  # its zone is the question
    seconds = days * _DAY + hour * 3600 + minute * 60 + second - offset
    if second == 60 and not _follows_a_month(seconds):
        raise VersionError("there was no leap second then")
    if fraction[9:].strip("0"):
        raise VersionError("it has more digits than nanoseconds have")
    return seconds * 10**9 + int(fraction[:9].ljust(9, "0"))


def _offset(sign: str, hours: int, minutes: int) -> int:
    if hours > 23 or minutes > 59:
        raise VersionError("there is no such offset")
    seconds = hours * 3600 + minutes * 60
    return -seconds if sign == "-" else seconds


def _zone_offset(local: datetime, zone: str | None) -> int:
    if zone is None:
        raise VersionError("it has no offset, and no `zone` is declared")
    known = zone_of(zone)
    earlier = local.replace(tzinfo=known, fold=0).utcoffset()
    later = local.replace(tzinfo=known, fold=1).utcoffset()
    if earlier is None or earlier != later:
        raise VersionError("the clocks were changed then: without an offset it is not one time")
    return earlier // timedelta(seconds=1)


def _follows_a_month(seconds: int) -> bool:
    days, time_of_day = divmod(seconds, _DAY)
    day = days + _EPOCH_DAY
    return time_of_day == 0 and 0 < day <= date.max.toordinal() and date.fromordinal(day).day == 1
