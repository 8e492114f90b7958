"""What operators mean over JSON values: exact numbers, one null, and nothing of Python's."""

from collections.abc import Mapping
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow

from reconciler.exact_json import MAX_DIGITS, Json, NotJsonError, check_size, plain, same
from reconciler.expressions.errors import MeaningError

MAX_TEXT = 8 * 1024**2  #: characters that one expression or template may come to
MAX_POWER = 1000  #: the largest exponent of `**`
PRECISION = 50  #: significant digits of a quotient that has no end

_WORDS = (
    (bool, "a boolean"),
    ((int, Decimal), "a number"),
    (str, "a text"),
    (Mapping, "an object"),
    (list, "a list"),
)
_EXACT = Context(prec=8 * MAX_DIGITS, traps=[InvalidOperation, DivisionByZero, Overflow])


class PlainText(str):
    """
    A text in a place where others may have meant an object.

    To ask it for a member is an error and not null: `not body.error` holds for every page that
    some proxy answers instead of the API, and `body.ok` for none of them.
    """

    __slots__ = ()


def member(value: Json, name: Json) -> Json:
    """Look up a member of an object or an item of a list; everything else has none: null."""
    if isinstance(value, Mapping):
        return value.get(name) if isinstance(name, str) else None
    if isinstance(value, list) and type(name) is int and -len(value) <= name < len(value):
        return value[name]
    if isinstance(value, PlainText):
        raise MeaningError("a text has no members")
    return None


def has(value: Json, path: tuple[Json, ...]) -> bool:
    """Tell whether *path* leads to a member that is there, be it null."""
    for name in path[:-1]:
        value = member(value, name)
    last = path[-1]
    if isinstance(value, Mapping):
        return last in value if isinstance(last, str) else False
    return isinstance(value, list) and type(last) is int and -len(value) <= last < len(value)


def part(value: Json, start: Json, stop: Json) -> Json:
    """Cut a text or a list: `key[4:]`."""
    cut = slice(_bound(start), _bound(stop))
    match value:
        case None:
            return None
        case str():
            return value[cut]
        case list():
            return value[cut]
        case _:
            raise MeaningError(f"{describe(value)} cannot be cut")


def describe(value: object) -> str:
    """Name what a value is, without showing it."""
    if value is None:
        return "null"
    for kinds, words in _WORDS:
        if isinstance(value, kinds):
            return words
    return f"a {type(value).__name__}"


def text_of(value: Json) -> str:
    """Write a value into a text; null, objects and lists do not belong there."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return plain(value)
        case _:
            raise MeaningError(f"it comes to {describe(value)}, which has no place in a text")


def check_text(text: str) -> str:
    """Return *text* unless it is longer than MAX_TEXT."""
    if len(text) > MAX_TEXT:
        raise MeaningError(f"it comes to more than {MAX_TEXT} characters")
    return text


def is_number(value: Json) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def less(one: Json, other: Json, *, or_equal: bool) -> bool:
    """Order two numbers or two texts; with null the answer is no."""
    if one is None or other is None:
        return False
    if (is_number(one) and is_number(other)) or (isinstance(one, str) and isinstance(other, str)):
        return one <= other if or_equal else one < other  # type: ignore[operator]
    raise MeaningError(f"{describe(one)} and {describe(other)} have no order")


def contains(holder: Json, value: Json) -> bool:
    """Find an item in a list, a member in an object, a text in a text; null holds nothing."""
    match holder:
        case None:
            return False
        case list():
            return any(same(item, value) for item in holder)
        case Mapping():
            return isinstance(value, str) and value in holder
        case str() if value is None:
            return False
        case str() if isinstance(value, str):
            return value in holder
        case _:
            raise MeaningError(f"{describe(holder)} cannot hold {describe(value)}")


def add(one: Json, other: Json) -> Json:
    if isinstance(one, str) and isinstance(other, str):
        return check_text(one + other)
    if isinstance(one, list) and isinstance(other, list):
        if len(one) + len(other) > MAX_TEXT:
            raise MeaningError("a list becomes too long")
        return one + other
    left, right = _numbers(one, other, "+")
    if isinstance(left, int) and isinstance(right, int):
        return _bounded(left + right)
    return _bounded(_EXACT.add(left, right))


def subtract(one: Json, other: Json) -> Json:
    left, right = _numbers(one, other, "-")
    if isinstance(left, int) and isinstance(right, int):
        return _bounded(left - right)
    return _bounded(_EXACT.subtract(left, right))


def multiply(one: Json, other: Json) -> Json:
    left, right = _numbers(one, other, "*")
    if isinstance(left, int) and isinstance(right, int):
        return _bounded(left * right)
    return _bounded(_EXACT.multiply(left, right))


def divide(one: Json, other: Json) -> Json:
    """Divide as Decimal: exactly where the quotient ends, else to PRECISION digits (half even)."""
    left, right = (Decimal(number) for number in _numbers(one, other, "/"))
    if not right:
        raise MeaningError("it divides by zero")
    # A quotient that ends at all does so within four more digits per digit of the divisor.
    needed = len(left.as_tuple().digits) + 4 * len(right.as_tuple().digits)
    exact = Context(prec=max(PRECISION, needed), traps=[InvalidOperation, Overflow])
    return _bounded(exact.divide(left, right))


def floor_divide(one: Json, other: Json) -> Json:
    """Divide and round towards minus infinity, whole numbers and Decimals alike."""
    return _floored(one, other, "//")[0]


def modulo(one: Json, other: Json) -> Json:
    """Return what `//` leaves over; it has the divisor's sign."""
    return _floored(one, other, "%")[1]


def power(one: Json, other: Json) -> Json:
    base, exponent = _numbers(one, other, "**")
    if not isinstance(exponent, int) or not 0 <= exponent <= MAX_POWER:
        raise MeaningError(f"an exponent is a whole number from 0 to {MAX_POWER}")
    digits = base.bit_length() // 3 if isinstance(base, int) else len(base.as_tuple().digits)
    if digits * exponent > 2 * MAX_DIGITS:
        raise MeaningError(f"it comes to a number of more than {MAX_DIGITS} digits")
    if isinstance(base, int):
        return _bounded(base**exponent)
    return _bounded(_EXACT.power(base, exponent) if exponent else Decimal(1))


def negate(value: Json) -> Json:
    number, _ = _numbers(value, 0, "-")
    return -number if isinstance(number, int) else number.copy_negate()


def affirm(value: Json) -> Json:
    return _numbers(value, 0, "+")[0]


def _bound(value: Json) -> int | None:
    if value is None or type(value) is int:
        return value
    raise MeaningError("the bounds of a cut are whole numbers")


def _numbers(one: Json, other: Json, operator: str) -> tuple[int | Decimal, int | Decimal]:
    for value in (one, other):
        if not is_number(value):
            raise MeaningError(f"`{operator}` takes numbers, not {describe(value)}")
    return one, other  # type: ignore[return-value]


def _bounded(number: int | Decimal) -> int | Decimal:
    try:
        check_size(number)
    except NotJsonError as error:
        raise MeaningError(f"it comes to too large a number: {error.reason}") from None
    return number


def _floored(one: Json, other: Json, operator: str) -> tuple[Json, Json]:
    left, right = _numbers(one, other, operator)
    if not right:
        raise MeaningError("it divides by zero")
    if isinstance(left, int) and isinstance(right, int):
        return divmod(left, right)
    scale = max(_places(left), _places(right))
    quotient, rest = divmod(_scaled(left, scale), _scaled(right, scale))
    return _bounded(Decimal(quotient)), _bounded(_EXACT.scaleb(Decimal(rest), -scale))


def _places(number: int | Decimal) -> int:
    exponent = Decimal(number).as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def _scaled(number: int | Decimal, places: int) -> int:
    return int(_EXACT.scaleb(Decimal(number), places))
