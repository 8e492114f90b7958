"""The filters and tests of the language; there are no others."""

import base64
import hashlib
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal, InvalidOperation

from reconciler.exact_json import MAX_DIGITS, Json, dumps, same
from reconciler.expressions import meaning
from reconciler.expressions.currencies import EXPONENTS
from reconciler.expressions.errors import MeaningError
from reconciler.expressions.meaning import check_text, describe, is_number, less, text_of
from reconciler.expressions.numbers import read_decimal, read_integer

_ROUNDINGS = {"common": ROUND_HALF_UP, "ceil": ROUND_CEILING, "floor": ROUND_FLOOR}
_EXACT = Context(prec=2 * MAX_DIGITS + 10, traps=[InvalidOperation])


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter: what it does, and the names of what it may be given in parentheses."""

    run: Callable[..., Json]
    parameters: tuple[str, ...] = ()
    required: int = 0


def default(value: Json, default_value: Json = "", boolean: Json = False) -> Json:
    """Stand in for null; with `true` as second argument for all that counts as false."""
    return default_value if value is None or (boolean is True and not value) else value


def to_json(value: Json) -> Json:
    """Write the value as JSON, numbers exactly."""
    return check_text(dumps(value))


def minor_units(value: Json, currency: Json) -> Json:
    """Return an amount in the currency's smallest unit: 12.30 EUR are 1230, 12 JPY are 12."""
    amount = _EXACT.scaleb(read_decimal(value), _exponent(currency))
    if amount != amount.to_integral_value(context=_EXACT):
        raise MeaningError("the amount has a fraction of the smallest unit")
    return int(amount)


def major_units(value: Json, currency: Json) -> Json:
    """Return an amount given in the currency's smallest unit: 1230 are 12.30 EUR."""
    return _EXACT.scaleb(Decimal(read_integer(value)), -_exponent(currency))


def rounded(value: Json, precision: Json = 0, method: Json = "common") -> Json:
    """Round to so many places: `common` (half away from zero), `ceil` or `floor`."""
    if type(precision) is not int or not 0 <= precision <= meaning.PRECISION:
        raise MeaningError(f"`round` takes 0 to {meaning.PRECISION} places")
    if not isinstance(method, str) or method not in _ROUNDINGS:
        raise MeaningError(f"`round` knows {', '.join(_ROUNDINGS)}")
    places = Decimal(1).scaleb(-precision)
    number = read_decimal(value).quantize(places, rounding=_ROUNDINGS[method], context=_EXACT)
    return number if precision else int(number)


def absolute(value: Json) -> Json:
    """Return a number without its sign."""
    return meaning.negate(value) if less(value, 0, or_equal=False) else meaning.affirm(value)


def replace(value: Json, old: Json, new: Json) -> Json:
    """Replace a piece of a text wherever it stands."""
    text, piece, by = _text(value), _text(old), _text(new)
    if not piece:
        raise MeaningError("`replace` needs a piece to look for")
    if len(text) + text.count(piece) * (len(by) - len(piece)) > meaning.MAX_TEXT:
        raise MeaningError(f"it comes to more than {meaning.MAX_TEXT} characters")
    return text.replace(piece, by)


def split(value: Json, separator: Json) -> Json:
    """Cut a text into a list."""
    if not _text(separator):
        raise MeaningError("`split` needs a separator")
    return [*_text(value).split(_text(separator))]


def join(value: Json, d: Json = "") -> Json:
    """Write the items of a list into one text."""
    if not isinstance(value, list):
        raise MeaningError(f"`join` takes a list, not {describe(value)}")
    pieces = [text_of(item) for item in value]
    if sum(map(len, pieces)) + len(pieces) * len(_text(d)) > meaning.MAX_TEXT:
        raise MeaningError(f"it comes to more than {meaning.MAX_TEXT} characters")
    return _text(d).join(pieces)


def length(value: Json) -> Json:
    """Count the characters of a text, the items of a list, the members of an object."""
    if isinstance(value, str | list | Mapping):
        return len(value)
    raise MeaningError(f"{describe(value)} has no length")


def first(value: Json) -> Json:
    """Return the first item of a list; null where there is none."""
    return meaning.member(_list(value), 0)


def last(value: Json) -> Json:
    """Return the last item of a list; null where there is none."""
    return meaning.member(_list(value), -1)


def escape(value: Json) -> Json:
    """Write the value so that it is text in HTML, between tags and in quotes."""
    written = html.escape(text_of(value))
    if len(written) > meaning.MAX_TEXT:
        raise MeaningError(f"it comes to more than {meaning.MAX_TEXT} characters")
    return written


def _hashed(name: str) -> Filter:
    def hashed(value: Json) -> Json:
        return hashlib.new(name, text_of(value).encode(), usedforsecurity=False).hexdigest()

    return Filter(hashed)


def _text(value: Json) -> str:
    if isinstance(value, str):
        return value
    raise MeaningError(f"a text is needed, not {describe(value)}")


def _list(value: Json) -> Json:
    if value is None or isinstance(value, list):
        return value
    raise MeaningError(f"a list is needed, not {describe(value)}")


def _exponent(currency: Json) -> int:
    code = _text(currency).upper()
    if code not in EXPONENTS:
        raise MeaningError("the currency is no code of ISO 4217 with minor units")
    return EXPONENTS[code]


FILTERS: Mapping[str, Filter] = {
    "abs": Filter(absolute),
    "b64encode": Filter(lambda value: base64.b64encode(text_of(value).encode()).decode()),
    "d": Filter(default, ("default_value", "boolean")),
    "decimal": Filter(read_decimal),
    "default": Filter(default, ("default_value", "boolean")),
    "escape": Filter(escape),
    "first": Filter(first),
    "int": Filter(read_integer),
    "join": Filter(join, ("d",)),
    "last": Filter(last),
    "length": Filter(length),
    "lower": Filter(lambda value: _text(value).lower()),
    "major_units": Filter(major_units, ("currency",), 1),
    "md5": _hashed("md5"),
    "minor_units": Filter(minor_units, ("currency",), 1),
    "replace": Filter(replace, ("old", "new"), 2),
    "round": Filter(rounded, ("precision", "method")),
    "sha1": _hashed("sha1"),
    "sha256": _hashed("sha256"),
    "sha512": _hashed("sha512"),
    "split": Filter(split, ("separator",), 1),
    "string": Filter(text_of),
    "tojson": Filter(to_json),
    "trim": Filter(lambda value: _text(value).strip()),
    "upper": Filter(lambda value: _text(value).upper()),
}

TESTS: Mapping[str, Filter] = {
    "boolean": Filter(lambda value: isinstance(value, bool)),
    "defined": Filter(lambda value: value is not None),
    "eq": Filter(same, ("other",), 1),
    "even": Filter(lambda value: same(meaning.modulo(value, 2), 0)),
    "false": Filter(lambda value: value is False),
    "in": Filter(lambda value, holder: meaning.contains(holder, value), ("holder",), 1),
    "integer": Filter(lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "mapping": Filter(lambda value: isinstance(value, Mapping)),
    "ne": Filter(lambda value, other: not same(value, other), ("other",), 1),
    "none": Filter(lambda value: value is None),
    "number": Filter(is_number),
    "odd": Filter(lambda value: same(meaning.modulo(value, 2), 1)),
    "sequence": Filter(lambda value: isinstance(value, list)),
    "string": Filter(lambda value: isinstance(value, str)),
    "true": Filter(lambda value: value is True),
    "undefined": Filter(lambda value: value is None),
}
