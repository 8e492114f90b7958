"""The judge: holds what the provider has kept against what the outbox says; pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.provider.behaviours import (
    ASKED_TO_WAIT,
    MAIL,
    MANNERS,
    WITHIN_THE_MAIL,
    Meaning,
    meaning_of,
)

Row = Mapping[str, Any]
MARKED_WITHIN = 6.0  #: seconds in which a living relay has written down what it was answered
MAX_ATTEMPTS = {"strict": 8, "lanes": 1000, "steps": 1000, "turns": 1000}
PATIENT = 200  #: attempts of all others
ROUNDING = 0.02  #: seconds by which two clocks of one machine may tell one moment apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that there is to judge."""

    asked: Sequence[tuple[str, str, str]]  #: destination, reference and key of each entry
    arrivals: Sequence[Row]
    effects: Sequence[Row]
    entries: Sequence[Row]
    attempts: Sequence[Row]
    deaths: Sequence[tuple[str, float]] = ()  #: which relay was killed, and when
    provider_deaths: Sequence[float] = ()
    freezes: Sequence[tuple[str, float, float]] = ()  #: which relay stood still, from when to when
    undisturbed: bool = False  #: nothing was killed, frozen or cut off
    punctual: bool = False  #: the provider had so little to do that it noted each call at once
    key_life: float = 0.0  #: of the forgetful
    lease: float = 0.0
    patience: float = math.inf  #: seconds after which a caller may have hung up


@dataclass(slots=True, kw_only=True)
class Story:
    """One entry: what was asked, what the provider saw of it, and how it ended."""

    destination: str
    reference: str
    key: str
    row: Row
    arrivals: list[Row] = field(default_factory=list)
    effects: list[Row] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)

    @property
    def state(self) -> str:
        return str(self.row["state"])


def faults_of(seen: Seen) -> list[str]:
    """Everything that is wrong, a sentence each."""
    stories, found = told(seen)
    known = {story.reference for story in stories}
    found += [
        f"unexpected: {row['reference']} was never asked for"
        for row in seen.arrivals
        if row["reference"] not in known
    ]
    for story in stories:
        found += faults_of_one(story, seen)
        found += impatient(story)
        if seen.punctual:
            found += beside_its_lease(story, seen)
    found += out_of_order(stories)
    return found


def told(seen: Seen) -> tuple[list[Story], list[str]]:
    """One story an entry, and what is wrong with how entries were recorded."""
    found, stories = [], []
    rows = {row["event_id"]: row for row in seen.entries}
    by_reference = grouped(seen.arrivals, "reference")
    effects = grouped(seen.effects, "reference")
    attempts = grouped(seen.attempts, "entry_id")
    for destination, reference, key in seen.asked:
        row = rows.get(f"evt_{reference.replace(' ', '_')}")
        if row is None:
            found.append(f"lost: {reference} has no entry")
            continue
        stories.append(
            Story(
                destination=destination,
                reference=reference,
                key=key,
                row=row,
                arrivals=by_reference[reference],
                effects=effects[reference],
                attempts=attempts[row["id"]],
            )
        )
    return stories, found


def grouped(rows: Iterable[Row], by: str) -> defaultdict[Any, list[Row]]:
    found: defaultdict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[by]].append(row)
    return found


def faults_of_one(story: Story, seen: Seen) -> list[str]:
    name, found = story.reference, []
    if len(story.effects) > 1:
        found.append(f"doubled: {name} took effect {len(story.effects)} times")
    found += unlike(story)
    if len(story.arrivals) > story.row["attempts"]:
        found.append(
            f"other: {name} was called {len(story.arrivals)} times"
            f" in {story.row['attempts']} attempts"
        )
    found += at_its_end(story, seen)
    if not MANNERS[story.destination].knows_keys:
        found += repeated_blindly(story)
    return found + called_beside(story, seen)


def at_its_end(story: Story, seen: Seen) -> list[str]:
    """Whether it ended as what the provider saw allows."""
    name, found = story.reference, []
    match story.state:
        case "pending":
            found.append(f"undrained: {name}")
        case "delivered":
            if not story.effects:
                found.append(f"lost: {name} is delivered and took no effect")
            if not any(meaning(one) is Meaning.DONE for one in story.arrivals):
                found.append(f"other: {name} is delivered and no success was answered")
        case "dead":
            found += why_dead(story, seen)
        case "uncertain":
            found += why_held(story, seen)
        case state:
            found.append(f"other: {name} is {state}")
    if story.state != "delivered" and any(
        meaning(one) is Meaning.DONE and was_heard(one, seen) for one in story.arrivals
    ):
        found.append(f"other: {name} is {story.state} and a success was answered")
    return found


def unlike(story: Story) -> list[str]:
    """P7: every call of an entry carries the same key and the same bytes."""
    whole = [one for one in story.arrivals if one["digest"]]  # mails may end before they begin
    keys = {one["key"] for one in whole}
    bytes_ = {one["digest"] for one in whole}
    found = []
    if keys - {story.key}:
        found.append(f"other: {story.reference} came under {len(keys)} keys")
    if len(bytes_) > 1:
        found.append(f"other: {story.reference} came in {len(bytes_)} wordings")
    return found


def meaning(arrival: Row) -> Meaning:
    """What a caller could know; an arrival of which nothing came was broken off."""
    if not arrival["behaviour"]:
        return Meaning.OPEN
    if mail := MAIL.get(arrival["behaviour"]):
        return mail.meaning
    return meaning_of(arrival["status"])


def was_heard(arrival: Row, seen: Seen) -> bool:
    """Whether the caller was there, and lived long enough to write down what it was answered."""
    if seen.provider_deaths and arrival["ended"] is None:
        return False
    ended = arrival["ended"] or arrival["at"]
    if ended - arrival["at"] > seen.patience:
        return False
    return not any(
        caller == arrival["caller"] and at < ended + MARKED_WITHIN for caller, at in seen.deaths
    )


def is_open(arrival: Row, seen: Seen) -> bool:
    """Whether the relay may rightly think that this call's outcome is unknown."""
    return meaning(arrival) is Meaning.OPEN or not was_heard(arrival, seen)


def may_be_taken_for_open(arrival: Row, seen: Seen) -> bool:
    """
    Whether the relay may rightly hold it: also a mail that was hung up on before its end was read.

    The end may have been sent by then, and the server alone knows that it did not get that far.
    """
    return arrival["behaviour"] == WITHIN_THE_MAIL or is_open(arrival, seen)


def unclosed(story: Story, seen: Seen) -> bool:
    """
    Whether an attempt was never answered: its lease ran out, or the provider was killed in it.

    That is for whoever made the call dead, or standing still: what is leased again then may
    have been sent, whether or not it was.
    """
    over = story.row["completed_at"]
    for one in story.attempts:
        began = one["started_at"]
        if one["verdict"] is None and (over - began).total_seconds() >= seen.lease:
            return True
        killed = [at for at in seen.provider_deaths if -1 <= at - began.timestamp() <= seen.lease]
        if one["verdict"] == "uncertain" and killed:
            return True
    return False


def why_dead(story: Story, seen: Seen) -> list[str]:
    """Dead is what was refused for good and certainly had no effect."""
    if story.effects:
        return [f"other: {story.reference} is dead and took effect"]
    used_up = story.row["attempts"] >= MAX_ATTEMPTS.get(story.destination, PATIENT)
    if used_up and all(meaning(one) is Meaning.NOT_DONE for one in story.arrivals):
        return []  # nobody was there for as long as it was tried
    if not story.arrivals or meaning(story.arrivals[-1]) is not Meaning.REFUSED:
        return [f"lost: {story.reference} is dead and was not refused: {story.row['last_error']}"]
    if any(meaning(one) is Meaning.OPEN for one in story.arrivals[:-1]):
        return [f"other: {story.reference} is dead after a call that may have taken effect"]
    return []


def why_held(story: Story, seen: Seen) -> list[str]:
    """Held is what may have taken effect, and only where the rules let nobody ask again."""
    name, said = story.reference, story.row["last_error"]
    unknown = [one for one in story.arrivals if may_be_taken_for_open(one, seen)]
    if not unknown and not unclosed(story, seen):
        return [f"other: {name} is held and nothing about it is unknown: {said}"]
    if not MANNERS[story.destination].knows_keys:
        last_open = bool(story.arrivals) and may_be_taken_for_open(story.arrivals[-1], seen)
        return [] if last_open or unclosed(story, seen) else [f"other: {name} is held: {said}"]
    if story.arrivals and meaning(story.arrivals[-1]) is Meaning.REFUSED:
        return []
    if story.row["attempts"] >= MAX_ATTEMPTS.get(story.destination, PATIENT):
        return []
    if story.destination == "forgetful" and outlived(story, seen):
        return []
    return [f"lost: {name} is held and could have been asked again: {said}"]


def outlived(story: Story, seen: Seen) -> bool:
    first, over = story.row["first_attempt_at"], story.row["completed_at"]
    return (over - first).total_seconds() >= seen.key_life - 0.5


def repeated_blindly(story: Story) -> list[str]:
    """A call without a key is repeated only after an answer that says that nothing was done."""
    return [
        f"doubled: {story.reference} was called again after {before['behaviour']}"
        for before, _ in pairwise(story.arrivals)
        if meaning(before) is not Meaning.NOT_DONE
    ]


def called_beside(story: Story, seen: Seen) -> list[str]:
    """One call at a time, none after a success that was heard; and each attempt is a call."""
    name, found = story.reference, []
    by_number = {one["number"]: one for one in story.arrivals}
    if any(
        one["overlaps"] and not stood_still(by_number[one["overlaps"]], one, seen)
        for one in story.arrivals
    ):
        found.append(f"other: {name} was called by two at the same time")
    if not seen.undisturbed:
        return found
    calls = len(story.arrivals)
    if calls != story.row["attempts"]:
        found.append(f"other: {name} has {story.row['attempts']} attempts in {calls} calls")
    done = [n for n, one in enumerate(story.arrivals, start=1) if meaning(one) is Meaning.DONE]
    if done and done[0] < calls:
        found.append(f"other: {name} was called again after a success")
    return found


def stood_still(older: Row, younger: Row, seen: Seen) -> bool:
    """Whether the caller of *older* stood still past its lease: it could not hang up."""
    return any(
        caller == older["caller"] and older["at"] <= until and began <= younger["at"] <= until + 1
        for caller, began, until in seen.freezes
    )


def impatient(story: Story) -> list[str]:
    """What asks to be called no sooner is called no sooner."""
    return [
        f"other: {story.reference} was called {after['at'] - before['ended']:.2f} s after"
        f" {before['behaviour']}"
        for before, after in pairwise(story.arrivals)
        if (asked := ASKED_TO_WAIT.get(before["behaviour"]))
        and before["ended"] is not None
        and after["at"] - before["ended"] < asked - ROUNDING
    ]


def beside_its_lease(story: Story, seen: Seen) -> list[str]:
    """Each call begins within a lease, and each lease allows one."""
    began = sorted(one["started_at"].timestamp() for one in story.attempts)
    upto = [min(a + seen.lease, b) for a, b in pairwise([*began, float("inf")])]
    found = []
    leases = list(zip(began, upto, strict=True))
    for start, end in leases:
        calls = [one for one in story.arrivals if start - ROUNDING <= one["at"] < end]
        if len(calls) > 1:
            found.append(f"other: {story.reference} was called {len(calls)} times in one lease")
    return found + [
        f"other: {story.reference} was called outside of any lease"
        for one in story.arrivals
        if not any(start - ROUNDING <= one["at"] < end for start, end in leases)
    ]


def out_of_order(stories: Sequence[Story]) -> list[str]:
    """In each lane an entry is called only when those before it are through."""
    lanes: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
    for story in stories:
        for one in story.arrivals:
            if one["place"]:
                lane, _, place = one["place"].partition("/")
                lanes[lane].append((one["number"], int(place), one["number"]))
    found = []
    for lane, calls in lanes.items():
        came = [place for _, place, _ in sorted(calls)]
        if came != sorted(came):
            found.append(f"other: in lane {lane} entries came as {came}")
    return found


def figures_of(seen: Seen) -> dict[str, Any]:
    """What a run came to."""
    states = Counter(f"{row['destination']} {row['state']}" for row in seen.entries)
    return {
        "entries": len(seen.asked),
        "arrivals": len(seen.arrivals),
        "effects": len(seen.effects),
        "states": dict(sorted(states.items())),
    }


def met(seen: Seen) -> Counter[str]:
    """How often each way of the provider's was met."""
    found = Counter(row["behaviour"] for row in seen.arrivals if row["behaviour"])
    found["its caller was killed"] = sum(
        row["caller"] == caller and row["at"] <= at and (row["ended"] or at) >= at
        for caller, at in seen.deaths
        for row in seen.arrivals
    )
    found["the provider was killed in it"] = sum(row["ended"] is None for row in seen.arrivals)
    held = Counter(row["destination"] for row in seen.entries if row["state"] == "uncertain")
    found["forgotten in time"] = held["forgetful"]
    return found
