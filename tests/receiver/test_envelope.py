"""Stories of the envelope: what a delivery says, and what is beyond use."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.ledger.event import Event, Origin
from reconciler.receiver.contract import SenderContract
from reconciler.receiver.envelope import (
    ITEMS_MAX,
    Malformed,
    MalformedError,
    read_delivery,
    reread,
    rereader,
)

from .senders import SHOP, body_of, contract, order

BATCH = SHOP.replace(
    "[senders.shop.resources.order]",
    '[senders.shop.event]\nitems = "events"\n\n[senders.shop.resources.order]',
    1,
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> SenderContract:
    return contract(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> SenderContract:
    return contract(tmp_path_factory.mktemp("batches"), BATCH)


def only(contract: SenderContract, document: object, **headers: str) -> Event | Malformed:
    raw = document if isinstance(document, bytes) else body_of(document)
    delivery = read_delivery(contract, raw, headers)
    assert 1 == len(delivery.events)
    return delivery.events[0]


def test_an_event_is_about_the_resource_that_it_describes(shop: SenderContract):
    """Id, type and time from the event; key, version and declared fields from `data`."""
    event = only(shop, order(amount=12), **{"x-request-id": "r1"})

    assert isinstance(event, Event)
    assert ("shop", "evt_1", "order.paid", Origin.WEBHOOK) == (
        event.sender,
        event.event_id,
        event.type,
        event.origin,
    )
    assert datetime(2026, 12, 1, 10, tzinfo=UTC) == event.occurred_at
    assert ("order", "ord_42", 1) == (event.kind, event.key, event.version)
    assert {"status": "paid", "amount": 12} == event.state
    assert {"x-request-id": "r1"} == event.headers
    assert body_of(order(amount=12)) == event.raw


def test_an_event_of_another_type_is_about_nothing(shop: SenderContract):
    """It has happened all the same; whether anybody asked for it is the ledger's to say (C29)."""
    event = only(shop, {"id": "evt_1", "type": "invoice.some_new_thing", "data": 7})

    assert isinstance(event, Event)
    assert event.observation is None


def test_a_deletion_is_said_by_the_type(shop: SenderContract):
    event = only(shop, order() | {"type": "order.deleted"})

    assert isinstance(event, Event)
    assert event.observation is not None
    assert event.observation.deleted


def test_numbers_arrive_as_they_were_sent(shop: SenderContract):
    """Neighbours above 2^53 stay different, and money stays decimal (C23)."""
    one, other = (
        only(
            shop,
            b'{"id": %d, "type": "order.paid", "data": {"order_id": %d, "version": 1,'
            b' "amount": 12.30}}' % (number, number),
        )
        for number in (9007199254740993, 9007199254740992)
    )

    assert isinstance(one, Event)
    assert isinstance(other, Event)
    assert ("9007199254740993", "9007199254740993") == (one.event_id, one.key)
    assert ("9007199254740992", "9007199254740992") == (other.event_id, other.key)
    assert {"amount": Decimal("12.30")} == one.state


def test_of_two_members_of_one_name_the_last_counts_everywhere(shop: SenderContract):
    """As in PostgreSQL's jsonb: key, version and stored state come from one reading (C27)."""
    event = only(
        shop,
        b'{"id":"evt_1","id":"evt_2","type":"order.paid",'
        b'"data":{"order_id":"a","order_id":"b","version":1,"version":9,"status":"x","status":"y"}}',
    )

    assert isinstance(event, Event)
    assert ("evt_2", "b", 9, {"status": "y"}) == (
        event.event_id,
        event.key,
        event.version,
        event.state,
    )


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        pytest.param(b"", "not usable as JSON", id="nothing"),
        pytest.param(b"Hello, World!", "not usable as JSON", id="not JSON"),
        pytest.param(b"\xef\xbb\xbf{}", "byte order mark", id="BOM"),
        pytest.param(b'{"n":"\xff\xfe"}', "not UTF-8", id="not UTF-8"),
        pytest.param('{"id":"e"}'.encode("utf-16"), "not UTF-8", id="UTF-16"),
        pytest.param(b'{"id":"e","type":"t","x":NaN}', "not usable as JSON", id="NaN"),
        pytest.param(b'{"id":"e","type":"t","x":-Infinity}', "not usable as JSON", id="Infinity"),
        pytest.param(b"[" * 20_000 + b"]" * 20_000, "levels deep", id="deep"),
        pytest.param(
            b'{"id":"e","data":%b1%b}' % (b"[" * 20_000, b"]" * 20_000),
            "levels deep",
            id="deep inside",
        ),
        pytest.param(b'{"id":"e","type":"t","x":%b}' % (b"9" * 5000), "digits", id="5,000 digits"),
        pytest.param(b'{"id":"e","type":"t","x":1e200000}', "digits", id="1e200000"),
        pytest.param(b'{"id":"e","type":"t","x":"a\\u0000b"}', "not usable as JSON", id="NUL"),
        pytest.param(b'{"id":"e","type":"t","a\\u0000":1}', "not usable as JSON", id="NUL in name"),
        pytest.param(b'{"id":"e\\u0000","type":"t"}', "not usable as JSON", id="NUL in id"),
        pytest.param(b'{"id":"e","type":"t","x":"\\ud800"}', "not usable as JSON", id="surrogate"),
        pytest.param(b"null", "event.id: missing", id="null"),
        pytest.param(b"[]", "event.id: missing", id="list"),
        pytest.param(b'"x"', "event.id: missing", id="text"),
        pytest.param(b"0", "event.id: missing", id="number"),
    ],
)
def test_a_delivery_beyond_use_is_kept_whole(shop: SenderContract, raw: bytes, fault: str):
    """Nothing raises, nothing is half used (C16 C18 C20 C21)."""
    malformed = only(shop, raw)

    assert isinstance(malformed, Malformed)
    assert fault in malformed.fault
    assert (raw, None) == (malformed.raw, malformed.event_id)


@pytest.mark.parametrize(
    ("change", "event_id", "fault"),
    [
        ({"id": None}, None, "event.id: missing"),
        ({"id": ""}, None, "event.id: empty"),
        ({"id": True}, None, "event.id: neither text nor a whole number"),
        ({"id": 1.5}, None, "event.id: neither text nor a whole number"),
        ({"id": ["evt"]}, None, "event.id: neither text nor a whole number"),
        ({"id": "e" * 513}, None, "event.id: longer than 512 bytes"),
        ({"id": "é" * 257}, None, "event.id: longer than 512 bytes"),
        ({"id": "correction:order:1:2"}, "correction:order:1:2", "like the id of a correction"),
        ({"id": "read:order:1:2"}, "read:order:1:2", "like the id of a correction"),
        ({"type": None}, "evt_1", "event.type: missing"),
        ({"type": ""}, "evt_1", "event.type: empty"),
        ({"type": {"a": 1}}, "evt_1", "event.type: neither"),
        ({"data": None}, "evt_1", "key: missing"),
        ({"data": {"order_id": "", "version": 1}}, "evt_1", "key: empty"),
        ({"data": {"order_id": "k" * 513, "version": 1}}, "evt_1", "key: longer"),
        ({"data": {"order_id": "a", "version": True}}, "evt_1", "version"),
        ({"data": {"order_id": "a", "version": " 7 "}}, "evt_1", "version"),
        ({"data": {"order_id": "a", "version": "7.0"}}, "evt_1", "version"),
        ({"data": {"order_id": "a", "version": 2**63}}, "evt_1", "version"),
    ],
    ids=str,
)
def test_an_event_beyond_use_says_why(
    shop: SenderContract, change: dict[str, object], event_id: str | None, fault: str
):
    """What can be known of it is said; an id that no index takes is not (C25 C31)."""
    malformed = only(shop, order() | change)

    assert isinstance(malformed, Malformed)
    assert fault in malformed.fault
    assert event_id == malformed.event_id


def test_the_longest_id_is_an_id(shop: SenderContract):
    event = only(shop, order("é" * 256))

    assert isinstance(event, Event)
    assert "é" * 256 == event.event_id


@pytest.mark.parametrize("when", ["yesterday", "infinity", "20000-01-01T00:00:00Z", 7, [], True])
def test_a_time_that_cannot_be_read_costs_nothing_else(shop: SenderContract, when: object):
    """It says when, not what: the event counts like one that does not say when."""
    event = only(shop, order() | {"created_at": when})

    assert isinstance(event, Event)
    assert event.occurred_at is None


def test_an_event_without_a_version_is_one_that_asks_for_a_read(shop: SenderContract):
    """Whether it can be deferred is the ledger's to decide."""
    event = only(shop, order() | {"data": {"order_id": "ord_42"}})

    assert isinstance(event, Event)
    assert event.version is None


def test_each_item_of_a_batch_is_an_event(batches: SenderContract):
    """
    Three events in one delivery, the second beyond use: it is kept by itself, the others are
    events like any, each with bytes of its own and in the sender's order.
    """
    document = {"events": [order("a"), {"id": "b"}, order("c", amount=7)], "batch": 1}
    delivery = read_delivery(batches, body_of(document), {})
    first, second, third = delivery.events

    assert delivery.batch
    assert isinstance(first, Event)
    assert isinstance(second, Malformed)
    assert isinstance(third, Event)
    assert ("a", "b", "c") == (first.event_id, second.event_id, third.event_id)
    assert b'{"id":"b"}' == second.raw
    assert order("c", amount=7) == third.body


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        (None, "event.items: not a list"),
        ({}, "event.items: not a list"),
        ("abc", "event.items: not a list"),
        ([{}] * (ITEMS_MAX + 1), "event.items: more than"),
    ],
    ids=["nothing", "object", "text", "too many"],
)
def test_a_batch_beyond_use_is_kept_whole(batches: SenderContract, events: object, fault: str):
    malformed = only(batches, {"events": events})

    assert isinstance(malformed, Malformed)
    assert fault in malformed.fault


def test_an_empty_batch_is_a_batch(batches: SenderContract):
    delivery = read_delivery(batches, b'{"events": []}', {})

    assert (True, ()) == (delivery.batch, delivery.events)


def test_what_was_stored_reads_as_it_did(shop: SenderContract, batches: SenderContract):
    """A replay, and a fact that waited for a read, are the very event again."""
    event = only(shop, order(amount=12), **{"x-request-id": "r1"})
    assert isinstance(event, Event)
    assert event == rereader({"shop": shop})("shop", event.raw, event.headers, "evt_1")

    item = read_delivery(batches, body_of({"events": [order("a")]}), {}).events[0]
    assert isinstance(item, Event)
    replayed = reread(batches, item.raw, item.headers, "a", origin=Origin.REPLAY)
    assert (item.observation, Origin.REPLAY) == (replayed.observation, replayed.origin)


def test_what_is_still_beyond_use_says_so(shop: SenderContract):
    """By the configuration of now; and an event is never mistaken for another."""
    again = rereader({"shop": shop})
    for sender, raw, event_id, said in (
        ("shop", b"Hello", None, "not usable as JSON"),
        ("shop", b'{"id": "correction:1", "type": "t"}', None, "like the id of a correction"),
        ("shop", body_of(order("evt_1")), "evt_2", "not the id"),
        ("gone", body_of(order("evt_1")), "evt_1", "not configured any more"),
    ):
        with pytest.raises(MalformedError, match=said):
            again(sender, raw, {}, event_id)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    raw=st.binary(max_size=80)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["id", "type", "data", "order_id", "version", "events", "created_at"]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    ).map(body_of)
)
def test_no_body_makes_it_raise(shop: SenderContract, batches: SenderContract, raw: bytes):
    """Whatever an authentic sender sends is an event, or is kept: there is nothing third (P17)."""
    for sender in (shop, batches):
        for each in read_delivery(sender, raw, {}).events:
            assert isinstance(each, Event) or each.fault


def test_a_sender_may_say_it_all_in_headers(tmp_path: Path):
    """GitHub: the id is a header, the type is one too and goes on in the body."""
    github = contract(
        tmp_path, '[senders.github]\npreset = "github"\nsecrets = ["env:SHOP_SECRET"]\n'
    )
    headers = {"x-github-delivery": "72d3162e", "x-github-event": "issues"}

    for document, expected in (({"action": "opened"}, "issues.opened"), ({}, "issues")):
        event = only(github, document, **headers)
        assert isinstance(event, Event)
        assert ("72d3162e", expected) == (event.event_id, event.type)
