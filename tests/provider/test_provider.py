"""The short form of `python -m tests.provider`: its scenarios in small, and what the judge says."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.provider.behaviours import (
    MAIL,
    MAIL_TROUBLES,
    SPELLINGS,
    TROUBLES,
    drawn,
    drawn_mail,
    every_name,
    meaning_of,
)
from tests.provider.judge import Seen, faults_of
from tests.provider.planted import PLANTED
from tests.provider.running import SHORT, ran

pytestmark = pytest.mark.anyio
LOST = [one.name for one in MAIL_TROUBLES if one.performs]
NOW = datetime(2026, 12, 1, tzinfo=UTC)


async def test_relays_are_killed_and_every_entry_takes_effect_once(
    database_url: str, tmp_path: Path
):
    """
    Three relays, one of them killed every second, call a provider that loses answers, hangs,
    floods and forgets. What it knows by key takes effect once; what the rules say to hold is held.
    """
    result = await ran("killed", tmp_path, database_url, seed=1, size=SHORT)
    assert [] == result.faults
    assert 0 < result.figures["relays killed"]


async def test_mails_whose_answer_is_lost_are_held_and_each_is_there_once(
    database_url: str, tmp_path: Path
):
    """aiosmtpd, a process, loses answers after the end of data, and relays are killed in them."""
    result = await ran("mail", tmp_path, database_url, seed=1, size=SHORT)
    assert [] == result.faults
    assert 0 < sum(result.met[name] for name in LOST) <= result.figures["states"]["mail uncertain"]


def an_entry(reference: str, state: str, *, attempts: int = 1):
    return {
        "id": reference,
        "event_id": f"evt_{reference.replace(' ', '_')}",
        "destination": reference.partition(" ")[0],
        "state": state,
        "attempts": attempts,
        "last_error": None,
        "first_attempt_at": NOW,
        "completed_at": NOW + timedelta(seconds=1),
    }


def an_arrival(number: int, reference: str, behaviour: str, status: int | None, **changes):
    key = f"key_{reference}"
    return {
        "number": number,
        "reference": reference,
        "key": key,
        "caller": "r1.1",
        "digest": "d",
        "place": "",
        "at": float(number),
        "ended": float(number),
        "behaviour": behaviour,
        "status": status,
        "overlaps": 0,
        **changes,
    }


def judged(reference: str, state: str, *arrivals, effects: int = 1, **changes: Any):
    """What the judge says of one entry."""
    seen = Seen(
        asked=[(reference.partition(" ")[0], reference, f"key_{reference}")],
        arrivals=list(arrivals),
        effects=[{"reference": reference}] * effects,
        entries=[an_entry(reference, state, attempts=len(arrivals))],
        **{"attempts": [], **changes},
    )
    return [fault.partition(":")[0] for fault in faults_of(seen)]


async def test_the_judge_knows_what_is_lost_doubled_and_left():
    done = an_arrival(1, "payments 1", "done", 200)
    lost = an_arrival(1, "payments 1", "lost after the effect", None)
    assert [] == judged("payments 1", "delivered", done)
    assert ["lost"] == judged("payments 1", "delivered", done, effects=0)
    assert ["doubled"] == judged("payments 1", "delivered", done, effects=2)
    assert "other" in judged("payments 1", "delivered", lost)
    assert "undrained" in judged("payments 1", "pending", lost)


async def test_the_judge_lets_only_the_unknown_be_held():
    reference = "letters 1"
    lost = an_arrival(1, reference, "lost after the effect", None)
    again = an_arrival(2, reference, "done", 200)
    done = an_arrival(1, reference, "done", 200)
    assert [] == judged(reference, "uncertain", lost)
    assert ["doubled"] == judged(reference, "delivered", lost, again)
    assert ["other", "other"] == judged(reference, "uncertain", done)
    assert [] == judged(reference, "uncertain", done, deaths=[("r1.1", 1.5)])
    assert ["lost"] == judged("payments 1", "uncertain", an_arrival(1, "payments 1", "503", 503))


async def test_the_judge_knows_keys_words_and_places():
    reference = "payments 1"
    first = an_arrival(1, reference, "503", 503)
    assert [] == judged(reference, "delivered", first, an_arrival(2, reference, "done", 200))
    for change in ({"key": "other"}, {"digest": "e"}, {"overlaps": 1}):
        second = an_arrival(2, reference, "done", 200, **change)
        assert ["other"] == judged(reference, "delivered", first, second), change
    lane = [
        an_arrival(number, f"lanes {place}", "done", 200, place=f"0/{place}")
        for number, place in enumerate((1, 2, 1), start=1)
    ]
    seen = Seen(
        asked=[("lanes", f"lanes {place}", f"key_lanes {place}") for place in (1, 2)],
        arrivals=lane,
        effects=[{"reference": "lanes 1"}, {"reference": "lanes 2"}],
        entries=[an_entry(f"lanes {place}", "delivered", attempts=2) for place in (1, 2)],
        attempts=[],
    )
    assert ["other: in lane 0 entries came as [1, 2, 1]"] == faults_of(seen)


async def test_the_judge_knows_what_a_mail_server_has_taken_over():
    """Nothing before the end of the data; afterwards only its answer tells."""
    reference = "mail 1"
    bare = {"key": "", "digest": ""}
    again = an_arrival(2, reference, "mail taken", 250)
    early = an_arrival(1, reference, "hung up within the mail", None, **bare)
    assert [] == judged(reference, "delivered", early, again)
    for name, status in (("450 to the recipient", 450), ("451 to the mail", 451)):
        assert [] == judged(
            reference, "delivered", an_arrival(1, reference, name, status, **bare), again
        )
    lost = an_arrival(1, reference, "mail taken, no answer", None)
    assert [] == judged(reference, "uncertain", lost)
    assert ["doubled"] == judged(reference, "delivered", lost, again)
    refused = an_arrival(1, reference, "554 to the mail", 554)
    assert [] == judged(reference, "dead", refused, effects=0)
    assert ["other"] == judged(reference, "uncertain", refused, effects=0)


async def test_the_judge_knows_who_was_asked_to_wait():
    reference = "payments 1"
    asked = an_arrival(1, reference, "429, seconds", 429)
    soon = an_arrival(2, reference, "done", 200, at=1.35)
    late = an_arrival(2, reference, "done", 200, at=1.45)
    assert ["other"] == judged(reference, "delivered", asked, soon)
    assert [] == judged(reference, "delivered", asked, late)


async def test_the_judge_knows_a_call_that_no_lease_allows():
    reference, began = "payments 1", NOW.timestamp()
    leases = [
        {"entry_id": reference, "started_at": NOW + timedelta(seconds=after), "verdict": "retry"}
        for after in (0, 5.1)
    ]

    def beside(*moments: float) -> list[str]:
        arrivals = [
            an_arrival(n, reference, "done", 200, at=began + moment)
            for n, moment in enumerate(moments)
        ]
        return judged(reference, "delivered", *arrivals, attempts=leases, punctual=True, lease=5.0)

    assert [] == beside(0.1, 5.2)
    assert ["other"] == beside(5.2, 6.3)  # the first of them by whoever had leased it before
    assert ["other"] == beside(0.1, 5.05)


async def test_a_seed_draws_the_same_troubles_again_and_all_of_them_in_the_end():
    """Every spelling of Retry-After among them; no key meets trouble for ever."""
    drawn_once = [drawn(1, "payments", f"key_{n}", 1).name for n in range(4000)]
    assert drawn_once == [drawn(1, "payments", f"key_{n}", 1).name for n in range(4000)]
    assert {one.name for _, one in TROUBLES} <= set(drawn_once)
    assert {f"429, {name}" for name in SPELLINGS} <= set(every_name())
    assert {"done"} == {drawn(1, "payments", f"key_{n}", 4).name for n in range(100)}
    mails = {drawn_mail(1, f"mail {n}", 1).name for n in range(400)}
    assert set(MAIL) == mails
    assert {"mail taken"} == {drawn_mail(1, f"mail {n}", 4).name for n in range(100)}
    assert "done" == meaning_of(204)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_still_has_its_place(name: str):
    for mutant in PLANTED[name].mutants:
        assert 1 == mutant.places(), mutant.file
