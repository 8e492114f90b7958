"""Which keys can meet, decided before any event has come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.ledger.keys import Keyed, could_share, meetings, normal

NAMES = ["event_id", "type", "sender"]
SOURCES = st.frozensets(
    st.tuples(st.sampled_from(["shop", "market"]), st.sampled_from(["a", "b", "*"])),
    min_size=1,
    max_size=2,
)


def keyed(name, names, sources, destination="payments"):
    template = ":".join(f"{{{{ {one} }}}}" for one in sorted(names)) or "x"
    return Keyed(
        name=name,
        destination=destination,
        what="fact",
        template=template,
        named=frozenset(names),
        sources=sources,
    )


@given(st.sets(st.sampled_from(NAMES)), SOURCES, SOURCES)
def test_effects_meet_exactly_when_two_of_their_events_give_one_key(names, first, second):
    """
    Held against every event of a small world: two senders, types a and b, ids 1 and 2, an id
    standing for one event of its sender.
    """
    one, other = keyed("one", names, first), keyed("other", names, second)
    worlds = [{"1": left, "2": right} for left in "ab" for right in "ab"]
    expected = any(
        all(
            {"event_id": i, "type": world[s][i], "sender": s}[named]
            == {"event_id": j, "type": world[t][j], "sender": t}[named]
            for named in names
        )
        for world in ({"shop": x, "market": y} for x in worlds for y in worlds)
        for s, glob in first
        for i in "12"
        if glob in ("*", world[s][i])
        for t, against in second
        for j in "12"
        if against in ("*", world[t][j])
    )

    assert expected == could_share(one, other)


@pytest.mark.parametrize("named", [{"event_id"}, {"key"}, {"event_id", "type"}])
def test_one_effect_of_two_senders_meets_itself(named):
    """Ids and keys are each sender's own."""
    sources = frozenset({("shop", "a"), ("market", "a")})

    assert ["one"] == [one.name for one, _ in meetings([keyed("one", named, sources)])]
    assert [] == list(meetings([keyed("one", named | {"sender"}, sources)]))


def test_other_destinations_have_memories_of_their_own():
    """A key belongs to one destination."""
    sources = frozenset({("shop", "a")})
    one, other = keyed("one", {"event_id"}, sources), keyed("two", {"event_id"}, sources, "mail")

    assert [] == list(meetings([one, other]))


def test_spaces_inside_the_braces_mean_nothing():
    """Nor do they tell two keys apart."""
    assert normal("{{event_id}}-{{ key  }}") == normal("{{ event_id }}-{{key}}")
    assert normal("{{ a }} ") != normal("{{ a }}")
