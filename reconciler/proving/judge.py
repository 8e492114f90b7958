"""The verdict on a demo: a pure function over what the pretend worlds themselves wrote down."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    sent, lost, late = Counter[str](), set[str](), set[str]()
    versions: dict[str, tuple[str, int]] = {}
    newest: dict[str, int] = {}
    asked: set[str] = set()
    orders: dict[str, Line] = {}
    out_of_order, finished = 0, False
    for line in sender:
        match line["what"]:
            case "event":
                asked |= effects_asked_by(line)
                if line["type"].startswith("order."):
                    versions[line["id"]] = (line["data"]["order_id"], line["data"]["version"])
            case "lost":
                lost.add(line["id"])
            case "sent":
                sent[line["id"]] += 1
                if line["late"]:
                    late.add(line["id"])
                order, version = versions.get(line["id"], ("", 0))
                if 200 <= line["status"] < 300 and order:
                    out_of_order += version < newest.get(order, 0)
                    newest[order] = max(version, newest.get(order, 0))
            case "done":
                finished = True
                orders = {order["id"]: order for order in line["orders"]}
            case _:
                pass
    calls, performed = Counter[str](), Counter[str]()
    for line in destination:
        if line["what"] == "call":
            calls[line["key"]] += 1
        elif line["what"] == "effect":
            performed[line["reference"]] += 1
    doubled = [name for name, times in performed.items() if times > 1 or name not in asked]
    return Verdict(
        deliveries=sent.total(),
        lost=len(lost),
        repeated=sent.total() - len(sent),
        late=len(late),
        out_of_order=out_of_order,
        calls=calls.total(),
        retried_calls=calls.total() - len(calls),
        effects=performed.total(),
        lost_effects=tuple(sorted(asked - set(performed))),
        doubled_effects=tuple(sorted(doubled)),
        orders=orders,
        finished=finished,
    )


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
