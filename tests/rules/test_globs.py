"""Shell globs: what they match, and whether two of them could name one event."""

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.ledger.globs import can_meet, matches

TEXTS = ["".join(letters) for length in range(7) for letters in product("abc", repeat=length)]
GLOBS = st.lists(st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]"]), max_size=4).map("".join)


@pytest.mark.parametrize(
    ("glob", "text", "expected"),
    [
        ("order.*", "order.paid", True),
        ("order.*", "order.line.paid", True),
        ("order.*", "orders.paid", False),
        ("order.*", "Order.paid", False),
        ("order", "order\n", False),
        ("*", "", True),
        ("order.[pr]*", "order.refunded", True),
    ],
)
def test_a_glob_matches_the_whole_text(glob, text, expected):
    """Types are matched from end to end, and case counts."""
    assert expected == matches([glob], text)


@given(GLOBS, GLOBS)
def test_two_globs_meet_exactly_when_some_text_matches_both(one, other):
    """Held against every short text there is."""
    expected = any(fnmatchcase(text, one) and fnmatchcase(text, other) for text in TEXTS)

    assert expected == can_meet(one, other)
