"""The one language of the configuration: what it says, what it refuses, and that it is bounded."""

import contextlib
import re
import threading
import time
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.exact_json import canonical, check_size, dumps, parse, same
from reconciler.expressions import (
    BECOMES_NAMES,
    EFFECT_NAMES,
    ENVELOPE_NAMES,
    FILTERS,
    PATH_NAMES,
    TESTS,
    CaseInsensitive,
    ExpressionError,
    ExpressionSyntaxError,
    compile_expression,
    compile_json,
    compile_path,
    compile_template,
)

texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
numbers = st.integers(-(10**30), 10**30) | st.decimals(
    allow_nan=False, allow_infinity=False, min_value=-(10**25), max_value=10**25
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=10,
)

CONTEXT = {
    "state": {
        "items": [{"sku": "a"}, {"sku": "b"}],
        "keys": "mine",
        "get": 1,
        "odd-name": 5,
        "amount": 1230,
        "price": Decimal("12.30"),
        "paid": True,
        "open": False,
        "email": None,
        "big": 9007199254740993,
        "name": "Ünïcode / ok",
        "digits": "0042",
        "looks": "{{ 7*7 }}",
    },
    "previous": None,
    "key": "ord_42",
    "version": 7,
}

VALUES = {
    # members of objects and items of lists, and nothing else
    "state.items": [{"sku": "a"}, {"sku": "b"}],
    "state.keys": "mine",
    "state.get": 1,
    "state['odd-name']": 5,
    "state.items[0].sku": "a",
    "state.items[-1].sku": "b",
    "state.items.0.sku": "a",
    "state.items[2]": None,
    "state.items['0']": None,
    "state.items[true]": None,
    "state.items.length": None,
    "state.items.append": None,
    "state[0]": None,
    "state.pop": None,
    "state.__class__": None,
    "''.__class__": None,
    "''.__class__.__mro__[1].__subclasses__": None,
    "key.upper": None,
    "key[0]": None,
    "version.real": None,
    "key[4:]": "42",
    "key[:4]": "ord_",
    "state.items[1:]": [{"sku": "b"}],
    "state.nothing[1:]": None,
    # missing and null are one
    "state.nothing": None,
    "state.nothing.at.all": None,
    "state.email.host": None,
    "previous.paid": None,
    "nothing is none": True,
    "state.email is none": True,
    "state.nothing == none": True,
    "state.email == none": True,
    "state.email == state.nothing": True,
    "state.email != none": False,
    "state.paid != none": True,
    "state.nothing|default('x')": "x",
    "state.email|default('x')": "x",
    "state.open|default('x')": False,
    "state.open|default('x', true)": "x",
    "state.email is defined": False,
    "state.nothing is undefined": True,
    "state.email < 5": False,
    "5 < state.email": False,
    "state.nothing >= 0": False,
    "state.nothing <= none": False,
    "none > 'a'": False,
    "state.nothing in [1, 2]": False,
    "1 in state.nothing": False,
    "not state.nothing": True,
    "state.nothing if state.open": None,
    # numbers are exact, and booleans are not numbers
    "state.big": 9007199254740993,
    "state.big + 1": 9007199254740994,
    "state.amount / 100": Decimal("12.3"),
    "7 / 2": Decimal("3.5"),
    "1 / 3 * 3 < 1": True,
    "state.price * 3": Decimal("36.90"),
    "state.price + 1": Decimal("13.30"),
    "state.price - '0.01'|decimal": Decimal("12.29"),
    "'0.1'|decimal + '0.2'|decimal": Decimal("0.3"),
    "1 / 2 ** 100 * 2 ** 100 == 1": True,
    "(10 ** 60 + 1) / 1 == 10 ** 60 + 1": True,
    "7 // 2": 3,
    "-7 // 2": -4,
    "-7 % 3": 2,
    "'-7.5'|decimal // 2": Decimal(-4),
    "'-7.5'|decimal % 2": Decimal("0.5"),
    "2 ** 62": 4611686018427387904,
    "'1.1'|decimal ** 2": Decimal("1.21"),
    "-state.price": Decimal("-12.30"),
    "+state.amount": 1230,
    "1_000": 1000,
    "0x1f": 31,
    "state.price == '12.3'|decimal": True,
    "state.amount == '1230'": False,
    "state.paid == 1": False,
    "state.open == 0": False,
    "1 in [true]": False,
    "true in [1, true]": True,
    "state.paid is number": False,
    "state.price is number": True,
    "1 < state.amount < 2000": True,
    "'9' < '10'": False,
    # operators
    "key ~ ':' ~ version ~ ':' ~ state.paid": "ord_42:7:true",
    "'a' + 'b'": "ab",
    "[1] + [2]": [1, 2],
    "'rd' in key": True,
    "'amount' in state": True,
    "'x' not in key": True,
    "state.paid and state.amount > 1000": True,
    "state.open or state.email or 'none'": "none",
    "state.amount if state.paid else 0": 1230,
    "{'a': key, 'b': [version, none]}": {"a": "ord_42", "b": [7, None]},
    "(1, 2)": [1, 2],
    "'it''s'": "its",
    # filters
    "state.price|minor_units('EUR')": 1230,
    "'12.30'|minor_units('EUR')": 1230,
    "12|minor_units('jpy')": 12,
    "'1.234'|minor_units('KWD')": 1234,
    "'12.3000'|decimal|minor_units('USD')": 1230,
    "state.amount|major_units('EUR')": Decimal("12.30"),
    "'12.30'|decimal": Decimal("12.30"),
    "'1e3'|decimal": Decimal(1000),
    "'42'|int": 42,
    "'-7'|int": -7,
    "'7.00'|decimal|int": 7,
    "(7 / 3)|round(2)": Decimal("2.33"),
    "'2.5'|decimal|round": 3,
    "'-2.5'|decimal|round": -3,
    "'2.01'|decimal|round(1, 'ceil')": Decimal("2.1"),
    "'2.09'|decimal|round(precision=1, method='floor')": Decimal("2.0"),
    "(-3)|abs": 3,
    "state.price|tojson": "12.30",
    "[1, none, 'é', state.big]|tojson": '[1,null,"é",9007199254740993]',
    "'aB'|lower ~ 'aB'|upper": "abAB",
    "' a '|trim": "a",
    "'a-b-c'|replace('-', '+')": "a+b+c",
    "'gid://shop/Order/7'|split('/')|last": "7",
    "[1, true, 'x']|join('-')": "1-true-x",
    "state.items|length": 2,
    "state.items|first": {"sku": "a"},
    "[]|first": None,
    "'x'|sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
    "'x'|sha1": "11f6ad8ec52a2984abaafd7c3b516503785c2072",
    "'x'|md5": "9dd4e461268c8034f5c8564e155c67a6",
    "'x'|sha512|length": 128,
    "'x'|b64encode": "eA==",
    "7|string": "7",
    "version is odd": True,
    "version is even": False,
    "version is integer and key is string and state is mapping and state.items is sequence": True,
    "state.paid is true and state.open is false and state.paid is boolean": True,
    "version is in [7]": True,
    "version is eq(7) and version is ne(8)": True,
}


@pytest.mark.parametrize("source", VALUES)
def test_an_expression_comes_to_a_value(source):
    value = compile_expression(source).value(CONTEXT)
    assert VALUES[source] == value
    assert type(VALUES[source]) is type(value)
    assert same(VALUES[source], value)


WRONG = {
    "2.5": "float",
    "1e5": "float",
    "state.amount * 1.1": "float",
    "key.upper()": "no functions or methods",
    "range(10)": "no functions or methods",
    "lipsum.__globals__.os.popen('id').read()": "no functions or methods",
    "dict(a=1)": "no functions or methods",
    "state.items.append(1)": "no functions or methods",
    "state.amount|uper": "did you mean 'upper'?",
    "state.items|map(attribute='sku')": "unknown filter 'map'",
    "state|attr('x')": "unknown filter 'attr'",
    "state is callable": "unknown test 'callable'",
    "state.amount|minor_units": "needs currency",
    "state.amount|minor_units('EURO')": "no currency code",
    "state.amount|minor_units('EUR', 2)": "takes currency",
    "key|replace('a')": "needs old, new",
    "key|lower(x=1)": "takes nothing",
    "key|join(*[1])": "one by one",
    "{% if x %}": "unexpected",
    "{{ key }}": "",
    "key}} x {{key": "follows",
    "a b": "follows",
    "": "",
    "a +": "",
    "a..b": "",
    "key[::2]": "no step",
    "'\\x00'": "NUL",
    "'\\ud800'": "surrogate",
    "{1: 2}": "constant texts",
    "(" * 3000 + "1" + ")" * 3000: "too deep",
    "not " * 5000 + "x": "too deep",
    "1+" * 2000 + "1": "too deep",
    "x" + ".a" * 5000: "too deep",
    "x" + "[0]" * 5000: "too deep",
    "1" * 5000: "too long",
}


@pytest.mark.parametrize(("source", "reason"), WRONG.items(), ids=[key[:40] for key in WRONG])
def test_what_is_wrong_as_written_is_refused_when_it_is_read(source, reason):
    with pytest.raises(ExpressionSyntaxError) as refused:
        compile_expression(source)
    assert reason in f"{refused.value.reason} {refused.value.hint}"
    assert len(str(refused.value)) < 700


MEANINGLESS = {
    "key + 1": "`+` takes numbers, not a text",
    "state.paid + 1": "`+` takes numbers, not a boolean",
    "state.nothing + 1": "`+` takes numbers, not null",
    "'%s' % 'x'": "`%` takes numbers",
    "'a' * 1000000000": "`*` takes numbers",
    "[0] * 1000000000": "`*` takes numbers",
    "1 / 0": "divides by zero",
    "1 % 0": "divides by zero",
    "'1.5'|decimal // 0": "divides by zero",
    "2 ** 100000": "exponent",
    "2 ** -1": "exponent",
    "2 ** '0.5'|decimal": "exponent",
    "10 ** 999 * 10 ** 999 * 10 ** 999 * 10 ** 999 * 10 ** 999": "4300 digits",
    "(10 ** 999) ** 999": "4300 digits",
    "'1e4299'|decimal * 10": "4300 digits",
    "1 / ('1e4299'|decimal * 3)": "4300 digits",
    "'1e5000'|decimal": "4300 digits",
    "version < key": "no order",
    "state.paid < 2": "no order",
    "state.items < state.items": "no order",
    "1 in 5": "cannot hold",
    "1 in key": "cannot hold",
    "version[1:]": "cannot be cut",
    "key['a':]": "whole numbers",
    "state.nothing|decimal": "not null",
    "state.paid|int": "not a boolean",
    "' 7 '|int": "not a number",
    "'1_0'|int": "not a number",
    "'7.0'|int": "not a number",
    "'+7'|int": "not a number",
    "'007'|int": "not a number",
    "'\\u0667'|int": "not a number",
    "state.digits|int": "not a number",
    "state.price|int": "fraction",
    "'NaN'|decimal": "not a number",
    "'Infinity'|decimal": "not a number",
    "'1,5'|decimal": "not a number",
    "'12.345'|minor_units('EUR')": "fraction of the smallest unit",
    "'12.5'|minor_units('JPY')": "fraction of the smallest unit",
    "12|minor_units(key)": "no code of ISO 4217",
    "12|minor_units(state.nothing)": "a text is needed, not null",
    "7|round(-1)": "places",
    "7|round(0, 'up')": "knows",
    "key ~ state.nothing": "null, which has no place in a text",
    "key ~ state": "an object, which has no place in a text",
    "state.nothing|length": "null has no length",
    "key|join": "takes a list",
    "[none]|join": "null",
    "key|split('')": "separator",
    "key|replace('', 'x')": "piece",
    "version|lower": "a text is needed",
    "state|sha256": "an object",
}


@pytest.mark.parametrize(("source", "reason"), MEANINGLESS.items(), ids=[*MEANINGLESS])
def test_what_has_no_meaning_is_an_error_that_says_why(source, reason):
    with pytest.raises(ExpressionError) as refused:
        compile_expression(source).value(CONTEXT)
    assert reason in refused.value.reason
    assert source == refused.value.source


def test_errors_do_not_show_what_they_met():
    """Bodies hold secrets and personal data; the log gets the configuration's text only."""
    secret = {"token": "tok_live_1", "list": ["tok_live_1"]}
    for source in (
        "token|int",
        "token + 1",
        "token < 1",
        "list ~ token",
        "token|minor_units(token)",
    ):
        with pytest.raises(ExpressionError) as refused:
            compile_expression(source).value(secret)
        assert "tok_live_1" not in f"{refused.value} {refused.value.hint}"
        assert refused.value.__cause__ is None


def test_when_comes_to_true_or_false_and_null_is_false():
    assert compile_expression("state.paid").truth(CONTEXT) is True
    assert compile_expression("state.open").truth(CONTEXT) is False
    assert compile_expression("previous.paid").truth(CONTEXT) is False
    for source in ("state.amount", "key", "state.items", "0", "''", "state.paid and key"):
        with pytest.raises(ExpressionError, match="not to true or false"):
            compile_expression(source).truth(CONTEXT)


def test_becomes_is_asked_of_now_and_of_before():
    becomes = compile_expression("state.paid and state.amount > 1000", names=BECOMES_NAMES)
    assert becomes.truth({"state": {"paid": True, "amount": 1230}})
    assert not becomes.truth({"state": {"paid": True, "amount": 1}})
    assert not becomes.truth({"state": None})


@pytest.mark.parametrize(
    ("source", "names", "meant"),
    [
        ("stat.paid", BECOMES_NAMES, "did you mean 'state'? known are key, kind, sender, state"),
        ("previous.paid", BECOMES_NAMES, "unknown name 'previous'"),
        ("body.id", BECOMES_NAMES, "unknown name 'body'"),
        ("state.a if eventid else 1", EFFECT_NAMES, "did you mean 'event_id'?"),
        ("range", EFFECT_NAMES, "unknown name 'range'"),
    ],
)
def test_unknown_names_are_found_when_the_configuration_is_read(source, names, meant):
    with pytest.raises(ExpressionSyntaxError) as refused:
        compile_expression(source, names=names)
    assert meant in refused.value.reason
    with pytest.raises(ExpressionSyntaxError):
        compile_template(f"a {{{{ {source} }}}}", names=names)
    with pytest.raises(ExpressionSyntaxError):
        compile_json({"a": [f"{{{{ {source} }}}}"]}, names=names)


def test_in_an_envelope_any_other_name_is_a_member_of_the_body():
    body = {"id": "evt_1", "body": {"id": 3}, "headers": "mine", "data": {"object": {"id": 7}}}
    context = {"body": body, "headers": CaseInsensitive({"x-topic": "orders/paid"})}

    def value(source):
        return compile_expression(source, names=ENVELOPE_NAMES, root="body").value(context)

    assert "evt_1" == value("id")
    assert 7 == value("data.object.id")
    assert "evt_1" == value("body.id")
    assert {"id": 3} == value("body.body")
    assert "mine" == value("body.headers")
    assert "orders/paid" == value("headers['X-Topic']")
    assert "orders/paid" == value("headers['x-topic']")
    assert value("headers.missing") is None
    assert value("missing.at.all") is None


def test_in_a_resource_every_name_is_a_member_of_the_object():
    obj = {"body": 1, "headers": 2, "state": 3, "items": 4, "true ": 5}
    for name in ("body", "headers", "state", "items"):
        assert obj[name] == compile_expression(name).value(obj)
    for other in (None, "text", 7, [1], {}):
        assert compile_expression("body").value(other) is None
    for name in ("keys", "get", "pop", "__class__"):
        assert compile_expression(name).value({}) is None
        assert compile_expression(f"h.{name}").value({"h": CaseInsensitive()}) is None
        assert compile_expression(f"h[{name!r}]").value({"h": CaseInsensitive()}) is None


def test_an_expression_knows_what_it_reads():
    source = "state.items[0].sku ~ key if state['a-b'] else body[key]"
    expression = compile_expression(source, names=EFFECT_NAMES)
    assert {"state", "key", "body"} == expression.names
    assert {
        ("state", "items", 0, "sku"),
        ("key",),
        ("state", "a-b"),
        ("body",),
    } == expression.paths
    assert ("state", "items", 0, "sku") == compile_expression("state.items[0].sku").path
    assert compile_expression("state.a + 1").path is None
    assert {"body"} == compile_expression("id", names=ENVELOPE_NAMES, root="body").names
    assert {"key", "version"} == compile_template("{{ key }}:{{ version }}").names
    assert {"key", "version"} == compile_json({"a": ["{{ key }}", "{{ version }}"]}).names


@given(st.text(max_size=40))
def test_no_source_does_anything_but_compile_or_be_refused(source):
    for compile_source in (compile_expression, compile_template, compile_path):
        try:
            compiled = compile_source(source)
        except ExpressionSyntaxError:
            continue
        with contextlib.suppress(ExpressionError):
            compiled.text(CONTEXT)


operands = values | st.sampled_from([0, 1, -1, Decimal("0.1"), "", "a", [], {}])
operators = st.sampled_from(
    ["a + b", "a - b", "a * b", "a / b", "a // b", "a % b", "a ** b", "a < b", "a >= b", "a in b"]
    + ["a == b", "a and b", "a or not b", "a ~ b", "a[b]", "a[b:]", "-a", "a if b else none"]
    + [f"a|{name}" for name, spec in FILTERS.items() if not spec.required]
    + ["a|default(b)", "a|join(b)", "a|replace(b, 'x')", "a|split(b)", "a|minor_units(b)"]
    + [f"a is {name}" for name, spec in TESTS.items() if not spec.required]
)


@given(operators, operands, operands)
def test_every_operation_over_any_json_gives_json_or_an_error(source, one, other):
    try:
        value = compile_expression(source).value({"a": one, "b": other})
    except ExpressionError:
        return
    assert same(value, parse(canonical(value)))


@given(
    st.decimals(-(10**9), 10**9, places=4), st.decimals(-(10**4), 10**4, places=3) | st.integers()
)
def test_division_with_a_rest_is_division(one, other):
    context = {"a": one, "b": other}
    if not other:
        return
    back = compile_expression("(a // b) * b + a % b == a")
    assert back.truth(context)
    assert compile_expression("(a % b) * b >= 0").truth(context)
    assert compile_expression("a * b / b == a").truth(context)


@given(st.integers(-(10**12), 10**12), st.sampled_from(["EUR", "JPY", "KWD", "CLF"]))
def test_minor_units_and_back_lose_nothing(amount, currency):
    context = {"amount": amount, "currency": currency}
    assert amount == compile_expression("amount|major_units(currency)|minor_units(currency)").value(
        context
    )


# --- texts ---


def test_a_text_is_written_in_plain_digits_and_words():
    context = {**CONTEXT, "tiny": Decimal("1E-7"), "large": Decimal("1E+3")}
    template = compile_template("{{ state.price }} {{ state.paid }} {{ tiny }} {{ large }}\r\n")
    assert "12.30 true 0.0000001 1000\n" == template.text(context)
    assert "{{ 7*7 }}" == compile_template("{{ state.looks }}").text(context)
    assert "{% {{ }}" == compile_template("{{ '{%' }} {{ '{{' }} }}").text(context)
    assert "" == compile_template("").text(context)
    assert "a  b" == compile_template("a {{- ' ' ~ ' ' -}} b").text(context)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ state.email }}", "null"),
        ("{{ state.nothing.x }}", "null"),
        ("a {{ state }}", "an object"),
        ("a {{ state.items }}", "a list"),
    ],
)
def test_null_objects_and_lists_have_no_place_in_a_text(text, reason):
    with pytest.raises(ExpressionError, match=f"{reason}, which has no place in a text"):
        compile_template(text).text(CONTEXT)


@pytest.mark.parametrize(
    "text",
    [
        *("{% if x %}a{% endif %}", "{% for x in y %}{% endfor %}", "{% set x = 1 %}"),
        *("{% include 'x' %}", "{# comment #}", "{% raw %}{{ x }}{% endraw %}", "{%- if x -%}"),
        *("{{ x", "{{ }}", "{{ x, y }}", "{{ x }", "{# open", "{{ x() }}", "\x00", "\ud800"),
    ],
)
def test_texts_hold_expressions_and_nothing_else(text):
    with pytest.raises(ExpressionSyntaxError):
        compile_template(text)


# --- JSON ---


def test_a_json_value_that_is_one_expression_keeps_its_type():
    body = compile_json(
        {
            "amount": "{{ state.amount }}",
            "price": "{{ state.price }}",
            "big": "{{ state.big }}",
            "paid": "{{ state.paid }}",
            "email": "{{ state.email }}",
            "items": "{{ state.items }}",
            "digits": "{{ state.digits }}",
            "looks": "{{ state.looks }}",
            "text": "{{ state.amount }} ",
            "both": "{{ key }}{{ version }}",
            "constant": [1, True, None, "007", "1.0", 2.5, {"a": "b"}],
        }
    )
    assert {
        "amount": 1230,
        "price": Decimal("12.30"),
        "big": 9007199254740993,
        "paid": True,
        "email": None,
        "items": [{"sku": "a"}, {"sku": "b"}],
        "digits": "0042",
        "looks": "{{ 7*7 }}",
        "text": "1230 ",
        "both": "ord_427",
        "constant": [1, True, None, "007", "1.0", Decimal("2.5"), {"a": "b"}],
    } == body.value(CONTEXT)


@given(values)
def test_what_comes_in_goes_out_as_it_was(value):
    sent = compile_json({"x": ["{{ v }}"]}).value({"v": value})
    assert same({"x": [value]}, sent)


@pytest.mark.parametrize("value", [{"a{{ x }}": 1}, {1: 2}, {"a": object()}, {"a": float("nan")}])
def test_json_of_the_configuration_is_checked_when_it_is_read(value):
    with pytest.raises(ExpressionSyntaxError):
        compile_json(value)


# --- paths ---


def test_pieces_of_a_path_are_encoded_whole():
    path = compile_path("/v1/orders/{{ key }}?expand=lines&at={{ version }}", names=EFFECT_NAMES)
    assert "/v1/orders/ord_42?expand=lines&at=7" == path.text(CONTEXT)
    for key, written in {
        "a/b": "a%2Fb",
        "../admin": "..%2Fadmin",
        "a?b=c#d&e": "a%3Fb%3Dc%23d%26e",
        "%2e%2e": "%252e%252e",
        "a\r\nX: y": "a%0D%0AX%3A%20y",
        "\u00fc ": "%C3%BC%20",
        "//host": "%2F%2Fhost",
        "\\": "%5C",
        "\x00": "%00",
        "...": "...",
    }.items():
        assert f"/v1/orders/{written}" == compile_path("/v1/orders/{{ key }}").text({"key": key})


@pytest.mark.parametrize("key", ["", ".", "..", None, {}, []])
def test_pieces_that_would_change_the_path_are_refused(key):
    for text in ("/v1/orders/{{ key }}", "/v1/{{ key }}/refunds", "/{{ key }}?a=b"):
        with pytest.raises(ExpressionError):
            compile_path(text, names=PATH_NAMES).text({"key": key})


def test_dots_that_come_together_are_refused():
    for text in ("/a/.{{ key }}", "/a/{{ key }}{{ key }}/b", "/a/%2e{{ key }}"):
        with pytest.raises(ExpressionError):
            compile_path(text).text({"key": "."})
    assert "/a/x.." == compile_path("/a/x{{ key }}").text({"key": ".."})


@pytest.mark.parametrize(
    "text",
    [
        *("", "v1/orders", "https://evil.example/{{ key }}", "//evil.example", "/a//b", "/a/../b"),
        *(
            "/a/./b",
            "/a/%2E%2e/b",
            "/a b",
            "/a\nb",
            "/\u00fc",
            "/a#b",
            "/a\\b",
            "/{{ key }}/..",
            "/a<",
        ),
    ],
)
def test_paths_are_checked_when_the_configuration_is_read(text):
    with pytest.raises(ExpressionSyntaxError):
        compile_path(text)


@given(texts)
def test_no_key_escapes_its_piece(key):
    try:
        written = compile_path("/v1/{{ key }}/x").text({"key": key})
    except ExpressionError:
        assert key in ("", ".", "..")
        return
    assert written.isascii()
    assert written.isprintable()
    start, version, piece, end = written.split("/")
    assert ("", "v1", key, "x") == (start, version, unquote(piece), end)


# --- bounds ---


def test_results_are_bounded_in_size_and_time():
    megabyte = {"a": "x" * 1024**2, "list": [0] * 1024**2}
    started = time.process_time()
    for source in (
        "~".join(["a"] * 90),
        "+".join(["a"] * 90),
        "[" + ",".join(["a"] * 90) + "]|join",
        "a|replace('x', a)",
        "list|join(a)",
        "+".join(["list"] * 90),
    ):
        with pytest.raises(ExpressionError):
            compile_expression(source).value(megabyte)
    with pytest.raises(ExpressionError):
        compile_template("{{ a }}" * 90).text(megabyte)
    largest = {"n": 10**4299}
    for source in ("n * n", "n ** 1000", "n ** 2 ** 2 ** 2", "n / 3", "n // 7 % 5"):
        with contextlib.suppress(ExpressionError):
            check_size(compile_expression(source).value(largest))
    assert time.process_time() - started < 5


def test_a_power_is_refused_before_it_is_worked_out():
    started = time.process_time()
    for base in (10**4299 - 1, -(10**4299), Decimal(10**4299 - 1)):
        with pytest.raises(ExpressionError, match="4300 digits"):
            compile_expression("n ** 1000").value({"n": base})
    assert time.process_time() - started < 0.5


def test_the_same_expression_serves_many_threads():
    expression = compile_expression("state.n * 2 + state.n|int")
    results: list[bool] = []

    def work(n: int) -> None:
        results.append(all(3 * n == expression.value({"state": {"n": n}}) for _ in range(500)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [True] * 8 == results


def test_headers_do_not_mind_their_case():
    headers = CaseInsensitive([("X-Id", "1"), ("Content-Type", "a/b"), ("x-id", "2")])
    assert "1, 2" == headers["X-ID"]
    assert ["x-id", "content-type"] == list(headers)
    assert "secret" not in repr(CaseInsensitive({"x": "secret"}))
    assert "content-type" in headers
    assert headers.get("nothing") is None


# --- the documentation ---

DOCS = Path(__file__).parent.parent / "docs" / "expressions.md"
DOCUMENTED = {
    "state": parse(
        b'{"amount": 1230, "price": 12.30, "paid": true, "email": null, "total": "12.30",'
        b'"items": [{"sku": "a"}, {"sku": "b"}], "created-at": "2026-12-01T10:00:00Z"}'
    ),
    "key": "ord_42",
}
LOOKED_UP, _, NAMED = DOCS.read_text().partition("## Names")
EXAMPLES = re.findall(r"\| `([^`]+)` \| `([^`]+)` \|$", LOOKED_UP, re.MULTILINE)


@pytest.mark.parametrize(("source", "expected"), EXAMPLES, ids=[one for one, _ in EXAMPLES])
def test_the_documented_examples_come_to_what_is_said(source, expected):
    value = compile_expression(source.replace("\\|", "|"), names=frozenset(DOCUMENTED)).value(
        DOCUMENTED
    )
    assert same(parse(expected.encode()), value)
    assert dumps(parse(expected.encode())) == dumps(value)


def test_every_filter_test_and_name_is_documented():
    filters, _, tests = LOOKED_UP.partition("## Filters")[2].partition("## Tests")
    assert set(FILTERS) == set(re.findall(r"^\| `(\w+)` \|", filters, re.MULTILINE))
    assert {"is", *TESTS} == set(re.findall(r"`(\w+)`", tests.partition("|")[0]))
    assert set(re.findall(r"`(\w+)`", NAMED)) >= EFFECT_NAMES | ENVELOPE_NAMES | PATH_NAMES
