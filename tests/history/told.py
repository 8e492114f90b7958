"""What the histories of the pretend worlds say, gathered; pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Line = Mapping[str, Any]
UNANSWERED = frozenset({"unknown", "gave_up", "away"})


@dataclass(slots=True)
class Told:
    """The sender's side: what happened there, and what it was answered."""

    events: dict[str, Line] = field(default_factory=dict)
    answers: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    versions: dict[tuple[str, int], list[Line]] = field(default_factory=lambda: defaultdict(list))
    """What was said about an order at a version; more than one thing where the sender muddled."""
    orders: dict[str, Line] = field(default_factory=dict)
    """The final state of each, as the sender has it."""

    @property
    def accepted(self) -> set[str]:
        """Events of which some delivery was acknowledged."""
        return {
            id_
            for id_, answers in self.answers.items()
            if any(is_success(one["answer"]) for one in answers)
        }

    @property
    def owed(self) -> set[str]:
        """Events that the sender has begun to deliver and must have got rid of in the end."""
        return set(self.answers) - self.accepted

    @property
    def recovered(self) -> set[str]:
        """Events that were applied by a delivery of whose answer nobody knows."""
        return {
            id_
            for id_, answers in self.answers.items()
            if any(one["answer"] in ("unknown", "gave_up") for one in answers)
            and "duplicate" in (outcomes := [one.get("outcome") for one in answers])
            and set(outcomes) <= {"duplicate", None}
        }

    def ids(self, kind: str) -> list[str]:
        return [id_ for id_, event in self.events.items() if event["kind"] == kind]


@dataclass(slots=True)
class Seen:
    """The destination's side: what it was asked for, and what it did."""

    calls: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    performed: Counter[str] = field(default_factory=Counter)
    """Effects, by the reference that the call gave: under whatever key, that is one thing."""
    under: Counter[str] = field(default_factory=Counter)
    """Effects, by key."""
    successes: Counter[str] = field(default_factory=Counter)


def told(lines: Iterable[Line]) -> Told:
    found = Told()
    for line in lines:
        if line["what"] == "event":
            found.events[line["id"]] = line
            if line["kind"] in ("order", "muddled"):
                data = line["data"]
                found.versions[data["order_id"], data["version"]].append(data)
                if line["kind"] == "order":
                    found.orders[data["order_id"]] = data
        elif line["what"] == "sent":
            found.answers[line["id"]].append(line)
    return found


def seen(lines: Iterable[Line]) -> Seen:
    found = Seen()
    for line in lines:
        if line["what"] == "call":
            found.calls[line["key"]].append(line)
        elif line["what"] == "effect":
            found.performed[line["reference"]] += 1
            found.under[line["key"]] += 1
        elif line["what"] == "answered" and is_success(line["status"]):
            found.successes[line["key"]] += 1
    return found


def is_success(answer: object) -> bool:
    return isinstance(answer, int) and 200 <= answer < 300
