"""What a destination wrote into an answer: JSON with exact numbers, or else text."""

import json
from decimal import Decimal, InvalidOperation
from typing import Any

MOST_DIGITS = 4300  # before the point, or after it: as many as Python reads of a whole number


def read_body(body: bytes) -> Any:
    """
    *body* as JSON with exact numbers, or else as text; never raises.

    Nine bytes can name a number that fills the memory when it is written out or reckoned with:
    a body with one of those is text.

    >>> read_body(b'{"fee": 0.30}'), read_body(b'{"fee": 1e999999999}')
    ({'fee': Decimal('0.30')}, '{"fee": 1e999999999}')
    """
    text = body.decode("utf-8-sig", "replace")  # some begin with a byte order mark (RFC 8259, 8.1)
    try:
        return json.loads(text, parse_float=_number, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent that not even Decimal holds
        raise ValueError("exponent") from None
    exponent = number.as_tuple().exponent
    if number.adjusted() >= MOST_DIGITS or (isinstance(exponent, int) and -exponent > MOST_DIGITS):
        raise ValueError("digits")
    return number


def _refuse(constant: str) -> None:
    raise ValueError(constant)
