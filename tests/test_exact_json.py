"""JSON comes in and goes out exactly, or is refused once with a reason."""

import contextlib
import json
import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from reconciler import exact_json
from reconciler.exact_json import NotJsonError, canonical, digest, dumps, parse, require_json, same

texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
numbers = st.integers(-(10**30), 10**30) | st.decimals(
    allow_nan=False, allow_infinity=False, min_value=-(10**25), max_value=10**25
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)

REFUSED = {
    "nothing at all": (b"", "Expecting value"),
    "cut off": (b'{"id": "evt_1"', "at character"),
    "something after it": (b"{} {}", "Extra data"),
    "single quotes": (b"{'id': 1}", "at character"),
    "NaN": (b'{"x": NaN}', "NaN is not a JSON number"),
    "minus infinity": (b'{"y": [-Infinity]}', "-Infinity is not a JSON number"),
    "NUL in a text": (rb'{"note": "a\u0000b"}', "NUL"),
    "NUL in a name": (rb'{"a\u0000b": 1}', "NUL"),
    "NUL in the id itself": (rb'{"id": "\u0000"}', "NUL"),
    "NUL after a backslash": (rb'{"id": "\\\u0000"}', "NUL"),
    "a raw NUL": (b'{"id": "\x00"}', "control character"),
    "half a pair": (rb'{"x": ["\ud800"]}', "surrogate"),
    "the other half": (rb'{"x": "\uDC00 "}', "surrogate"),
    "halves the wrong way round": (rb'"\udc00\ud800"', "surrogate"),
    "half a pair in a name": (rb'{"\ud83d": 1}', "surrogate"),
    "a surrogate in UTF-8": (b'"\xed\xa0\x80"', "not UTF-8"),
    "latin-1": ('{"name": "Jos\xe9"}'.encode("latin-1"), "byte 13 is not UTF-8"),
    "overlong": (b'"\xc0\x80"', "not UTF-8"),
    "UTF-16": ('{"id": 1}'.encode("utf-16"), "not UTF-8"),
    "UTF-16 without a mark": ('{"id": 1}'.encode("utf-16-le"), "at character"),
    "a byte order mark": (b'\xef\xbb\xbf{"id": 1}', "byte order mark"),
    "201 levels": (b"[" * 201 + b"]" * 201, "nested"),
    "201 levels of objects": (b'{"a":' * 201 + b"1" + b"}" * 201, "nested"),
    "20,000 levels": (b"[" * 20_000 + b"]" * 20_000, "nested"),
    "20,000 levels inside data": (
        b'{"id": "evt_1", "data": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        "nested",
    ),
    "20,000 levels never closed": (b'{"a":' * 20_000, "nested"),
    "an integer of 4,301 digits": (b"[" + b"9" * 4301 + b"]", "more than 4300 digits"),
    "a negative one": (b"-" + b"9" * 4301, "more than 4300 digits"),
    "4,301 digits after the point": (b"0." + b"1" * 4301, "more than 4300 digits"),
    "1e200000": (b'{"x": 1e200000}', "more than 4300 digits"),
    "1e-200000": (b'{"x": 1e-200000}', "more than 4300 digits"),
    "0e200000": (b'{"x": 0e200000}', "more than 4300 digits"),
    "beyond Decimal": (b"1e99999999999999999999999", "more than 4300 digits"),
    "beyond Decimal, small": (b"1e-99999999999999999999999", "more than 4300 digits"),
    "many that explode together": (b"[" + b"1e4000," * 300 + b"1]", "digits written out"),
    "+1": (b"+1", "at character"),
    "01": (b"01", "at character"),
    ".5": (b".5", "at character"),
    "0x1f": (b"0x1f", "at character"),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_stored_is_refused_with_a_reason(data, reason):
    with pytest.raises(NotJsonError) as refused:
        parse(data)
    assert reason in refused.value.reason
    assert len(refused.value.reason) < 100


ACCEPTED = {
    "beyond 2^53": (b"9007199254740993", 9007199254740993),
    "beyond 64 bits": (b"170141183460469231731687303715884105728", 2**127),
    "money": (b"12.30", Decimal("12.30")),
    "more digits than a float": (b"0.1000000000000000000001", Decimal("0.1000000000000000000001")),
    "an exponent": (b"1.5E+3", Decimal(1500)),
    "the largest double": (b"1.7976931348623157e308", Decimal("1.7976931348623157e308")),
    "the smallest double": (b"5e-324", Decimal("5e-324")),
    "null": (b"null", None),
    "a text": (b' "x" ', "x"),
    "an escaped pair": (rb'"\ud83d\ude00"', "\U0001f600"),
    "what looks like NUL": (rb'"\\u0000"', r"\u0000"),
    "what looks like a surrogate": (rb'"\\ud800"', r"\ud800"),
    "the last of two": (b'{"id": "evt_1", "id": "evt_2", "v": 1, "v": 9}', {"id": "evt_2", "v": 9}),
    "odd names": (b'{"__proto__": 1, "constructor": 2}', {"__proto__": 1, "constructor": 2}),
    "200 levels": (b"[" * 200 + b"]" * 200, None),
    "many flat brackets": (b"[" + b"[]," * 1000 + b"{}]", None),
}


@pytest.mark.parametrize(("data", "expected"), ACCEPTED.values(), ids=ACCEPTED)
def test_what_can_be_stored_is_read_exactly(data, expected):
    value = parse(data)
    if expected is not None:
        assert expected == value
        assert type(expected) is type(value)
    assert same(value, parse(dumps(value).encode()))


def test_an_integer_may_have_4300_digits():
    longest = 10**4300 - 1
    assert [longest] == parse(dumps([longest]).encode())
    with pytest.raises(NotJsonError, match="4300 digits"):
        require_json([longest + 1])


def test_deep_nesting_is_refused_wherever_the_stack_stands():
    """The parser runs out of stack earlier in a deep call; the answer is the same."""

    def deep(levels: int) -> None:
        if levels:
            return deep(levels - 1)
        with pytest.raises(NotJsonError, match="nested"):
            parse(b"[" * 900 + b"]" * 900)
        return None

    deep(400)


@given(values)
def test_writing_and_reading_changes_nothing(value):
    back = parse(dumps(value).encode())
    assert same(value, back)
    assert canonical(value) == canonical(back)
    assert digest(value) == digest(back)
    assert json.loads(canonical(value)) is not NotImplemented


@given(values, values)
def test_equal_digests_are_equal_values(one, other):
    assert same(one, other) == (canonical(one) == canonical(other))


@given(st.binary(max_size=60) | values.map(lambda value: dumps(value).encode()[:-1]))
def test_no_bytes_raise_anything_but_the_refusal(data):
    try:
        value = parse(data)
    except NotJsonError:
        return
    dumps(value)
    canonical(value)


def test_numbers_are_written_in_plain_digits():
    written = dumps([Decimal("1E+3"), Decimal("1E-7"), Decimal("12.30"), Decimal("-0.0"), 10**20])
    assert "[1000,0.0000001,12.30,0.0,100000000000000000000]" == written


def test_equal_numbers_are_one_in_the_canonical_form():
    one = {"b": Decimal("12.30"), "a": [Decimal("1.0"), Decimal("1E+1"), Decimal("-0.0")]}
    assert b'{"a":[1,10,0],"b":12.3}' == canonical(one)


def test_texts_that_look_like_our_mark_stay_texts():
    """Decimals are written through a mark; no text that a sender can send is taken for one."""
    value = {"a": r"\u000012.5", 'b"': [Decimal("1.5"), '"', '\\"', r'"\u00001"'], r"\u00001": "\\"}
    assert value == parse(dumps(value).encode())


def test_a_forged_mark_is_refused():
    with pytest.raises(NotJsonError, match="NUL"):
        dumps([Decimal("1.5"), "\x002.5"])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (2.5, "a float is not a JSON value; use Decimal"),
        ({"a": [float("nan")]}, "float"),
        ({"a": {1: 2}}, "name"),
        ({"a": "b\x00"}, "NUL"),
        ("\ud800", "surrogate"),
        ({"a": (1, 2)}, "tuple"),
        ({"a": b"bytes"}, "bytes"),
        (Decimal("Infinity"), "finite"),
        (Decimal("1E+5000"), "4300 digits"),
    ],
)
def test_values_that_are_not_ours_are_refused(value, reason):
    with pytest.raises(NotJsonError, match=reason):
        require_json(value)


def test_values_of_ours_may_be_as_deep_as_those_we_read():
    deepest = parse(b"[" * 200 + b"]" * 200)
    assert deepest is require_json(deepest)
    with pytest.raises(NotJsonError, match="nested"):
        require_json([deepest])


def test_writing_refuses_what_it_cannot_write():
    loop: list[object] = []
    loop.append(loop)
    loop.append(loop)
    for value in ({"a": object()}, loop, Decimal("NaN"), "\ud800", {"\ud800": 1}, 10**4300):
        with pytest.raises(NotJsonError):
            dumps(value)


def test_true_is_not_one():
    assert not same(True, 1)
    assert not same({"a": [False]}, {"a": [0]})
    assert canonical(True) != canonical(1)
    assert same({"a": 1, "b": 2}, {"b": 2, "a": Decimal("1.0")})


def test_a_hostile_body_costs_no_more_than_an_honest_one():
    """A megabyte of whatever hurts most is answered in well under a second."""
    for data in (
        b"[" + b"1e4299," * 140_000 + b"1]",
        b"9" * 1_000_000,
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b"0." + b"1" * 1_000_000,
        b"[" + b'"\\ud83d\\ude00",' * 60_000 + b"1]",
        b"[" + b"[]," * 300_000 + b"1]",
    ):
        started = time.process_time()
        with contextlib.suppress(NotJsonError):
            parse(data)
        assert time.process_time() - started < 2


def test_a_webhook_is_read_in_microseconds():
    """It stands on the receiver's hot path: no per-member work in Python."""
    body = dumps({"id": "evt_1", "data": {f"m{n}": n for n in range(30)}}).encode()
    ours = best(lambda: exact_json.parse(body))
    assert ours < 4 * best(lambda: json.loads(body))


def best(work) -> float:
    timings = []
    for _ in range(200):
        started = time.process_time()
        work()
        timings.append(time.process_time() - started)
    return min(timings)


EXTREMES = [
    *(data for data, _ in ACCEPTED.values()),
    *(b"9" * 4300, b"-" + b"9" * 4300, b"0." + b"9" * 4300, b"1e4299", b"1e-4300", b"-0.0"),
    dumps({"\x01\x7f\u2028\ufffe\uffff\U0010ffff": '"\\/\b\f\n\r\t\x1f'}).encode(),
]


@pytest.mark.anyio
async def test_postgresql_stores_whatever_we_accept(engine):
    """What is refused is refused here, once; nothing that we accept fails in the database."""
    async with engine.connect() as connection:
        for data in EXTREMES:
            value = parse(data)
            stored = await connection.scalar(
                text("select cast(cast(:value as jsonb) as text)"), {"value": dumps(value)}
            )
            assert same(value, parse(stored.encode()))
            assert digest(value) == digest(parse(stored.encode()))
