"""Keys as they go out (P6, P7)."""

import hashlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.entry import outgoing_key, uuid7


@pytest.mark.parametrize(
    "text", ["a", "shop:order:ord_42:5:capture", "a b", "~!", "H-1", "x" * 255]
)
def test_a_key_that_survives_the_way_goes_out_as_it_is(text):
    assert text == outgoing_key(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", " a", "a ", "\ta", "a\n", "a\x00", "\x7f", "é", "h-", "h-a", "x" * 256, "\ud800"],
)
def test_every_other_goes_out_as_its_hash(text):
    """A key that begins like a hash too: nobody can choose one that meets another's."""
    expected = "h-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    assert expected == outgoing_key(text)


def test_the_destination_may_take_shorter_keys():
    assert "x" * 40 == outgoing_key("x" * 40, 40)
    assert outgoing_key("x" * 41, 40).startswith("h-")


def test_part_and_repetition_are_in_the_key_before_it_is_judged():
    assert "evt_1:p2" == outgoing_key("evt_1", part="2")
    assert "evt_1:r1" == outgoing_key("evt_1", repetition=1)
    assert "evt_1:p2:r1" == outgoing_key("evt_1", part="2", repetition=1)
    assert outgoing_key("x" * 255, part="2").startswith("h-")
    assert outgoing_key("x" * 255, part="2") != outgoing_key("x" * 255, part="3")


def test_some_destinations_want_uuids():
    key = uuid.UUID(outgoing_key("evt_1", key_format="uuid"))
    assert 5 == key.version
    assert str(key) == outgoing_key("evt_1", 255, "uuid")
    assert str(key) != outgoing_key("evt_2", key_format="uuid")


@given(st.text(), st.text())
def test_different_keys_never_meet(one, other):
    if one != other:
        assert outgoing_key(one).strip() != outgoing_key(other).strip()


def test_ids_are_uuids_of_version_7():
    ids = {uuid7() for _ in range(1000)}
    assert 1000 == len(ids)
    assert {(7, uuid.RFC_4122)} == {(one.version, one.variant) for one in ids}
