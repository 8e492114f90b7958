"""One typed projection: what an event, a listed item and a read say is compared alike."""

import contextlib
from decimal import Decimal

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from reconciler.errors import ConfigError
from reconciler.exact_json import NotJsonError, digest, dumps, parse, same
from reconciler.ledger.projection import KindReader, ProjectionError, compile_kind
from reconciler.settings.models import ResourceSettings

ORDER = {
    "on": ["order.*"],
    "from": "data",
    "key": "order_id",
    "version": "version",
    "fields": {
        "status": "status",
        "paid": "paid",
        "amount": "amount",
        "currency": "currency",
        "email": "customer.email",
    },
    "deleted_on": ["order.deleted"],
    "created_on": ["order.created"],
    "list": {
        "path": "/v1/orders",
        "items": "data",
        "key": "id",
        "changed_at": "updated_at",
    },
    "get": {"path": "/v1/orders/{{ key }}", "key": "id"},
}
PAID = {
    "order_id": "ord_42",
    "id": "ord_42",
    "version": 5,
    "status": "paid",
    "paid": True,
    "amount": 1230,
    "currency": "EUR",
    "customer": {"email": None},
    "updated_at": "2026-12-01T10:00:00.120Z",
    "other": "is not kept",
}
TEN = 1796119200 * 10**9  # 2026-12-01T10:00:00Z


def reader(**changes) -> KindReader:
    settings = {**ORDER, **changes}
    settings = {name: value for name, value in settings.items() if value is not None}
    return compile_kind("shop", "order", ResourceSettings.model_validate(settings))


def test_every_path_says_the_same_of_the_same_object():
    order = reader()
    seen = [order.read(PAID, path=path) for path in ("event", "list", "get")]
    assert seen[0] == seen[1] == seen[2]
    assert "order" == seen[0].kind
    assert "ord_42" == seen[0].key
    assert 5 == seen[0].version
    assert {
        "status": "paid",
        "paid": True,
        "amount": 1230,
        "currency": "EUR",
        "email": None,
    } == seen[0].state
    assert frozenset() == seen[0].lacking
    assert TEN + 120_000_000 == seen[0].changed_at
    assert seen[0].created_at is None
    assert not seen[0].deleted


def test_what_is_missing_is_lacking_and_what_is_null_is_null():
    """Null says that there is no e-mail any more; silence says nothing."""
    partial = {"order_id": "ord_42", "version": 6, "status": None, "customer": {}}
    seen = reader().read(partial, path="event")
    assert {"status": None} == seen.state
    assert {"paid", "amount", "currency", "email"} == seen.lacking
    for customer in (None, "text", []):
        without = reader().read({**PAID, "customer": customer}, path="event")
        assert {"email"} == without.lacking


def test_an_event_without_any_declared_field_is_thin():
    bare = {"order_id": "ord_42", "id": "ord_42", "version": 6}
    assert reader().read(bare, path="event").state is None
    assert {} == reader().read(bare, path="list").state
    assert set(ORDER["fields"]) == reader().read(bare, path="get").lacking


def test_a_thin_kind_takes_no_state_from_events():
    thin = reader(thin=True)
    assert thin.read(PAID, path="event").state is None
    assert 1230 == thin.read(PAID, path="get").state["amount"]
    assert 1230 == thin.read(PAID, path="list").state["amount"]


def test_without_fields_the_whole_object_is_kept():
    whole = reader(fields=None)
    assert PAID == whole.read(PAID, path="event").state
    odd = {"order_id": "a", "version": 1, "a-b": [{"c": Decimal("1.50")}], "items": None}
    assert odd == whole.read(odd, path="event").state


@pytest.mark.parametrize("obj", [None, [], "text", 7, True, [PAID]], ids=repr)
def test_what_is_no_object_has_no_key(obj):
    for path in ("event", "list", "get"):
        with pytest.raises(ProjectionError, match="key: missing"):
            reader().read(obj, path=path)


# --- keys ---


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("ord_42", "ord_42"),
        (42, "42"),
        (9007199254740993, "9007199254740993"),
        (" a ", " a "),
        ("\u00c4", "\u00c4"),
        ("A\u0308", "A\u0308"),
        ("x" * 512, "x" * 512),
        ("\u00e9" * 256, "\u00e9" * 256),
        ("..", ".."),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_keys_are_opaque(key, expected):
    """No folding, trimming or normalising: two keys that differ in a byte are two resources."""
    assert expected == reader().read({**PAID, "order_id": key}, path="event").key


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, "missing"),
        ("", "empty"),
        (True, "a boolean"),
        (Decimal("42.0"), "a number"),
        ([], "a list"),
        ({}, "an object"),
        ("x" * 513, "longer than 512 bytes"),
        ("\u00e9" * 257, "longer than 512 bytes"),
        (10**600, "longer than 512 bytes"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_other_keys_are_refused_once_with_a_reason(key, reason):
    with pytest.raises(ProjectionError, match=f"key: .*{reason}|key: {reason}") as refused:
        reader().read({**PAID, "order_id": key}, path="event")
    assert "xxxx" not in refused.value.reason


def test_the_key_stands_elsewhere_in_a_listing_and_in_an_answer():
    item = {**PAID, "order_id": "not this", "id": 7}
    assert "7" == reader().read(item, path="list").key
    assert "7" == reader().read(item, path="get").key
    assert "not this" == reader().read(item, path="event").key


def test_an_object_inside_an_item_or_an_answer_is_found():
    nested = reader(
        list={**ORDER["list"], "from": "node.order"}, get={**ORDER["get"], "from": "data"}
    )
    assert PAID == nested.locate({"node": {"order": PAID}}, path="list")
    assert PAID == nested.locate({"data": PAID}, path="get")
    assert nested.locate({"error": "x"}, path="get") is None
    assert PAID == reader().locate(PAID, path="list")


# --- versions ---


def test_versions_are_read_alike_on_every_path():
    for path in ("event", "list", "get"):
        assert 1000000 == reader().read({**PAID, "version": "1000000"}, path=path).version


@pytest.mark.parametrize("version", [True, " 7 ", "7.0", "1_0", Decimal("7.0"), 2**63, {}, "x"])
def test_a_malformed_version_is_refused_on_every_path(version):
    for path in ("event", "list", "get"):
        with pytest.raises(ProjectionError, match="version: "):
            reader().read({**PAID, "version": version}, path=path)


def test_an_event_without_a_version_needs_a_read_and_an_item_without_one_is_broken():
    for obj in ({**PAID, "version": None}, {k: v for k, v in PAID.items() if k != "version"}):
        assert reader().read(obj, path="event").version is None
        for path in ("list", "get"):
            with pytest.raises(ProjectionError, match="version: missing"):
                reader().read(obj, path=path)


def test_a_version_may_be_a_time_and_stand_elsewhere():
    """A bare place keeps kind and format; a table says its own."""
    order = reader(
        version={"value": "updated_at", "kind": "timestamp"},
        list={**ORDER["list"], "version": "modified"},
        get={**ORDER["get"], "version": {"value": "m", "kind": "timestamp", "format": "ms"}},
    )
    item = {**PAID, "modified": "2026-12-01T11:00:00.1200+01:00", "m": 1796119200120}
    expected = TEN + 120_000_000
    assert [expected] * 3 == [order.read(item, path=p).version for p in ("event", "list", "get")]


def test_an_observed_version_is_left_to_the_reader():
    observed = reader(version={"kind": "observed"})
    for path in ("event", "list", "get"):
        assert observed.read({**PAID, "version": "x"}, path=path).version is None


# --- times ---


def test_times_of_a_listing_serve_every_path():
    order = reader(
        created_at={"value": "created", "format": "s"},
        changed_at="changed",
        list={**ORDER["list"], "changed_at": "updated_at"},
    )
    obj = {**PAID, "created": 1796119200, "changed": "2026-12-01T10:00:01Z"}
    for path, changed_at in (
        ("event", TEN + 10**9),
        ("list", TEN + 120_000_000),
        ("get", TEN + 10**9),
    ):
        seen = order.read(obj, path=path)
        assert (TEN, changed_at) == (seen.created_at, seen.changed_at)
    assert 3 == order.changed_digits(obj, path="list")
    assert 0 == order.changed_digits(obj, path="get")
    assert 0 == order.changed_digits({}, path="list")
    assert 0 == reader(list=None).changed_digits(obj, path="event")


def test_a_time_that_cannot_be_read_is_none_and_is_told():
    """An optional time is no reason to lose an event; the log says which one and why."""
    with structlog.testing.capture_logs() as logs:
        seen = reader().read({**PAID, "updated_at": "yesterday"}, path="event")
    assert seen.changed_at is None
    assert 5 == seen.version
    assert ["projection.time_refused"] == [line["event"] for line in logs]
    assert "yesterday" not in str(logs)


# --- types ---


def typed(field_type, value):
    order = reader(fields={"x": {"value": "x", "type": field_type}})
    return order.read({"order_id": "a", "version": 1, "x": value}, path="event").state["x"]


@pytest.mark.parametrize(
    ("field_type", "written", "expected"),
    [
        ("decimal", ["12.30", Decimal("12.3"), Decimal("1.23E+1"), "1.230e1"], Decimal("12.3")),
        ("decimal", ["12", 12, Decimal("12.00")], Decimal(12)),
        ("integer", [7, "7", Decimal("7.0")], 7),
        ("text", [42, "42"], "42"),
        ("text", [Decimal("1E+2"), "100", 100], "100"),
        ("boolean", [True], True),
        (
            "timestamp",
            [
                *("2026-12-01T10:00:00.100Z", "2026-12-01T11:00:00.1+01:00"),
                "2026-12-01 10:00:00.1z",
            ],
            "2026-12-01T10:00:00.1Z",
        ),
        ("any", [{"a": Decimal("12.30")}, {"a": Decimal("12.3")}], {"a": Decimal("12.3")}),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_one_value_in_several_spellings_is_one_state(field_type, written, expected):
    """A webhook says "12.30", the listing 12.3: that is no drift."""
    read = [typed(field_type, value) for value in written]
    assert all(same(expected, value) for value in read)
    assert 1 == len({digest({"x": value}) for value in read})


@pytest.mark.parametrize(
    ("field_type", "value"),
    [
        *(("decimal", value) for value in (True, "1,5", " 1", "NaN", "", [], "1_0", "\u0661")),
        *(("integer", value) for value in (True, "7.0", Decimal("7.5"), " 7", "x", {})),
        *(("text", value) for value in (True, [], {})),
        *(("boolean", value) for value in (0, 1, "true", "", [])),
        *(("timestamp", value) for value in (1796119200, "2026-12-01T10:00:00", "", True)),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_does_not_fit_its_type_is_refused(field_type, value):
    with pytest.raises(ProjectionError, match=r"fields\.x: "):
        typed(field_type, value)


@pytest.mark.parametrize(
    "field_type", ["any", "text", "integer", "decimal", "boolean", "timestamp"]
)
def test_null_fits_every_type(field_type):
    assert typed(field_type, None) is None


def test_what_is_worked_out_from_missing_members_is_missing():
    order = reader(
        fields={
            "total": "price|decimal * quantity",
            "note": "note|default('none')",
            "label": "first ~ ' ' ~ last",
        }
    )

    def read(**members):
        return order.read({"order_id": "a", "version": 1, **members}, path="event")

    full = read(price="1.50", quantity=2, note="x", first="A", last="B")
    assert {"total": Decimal("3.00"), "note": "x", "label": "A B"} == full.state
    silent = read()
    assert {"note": "none"} == silent.state
    assert {"total", "label"} == silent.lacking
    assert {"total": None, "note": "none", "label": None} == read(
        price=None, quantity=2, note=None, first=None, last="B"
    ).state
    with pytest.raises(ProjectionError, match=r"fields\.total: the text is not a number"):
        read(price="x", quantity=2, first="A", last="B")


# --- the configuration ---


def test_events_of_a_kind_are_known_by_their_type():
    order = reader()
    assert order.is_about("order.paid")
    assert not order.is_about("orders.paid")
    assert not order.is_about("ORDER.paid")
    assert order.deleted_on("order.deleted")
    assert not order.deleted_on("order.paid")


def test_everything_wrong_is_said_at_once():
    with pytest.raises(ConfigError) as refused:
        reader(
            key="order_id.lower()",
            version={"value": "v + 1.5", "zone": "Europe/Atlantis", "kind": "timestamp"},
            fields={"a": "b|uper"},
            changed_at="2.5",
            list={**ORDER["list"], "key": "id id"},
            get={**ORDER["get"], "from": "a..b"},
        )
    keys = {problem.key for problem in refused.value.problems}
    base = "senders.shop.resources.order"
    assert {
        f"{base}.key",
        f"{base}.version",
        f"{base}.version.zone",
        f"{base}.fields.a",
        f"{base}.changed_at",
        f"{base}.list.key",
        f"{base}.get.from",
    } <= keys


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.decimals(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*PAID, "email", "x"]), inner, max_size=8)
    ),
    max_leaves=12,
)


@given(anything, st.sampled_from(["event", "list", "get"]))
def test_whatever_comes_in_is_read_or_refused(value, path):
    """Content is never the reason of an unforeseen error."""
    typed_reader = reader(
        version={"value": "version", "kind": "timestamp", "format": "s"},
        created_at={"value": "updated_at", "format": "ms"},
        fields={
            "a": {"value": "amount", "type": "decimal"},
            "b": {"value": "status", "type": "timestamp"},
            "c": {"value": "paid|default(x) ~ currency", "type": "text"},
        },
    )
    with contextlib.suppress(NotJsonError, ProjectionError):
        value = parse(dumps(value).encode())
        if isinstance(value, dict):
            value = {"order_id": "a", "id": "a", "version": 1, **value}
        seen = typed_reader.read(value, path=path)
        assert seen.state is None or dumps(seen.state)
