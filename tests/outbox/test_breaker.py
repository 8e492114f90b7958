"""When a destination is left alone: the decision by itself, without a database or a clock."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from outbox.breaker import CLOSED, Breaker, Seen, Standing, after_calls

NOW = datetime(2026, 12, 1, tzinfo=UTC)
BREAKER = Breaker(after=3, pause=timedelta(seconds=1), pause_max=timedelta(seconds=10))


def seen(entry: int = 1, **told: object) -> Seen:
    facts = {"trouble": True, "opens": False, "probe": False, "slowed": None, "reason": "closed"}
    return Seen(destination="payments", entry=UUID(int=entry), **{**facts, **told})


def after(*calls: Seen, before: Standing = CLOSED, jitter: float = 0.0) -> Standing:
    return after_calls(before, calls, BREAKER, now=NOW, jitter=jitter)


def test_failures_in_a_row_open_it():
    assert not after(seen(1), seen(2)).open
    standing = after(seen(1), seen(2), seen(3))
    assert standing.open
    assert (NOW, NOW + BREAKER.pause) == (standing.opened_at, standing.probe_at)


def test_one_answer_that_makes_sense_begins_anew():
    """A destination that refuses a call is well: 400 is about that call."""
    assert not after(seen(1), seen(2), seen(3, trouble=False), seen(4)).open


def test_one_entry_alone_opens_nothing():
    """P15: what makes the destination fail may be in that entry."""
    assert not after(*[seen(1)] * 50).open
    assert after(seen(1), seen(2), seen(1)).open


def test_what_a_person_has_to_mend_opens_it_at_once():
    """401: our credentials are wrong, and they are the same in every call."""
    assert after(seen(1, opens=True)).open


def test_while_it_is_open_only_a_probe_counts():
    """Calls that began before it was opened come back for a while."""
    opened = after(seen(1), seen(2), seen(3))
    assert opened == after(seen(4), seen(5), before=opened)
    probed = after(seen(6, probe=True), before=opened)
    assert (4, NOW + 2 * BREAKER.pause) == (probed.failures, probed.probe_at)


def test_probes_become_rarer_up_to_a_limit():
    standing, pauses = after(seen(1), seen(2), seen(3)), []
    for _ in range(200):
        standing = after(seen(4, probe=True), before=standing)
        pauses.append((standing.probe_at - NOW).total_seconds())
    assert [2, 4, 8, 10, 10] == pauses[:5]
    assert 10 == pauses[-1]


def test_chance_only_lengthens_a_pause():
    standing = after(seen(1), seen(2), seen(3), jitter=0.999)
    assert BREAKER.pause < standing.probe_at - NOW < BREAKER.pause * 1.25


def test_a_success_closes_it():
    opened = after(seen(1), seen(2), seen(3))
    assert CLOSED == after(seen(4, trouble=False, probe=True), before=opened)


@pytest.mark.parametrize("breaker", [None, BREAKER])
def test_who_asks_for_fewer_calls_gets_fewer(breaker):
    """The longest time that was asked for counts, with a breaker and without."""
    long, short = timedelta(seconds=20), timedelta(seconds=5)
    calls = [seen(1, trouble=False, slowed=long), seen(2, trouble=False, slowed=short)]
    standing = after_calls(CLOSED, calls, breaker, now=NOW, jitter=0.5)
    assert NOW + long == standing.slowed_until
    assert not standing.open
