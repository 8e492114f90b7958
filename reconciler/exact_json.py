"""JSON without loss: numbers are int or Decimal, and what PostgreSQL cannot store is refused."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import NoReturn, TypeAlias

from reconciler.errors import ReconcilerError

Json: TypeAlias = "bool | int | Decimal | str | list[Json] | Mapping[str, Json] | None"

MAX_DEPTH = 200  #: objects and lists inside each other
MAX_DIGITS = 4300  #: before the point, and after it: Python's limit, inside PostgreSQL's
MAX_WRITTEN_OUT = 1_000_000  #: digits of all numbers with large exponents of one document

_QUIET_EXPONENT = 40  #: numbers that grow by no more than this are not worth counting
_DECIMAL_MARK = "\x00"  #: marks a Decimal while C writes it as a text; no text of ours holds it
_MARKED = re.compile(r'"\\u0000(-?[0-9]+(?:\.[0-9]+)?)"')
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def parse(data: bytes) -> Json:
    """
    Read *data* exactly: whole numbers are int, all others Decimal.

    Of two members with one name the last counts, as in PostgreSQL's jsonb.

    Raises NotJsonError, with a reason that repeats nothing of the content, for what is not
    JSON (RFC 8259) and for what could not be stored: bytes that are not UTF-8, a byte order
    mark, NaN and Infinity, NUL or half of a surrogate pair in any text or member name, more than
    MAX_DEPTH levels, and numbers of more than MAX_DIGITS digits when written out.

    >>> parse(b'{"id": 9007199254740993, "amount": 12.30}')
    {'id': 9007199254740993, 'amount': Decimal('12.30')}
    """
    if data.startswith(b"\xef\xbb\xbf"):
        raise NotJsonError("it begins with a byte order mark")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotJsonError(f"byte {error.start} is not UTF-8") from None
    value = _decoded(text)
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if b"\\u0000" in data or b"\\ud" in data or b"\\uD" in data:
        _check_texts(value)
    return value


def dumps(value: Json) -> str:
    """
    Write *value* as one line of JSON, every number in plain digits and exactly.

    Raises NotJsonError for what PostgreSQL cannot hold. What did not come out of `parse` goes
    through `require_json` first: a float would pass here unnoticed.

    >>> dumps({"amount": Decimal("1.230E+1")})
    '{"amount":12.30}'
    """
    return _encoded(value, plain, sort_keys=False)


def canonical(value: Json) -> bytes:
    """
    Write *value* so that equal values are equal bytes: names sorted, 12.30 as 12.3, 1.0 as 1.

    >>> canonical({"b": Decimal("12.30"), "a": Decimal("1E+1")})
    b'{"a":10,"b":12.3}'
    """
    return _encoded(value, _shortest, sort_keys=True).encode()


def digest(value: Json) -> str:
    """Return the SHA-256 of the canonical form, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def same(one: Json, other: Json) -> bool:
    """
    Tell whether two values are equal as JSON: 1.0 is 1, but true is not 1.

    >>> same([Decimal("12.30")], [Decimal("12.3")]), same(True, 1)
    (True, False)
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return len(one) == len(other) and all(
            name in other and same(value, other[name]) for name, value in one.items()
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other


def plain(number: int | Decimal) -> str:
    """
    Write *number* in plain digits: no exponent, no sign on zero, trailing zeros kept.

    >>> plain(Decimal("1.50E+3")), plain(Decimal("1E-7")), plain(Decimal("12.30"))
    ('1500', '0.0000001', '12.30')
    """
    check_size(number)
    if isinstance(number, int):
        return str(number)
    return format(number.copy_abs() if number.is_zero() else number, "f")


def check_size(number: int | Decimal) -> None:
    """Raise NotJsonError where *number* has more than MAX_DIGITS digits on a side of the point."""
    if isinstance(number, int):
        if number.bit_length() > _MAX_BITS or abs(number) >= _MAX_WHOLE:
            raise NotJsonError(f"a number has more than {MAX_DIGITS} digits")
        return
    if not number.is_finite():
        raise NotJsonError("a number is not finite")
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    if number.adjusted() >= MAX_DIGITS or -exponent > MAX_DIGITS or exponent >= MAX_DIGITS:
        raise NotJsonError(f"a number has more than {MAX_DIGITS} digits")


def require_json(value: object, *, _depth: int = 0) -> Json:
    """
    Return *value* if all of it is JSON in our sense, else raise NotJsonError: for what does
    not come out of `parse`, but was made by a handler or read from a file.
    """
    if _depth >= MAX_DEPTH and isinstance(value, Mapping | list):
        raise NotJsonError(f"it is nested more than {MAX_DEPTH} levels deep")
    match value:
        case None | bool():
            pass
        case str():
            _check_text(value)
        case int() | Decimal():
            check_size(value)
        case Mapping():
            for name, member in value.items():
                if not isinstance(name, str):
                    raise NotJsonError("a member's name is not a text")
                _check_text(name)
                require_json(member, _depth=_depth + 1)
        case list():
            for member in value:
                require_json(member, _depth=_depth + 1)
        case _:
            _refuse_type(value)
    return value


class NotJsonError(ReconcilerError):
    """It is not JSON, or none that could be stored. *reason* repeats nothing of the content."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not usable as JSON: {reason}")
        self.reason = reason


class _LargeExponentError(Exception):
    """A number grows when written out: the document has to be counted."""


class _Counter:
    """Reads numbers with exponents and refuses documents that would explode."""

    digits = 0

    def number(self, text: str) -> Decimal:
        value = _decimal(text)
        exponent = value.as_tuple().exponent
        assert isinstance(exponent, int)
        self.digits += abs(exponent)
        if self.digits > MAX_WRITTEN_OUT:
            raise NotJsonError(f"its numbers have more than {MAX_WRITTEN_OUT} digits written out")
        return value


def _decoded(text: str) -> Json:
    try:
        try:
            return _READER.decode(text)  # type: ignore[no-any-return]
        except _LargeExponentError:
            counter = _Counter()
            reader = json.JSONDecoder(parse_float=counter.number, parse_constant=_refuse_constant)
            return reader.decode(text)  # type: ignore[no-any-return]
    except json.JSONDecodeError as error:
        raise NotJsonError(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise NotJsonError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError:  # what int() says to more digits than sys.get_int_max_str_digits()
        raise NotJsonError(f"a number has more than {MAX_DIGITS} digits") from None


def _number(text: str) -> Decimal:
    if len(text) < MAX_DIGITS and "e" not in text and "E" not in text:
        return Decimal(text)
    value = _decimal(text)
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and abs(exponent) > len(text) + _QUIET_EXPONENT:
        raise _LargeExponentError
    return value


def _decimal(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:  # an exponent beyond what Decimal itself can hold
        raise NotJsonError(f"a number has more than {MAX_DIGITS} digits") from None
    check_size(value)
    return value


def _shortest(number: Decimal) -> str:
    text = plain(number)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _refuse_constant(name: str) -> NoReturn:
    raise NotJsonError(f"{name} is not a JSON number")


def _refuse_type(value: object) -> NoReturn:
    hint = "; use Decimal" if isinstance(value, float) else ""
    raise NotJsonError(f"a {type(value).__name__} is not a JSON value{hint}")


def _encoded(value: Json, write: Callable[[Decimal], str], *, sort_keys: bool) -> str:
    """Let C write everything but Decimals; those it writes as marked texts that we unwrap."""
    marked = 0

    def mark(foreign: object) -> object:
        nonlocal marked
        if isinstance(foreign, Decimal):
            marked += 1
            return _DECIMAL_MARK + write(foreign)
        if isinstance(foreign, Mapping):
            return dict(foreign)
        _refuse_type(foreign)

    writer = json.JSONEncoder(
        ensure_ascii=False,
        allow_nan=False,
        sort_keys=sort_keys,
        separators=(",", ":"),
        default=mark,
    )
    try:
        text = writer.encode(value)
    except RecursionError:
        raise NotJsonError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    except (TypeError, ValueError):
        require_json(value)  # says what is wrong in our words
        raise
    if marked:
        text, found = _MARKED.subn(r"\1", text)
        if found != marked:
            raise NotJsonError("a text holds NUL")
    if not text.isascii() and _UNSTORABLE.search(text):
        raise NotJsonError("a text holds half of a surrogate pair")
    return text


def _check_depth(value: Json) -> None:
    """Go down level by level, without recursion and touching containers only."""
    level = [value] if isinstance(value, Mapping | list) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise NotJsonError(f"it is nested more than {MAX_DEPTH} levels deep")
        level = [
            member
            for holder in level
            for member in (holder if isinstance(holder, list) else holder.values())
            if isinstance(member, Mapping | list)
        ]


def _check_texts(value: Json) -> None:
    match value:
        case str():
            _check_text(value)
        case list() | Mapping():
            for member in value:  # of an object: the names of its members
                _check_texts(member)
            _check_texts([*value.values()] if isinstance(value, Mapping) else None)


def _check_text(text: str) -> None:
    if found := _UNSTORABLE.search(text):
        what = "NUL" if found[0] == "\x00" else "half of a surrogate pair"
        raise NotJsonError(f"a text holds {what}, which PostgreSQL cannot store")


_MAX_WHOLE = 10**MAX_DIGITS
_MAX_BITS = _MAX_WHOLE.bit_length()
_READER = json.JSONDecoder(parse_float=_number, parse_constant=_refuse_constant)
