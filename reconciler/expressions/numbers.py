"""Numbers that are declared as such, strictly: nothing is guessed, nothing is rounded."""

import re
from decimal import Decimal

from reconciler.exact_json import Json, NotJsonError, check_size
from reconciler.expressions.errors import MeaningError
from reconciler.expressions.meaning import describe, is_number

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,6})?", re.ASCII)
_LONGEST = 9000  #: characters of a number's text


def read_integer(value: Json) -> int:
    """
    Read a whole number, or the text of one: `7`, `"7"`, `7.00`.

    Raises MeaningError, with a reason that does not show the value, for everything else: booleans,
    fractions, `" 7"`, `"+7"`, `"007"`, `"1_0"`, digits that are not ASCII.
    """
    number = _number(value, _INTEGER)
    if number != number.to_integral_value():
        raise MeaningError("a whole number is needed, not one with a fraction")
    return int(number)


def read_decimal(value: Json) -> Decimal:
    """
    Read a number, or the text of one as JSON would write it: `12.3`, `"12.30"`, `"1e3"`.

    Raises MeaningError, with a reason that does not show the value, for everything else.
    """
    return _number(value, _DECIMAL)


def _number(value: Json, shape: re.Pattern[str]) -> Decimal:
    if not isinstance(value, str) and not is_number(value):
        raise MeaningError(f"a number is needed, not {describe(value)}")
    if isinstance(value, str) and (len(value) > _LONGEST or not shape.fullmatch(value)):
        raise MeaningError("the text is not a number")
    number = Decimal(value)  # type: ignore[arg-type]  # is_number has said so
    try:
        check_size(number)
    except NotJsonError as error:
        raise MeaningError(error.reason) from None
    return number
