"""The verdict on a demo: a pure function over what the pretend worlds themselves wrote down."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Line = Mapping[str, Any]

#: A refund of less has no receipt: nothing but its claim keeps it from being booked twice.
RECEIPT_FROM = 50
COME_AGAIN = frozenset({0, 503})  #: no answer in time, or not now: no event is at fault


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
    refunds: frozenset[str]  #: ids of the events that must each be one row of the user's table
    strange_keys: tuple[str, ...]  #: under which an effect was performed, and that none would have
    refused: tuple[str, ...]  #: events that were answered neither with success nor "come again"
    finished: bool  #: the sender has delivered all it meant to


def judge(sender: Iterable[Line], destination: Iterable[Line]) -> Verdict:
    """Hold the effects that the sender's history asks for against those that were performed."""
    told = Telling()
    for line in sender:
        told.take(line)
    calls, performed, strange = Counter[str](), Counter[str](), set[str]()
    for line in destination:
        if line["what"] == "call":
            calls[line["key"]] += 1
        elif line["what"] == "effect":
            performed[line["reference"]] += 1
            if line["key"] not in told.asked.get(line["reference"], ()):
                strange.add(line["key"])
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
        lost_effects=tuple(sorted(told.asked.keys() - performed.keys())),
        doubled_effects=tuple(sorted(doubled)),
        orders=told.orders,
        refunds=frozenset(told.refunds),
        strange_keys=tuple(sorted(strange)),
        refused=tuple(sorted(told.refused)),
        finished=told.finished,
    )


@dataclass(slots=True)
class Telling:
    """What the sender's history comes to, line by line."""

    sent: Counter[str] = field(default_factory=Counter)  #: deliveries by event id
    lost: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    #: effects that must happen once, each with the keys that may be used for it
    asked: dict[str, set[str]] = field(default_factory=dict)
    versions: dict[str, tuple[str, int]] = field(default_factory=dict)  #: by event id
    newest: dict[str, int] = field(default_factory=dict)  #: version acknowledged, by order
    orders: dict[str, Line] = field(default_factory=dict)
    refunds: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    out_of_order: int = 0
    finished: bool = False

    def take(self, line: Line) -> None:
        match line["what"]:
            case "event":
                for effect, key in effects_asked_by(line).items():
                    self.asked.setdefault(effect, set()).add(key)
                if line["type"].startswith("order."):
                    self.versions[line["id"]] = (line["data"]["order_id"], line["data"]["version"])
                else:
                    self.refunds.add(line["id"])
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
        if line["status"] not in COME_AGAIN and not 200 <= line["status"] < 300:
            self.refused.add(line["id"])
        order, version = self.versions.get(line["id"], ("", 0))
        if order and 200 <= line["status"] < 300:
            self.out_of_order += version < self.newest.get(order, 0)
            self.newest[order] = max(version, self.newest.get(order, 0))


def effects_asked_by(event: Line) -> dict[str, str]:
    """
    The effects that one event of the pretend sender must cause, whichever path finds it.

    Each with its key: of an order that was paid before, the version that was found first counts.
    """
    data = event["data"]
    if event["type"] == "refund.succeeded":
        reference, key = f"receipt {event['id']}", f"{event['id']}:receipt"
        return {reference: key} if data["amount"] >= RECEIPT_FROM else {}
    order, version = data["order_id"], data["version"]
    return {f"capture {order}": f"shop:order:{order}:{version}:capture"} if data["paid"] else {}


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


def unlike_once(refunds: Iterable[str], booked: Mapping[str, int]) -> list[str]:
    """Refunds that are not one row of the user's table: `evt_7: booked 2 times`."""
    return [
        f"{event_id}: booked {booked.get(event_id, 0)} times"
        for event_id in sorted(refunds)
        if booked.get(event_id, 0) != 1
    ]
