"""The verdict on a demo: a pure function over what the pretend worlds themselves wrote down."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the sender did, what the destination saw, and what is missing between them."""

    deliveries: int
    lost: int
    repeated: int
    late: int
    out_of_order: int
    calls: int
    retried_calls: int
    effects: int
    lost_effects: tuple[str, ...]
    doubled_effects: tuple[str, ...]
    orders: Mapping[str, Line]  #: the sender's final states
    finished: bool  #: the sender has delivered all it meant to


def judge(sender: Iterable[Line], destination: Iterable[Line]) -> Verdict:
    """Hold the effects that the sender's history asks for against those that were performed."""
    told = Telling()
    for line in sender:
        told.take(line)
    calls, performed = Counter[str](), Counter[str]()
    for line in destination:
        if line["what"] == "call":
            calls[line["key"]] += 1
        elif line["what"] == "effect":
            performed[line["reference"]] += 1
    doubled = [name for name, times in performed.items() if times > 1 or name not in told.asked]
    return Verdict(
        deliveries=told.sent.total(),
        lost=len(told.lost),
        repeated=told.sent.total() - len(told.sent),
        late=len(told.late),
        out_of_order=told.out_of_order,
        calls=calls.total(),
        retried_calls=calls.total() - len(calls),
        effects=performed.total(),
        lost_effects=tuple(sorted(told.asked - set(performed))),
        doubled_effects=tuple(sorted(doubled)),
        orders=told.orders,
        finished=told.finished,
    )


@dataclass(slots=True)
class Telling:
    """What the sender's history comes to, line by line."""

    sent: Counter[str] = field(default_factory=Counter)  #: deliveries by event id
    lost: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)  #: effects that must happen once
    versions: dict[str, tuple[str, int]] = field(default_factory=dict)  #: by event id
    newest: dict[str, int] = field(default_factory=dict)  #: version acknowledged, by order
    orders: dict[str, Line] = field(default_factory=dict)
    out_of_order: int = 0
    finished: bool = False

    def take(self, line: Line) -> None:
        match line["what"]:
            case "event":
                self.asked |= effects_asked_by(line)
                if line["type"].startswith("order."):
                    self.versions[line["id"]] = (line["data"]["order_id"], line["data"]["version"])
            case "lost":
                self.lost.add(line["id"])
            case "sent":
                self.take_delivery(line)
            case "done":
                self.finished = True
                self.orders = {order["id"]: order for order in line["orders"]}
            case _:
                pass

    def take_delivery(self, line: Line) -> None:
        self.sent[line["id"]] += 1
        if line["late"]:
            self.late.add(line["id"])
        order, version = self.versions.get(line["id"], ("", 0))
        if order and 200 <= line["status"] < 300:
            self.out_of_order += version < self.newest.get(order, 0)
            self.newest[order] = max(version, self.newest.get(order, 0))


def effects_asked_by(event: Line) -> set[str]:
    """The effects that one event of the pretend sender must cause, whichever path finds it."""
    if event["type"] == "refund.succeeded":
        return {f"receipt {event['id']}"}
    return {f"capture {event['data']['order_id']}"} if event["data"]["paid"] else set()


def differences(theirs: Mapping[str, Line], ours: Mapping[str, Line]) -> list[str]:
    """Orders whose final state we do not hold: `ord_7: version 5 there, 4 here`."""
    found = []
    for key, order in theirs.items():
        held = ours.get(key)
        if held is None:
            found.append(f"{key}: not here")
        elif held["version"] != order["version"]:
            found.append(f"{key}: version {order['version']} there, {held['version']} here")
        else:
            found += [
                f"{key}: {name} is {order[name]!r} there, {value!r} here"
                for name, value in held["state"].items()
                if order.get(name) != value
            ]
    return found + [f"{key}: not there" for key in ours.keys() - theirs.keys()]
