"""The verdict on one seed: pure functions over histories and rows that never import the product."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from tests.history.told import Line, Seen, Told, seen, told

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
WORST_FIRST = ("lost", "doubled", "other", "undrained")
OURS = ("correction:", "read:")
KNOW_KEYS = ("payments", "post_office")
ORDER = "shop:order:{order}:{version}:{effect}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A promise that was broken, in a sentence."""

    promise: str
    kind: Literal["lost", "doubled", "undrained", "other"]
    said: str

    def __str__(self) -> str:
        return f"{self.promise} {self.kind}: {self.said}"


def judge(
    sender: Iterable[Line],
    destination: Iterable[Line],
    faults: Iterable[Line],
    rows: Rows,
    *,
    reconciled: bool,
) -> list[Violation]:
    """
    Hold what the worlds wrote down against each other and against the database's *rows*.

    With *reconciled* the reconciler has been on: then our states must be the sender's; without,
    nothing but what was acknowledged may have happened, and all of that must.
    """
    theirs, calls = told(sender), seen(destination)
    case = Case(told=theirs, seen=calls, rows=rows, reconciled=reconciled)
    found = [
        *claims_match_answers(case),
        *facts_count_once(case),
        *versions_grow(case),
        *causes_have_one_entry(case),
        *calls_are_alike(case),
        *lanes_are_in_order(case),
        *entries_are_settled(case),
        *(states_converge(case) if reconciled else ()),
        *daemons_lived(faults),
    ]
    return sorted(found, key=lambda one: WORST_FIRST.index(one.kind))


class Case:
    """The facts of one seed, by the names that the questions use."""

    def __init__(self, *, told: Told, seen: Seen, rows: Rows, reconciled: bool) -> None:
        self.told, self.seen, self.rows, self.reconciled = told, seen, rows, reconciled
        self.claims = {row["event_id"]: row for row in rows["processed_events"]}
        self.kept = {row["event_id"] for row in rows["quarantine"] if row["state"] == "open"}
        self.booked = Counter(row["source_event"] for row in rows["refunds"])
        self.log: dict[str, list[int]] = defaultdict(list)
        for row in sorted(rows["order_log"], key=lambda row: row["seq"]):
            self.log[row["id"]].append(row["version"])
        self.entries = [row for row in rows["outbox"] if row["state"] != "skipped"]

    def entry_count(self, effect: str, **facts: Any) -> int:
        return sum(
            row["effect"] == effect and all(row[name] == facts[name] for name in facts)
            for row in self.entries
        )


def claims_match_answers(case: Case) -> Iterator[Violation]:
    """P1, P2: acknowledged is there; what is there was sent; what must not apply did not."""
    for id_ in sorted(case.told.accepted - case.claims.keys() - case.kept):
        yield lost("P2", f"{id_} was acknowledged and is not there")
    for id_ in sorted(case.told.owed):
        yield undrained("P2", f"{id_} was never acknowledged")
    for id_ in case.claims:
        ours = case.reconciled and id_.startswith(OURS)
        if id_ not in case.told.answers and not ours:
            yield other("P1", f"{id_} is claimed and was never sent")
    for id_ in (*case.told.ids("poison"), *case.told.ids("malformed")):
        if id_ in case.claims:
            yield other("P15", f"{id_} cannot be applied and is claimed")
        elif id_ in case.told.accepted and id_ not in case.kept:
            yield lost("P15", f"{id_} was acknowledged and is not in quarantine")


def facts_count_once(case: Case) -> Iterator[Violation]:
    """P1, P3, P6: a claimed fact is one row of the user's and one entry of each of its effects."""
    for id_, event in case.told.events.items():
        due = int(id_ in case.claims)
        if event["kind"] in ("refund", "poison"):
            found = {"its row": case.booked[id_]} | {
                effect: case.entry_count(effect, event_id=id_) for effect in ("receipt", "letter")
            }
        elif event["type"] == "order.shipped":
            found = {"label": case.entry_count("label", event_id=id_)}
        else:
            continue
        for name, times in found.items():
            if times < due:
                yield lost("P3", f"{id_} is claimed and {name} is not there")
            elif times > due:
                kind = doubled if times > 1 else other
                yield kind("P6", f"{name} of {id_} is there {times} times, not {due}")


def versions_grow(case: Case) -> Iterator[Violation]:
    """P3, P4, P5: what was written only grew, and is what the claims say."""
    applied: dict[str, set[int]] = defaultdict(set)
    newest: Counter[str] = Counter()
    for row in case.claims.values():
        if row["kind"] == "order":
            newest[row["key"]] = max(newest[row["key"]], row["version"])
            if row["outcome"] == "applied":
                applied[row["key"]].add(row["version"])
    for order, versions in case.log.items():
        pairs = pairwise(versions)
        if any(b < a or (a == b and not case.reconciled) for a, b in pairs):
            yield other("P4", f"{order} was written at versions {versions}, in this order")
        if set(versions) != applied[order]:
            yield other("P5", f"{order} was written at {versions}, applied {applied[order]}")
    held = {row["key"]: row for row in case.rows["resources"]}
    users = {row["id"]: row["version"] for row in case.rows["orders"]}
    for order in sorted(newest.keys() | held.keys() | users.keys()):
        row = held.get(order)
        version = row["version"] if row else None
        if not version == newest[order] == users.get(order):
            yield other(
                "P4",
                f"{order} is at {version}, the user's row at {users.get(order)}, "
                f"and {newest[order]} was claimed",
            )
        elif row and not is_as_told(row["state"], case.told.versions[order, version]):
            yield other("P3", f"{order} is {row['state']}, which nobody said of {version}")


def causes_have_one_entry(case: Case) -> Iterator[Violation]:
    """P6: a change has one entry of each of its effects, under the key of every path."""
    wanted: dict[tuple[str, str], str] = {}
    for order, versions in case.log.items():
        for version in set(versions):
            wanted["notice", f"{order} {version}"] = key_of(order, version, "notice")
        paid = [v for v in versions if is_paid(case, order, v)]
        if paid:
            wanted["capture", order] = key_of(order, paid[0], "capture")
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in case.entries:
        if row["effect"] in ("capture", "notice"):
            version = row["idempotency_key"].split(":")[3:4]
            thing = [row["key"], *(version if row["effect"] == "notice" else ())]
            found[row["effect"], " ".join(thing)].append(row["idempotency_key"])
    for effect, thing in sorted(wanted.keys() | found.keys()):
        keys, key = found[effect, thing], wanted.get((effect, thing))
        if not keys:
            yield lost("P6", f"{effect} {thing} was caused and has no entry")
        elif len(keys) > 1:
            yield doubled("P6", f"{effect} {thing} has {len(keys)} entries: {keys}")
        elif keys != [key]:
            yield other("P6", f"{effect} {thing} has the key {keys[0]}, not {key}")


def calls_are_alike(case: Case) -> Iterator[Violation]:
    """P3, P7: every call belongs to an entry, and all calls of one key are the same bytes."""
    asked = {row["idempotency_key"]: row for row in case.entries}
    for key, calls in case.seen.calls.items():
        shapes = {(call["method"], call["path"], call["body"]) for call in calls}
        if key not in asked:
            yield other("P3", f"{key} was called and no entry asks for it")
        elif len(shapes) > 1:
            yield other("P7", f"{key} was called with {len(shapes)} different requests")
        elif shapes != {(asked[key]["method"], asked[key]["path"], asked[key]["body"])}:
            yield other("P7", f"{key} was called with other bytes than its entry has")


def lanes_are_in_order(case: Case) -> Iterator[Violation]:
    """In a lane nobody is called before all that goes before it is through."""
    lanes: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in case.entries:
        if row["lane"] is not None:
            lanes[row["lane"]].append((row["lane_position"], row["idempotency_key"]))
    for lane, entries in lanes.items():
        places = {key: place for place, key in entries}
        came = [
            (call["at"], places[key]) for key in places for call in case.seen.calls.get(key, ())
        ]
        order = [place for _, place in sorted(came)]
        if order != sorted(order):
            yield other("P9", f"in lane {lane} calls came as {order}")


def entries_are_settled(case: Case) -> Iterator[Violation]:
    """P9 and no losses: what was asked for was performed once, delivered or up for decision."""
    for row in case.entries:
        key, state = row["idempotency_key"], row["state"]
        name = f"{row['effect']} {key}"
        knows_keys = row["destination"] in KNOW_KEYS
        allowed = {"delivered"} if knows_keys else {"delivered", "uncertain"}
        if state == "pending":
            yield undrained("P9", f"{name} is pending: {row['last_error']}")
        elif state not in allowed:
            yield lost("P9", f"{name} is {state}: {row['last_error']}")
        elif state == "delivered" and not (case.seen.successes[key] and case.seen.under[key]):
            yield lost("P9", f"{name} is delivered, and no success was ever answered")
    for reference, times in case.seen.performed.items():
        if times > 1:
            yield doubled("P9", f"{reference} was performed {times} times")
    for id_ in case.told.ids("refund"):
        if id_ in case.told.accepted and not case.seen.performed[f"receipt {id_}"]:
            yield lost("P9", f"{id_} was acknowledged and its receipt was never performed")


def states_converge(case: Case) -> Iterator[Violation]:
    """P12: what the sender holds is what we hold, and each paid order was captured."""
    held = {row["key"]: row for row in case.rows["resources"]}
    for order, theirs in case.told.orders.items():
        ours = held.get(order)
        if ours is None:
            yield lost("P12", f"{order} is at {theirs['version']} there and not here")
        elif ours["version"] != theirs["version"] or not is_as_told(ours["state"], [theirs]):
            yield lost("P12", f"{order} is {theirs} there and {ours['version']} {ours['state']}")
        if theirs["paid"] and not case.seen.performed[f"capture {order}"]:
            yield lost("P12", f"{order} is paid and was never captured")
    for row in case.rows["fetch_requests"]:
        said = f"the read of {row['key']} waits ({row['reason']}): {row['last_error']}"
        yield undrained("P12", said)


def daemons_lived(faults: Iterable[Line]) -> Iterator[Violation]:
    """No trouble but ours ends a daemon, and told to stop it stops with 0."""
    for line in faults:
        if line["what"] == "ended":
            yield other("P19", f"a daemon ended with {line['code']}: {line['log']}")
        elif line["what"] == "restless":
            yield undrained("P9", line["said"])


def is_paid(case: Case, order: str, version: int) -> bool:
    return any(data["paid"] for data in case.told.versions[order, version])


def is_as_told(state: Mapping[str, Any], said: Sequence[Line]) -> bool:
    return any(all(data.get(name) == state[name] for name in state) for data in said)


def key_of(order: str, version: int, effect: str) -> str:
    return ORDER.format(order=order, version=version, effect=effect)


def lost(promise: str, said: str) -> Violation:
    return Violation(promise=promise, kind="lost", said=said)


def doubled(promise: str, said: str) -> Violation:
    return Violation(promise=promise, kind="doubled", said=said)


def undrained(promise: str, said: str) -> Violation:
    return Violation(promise=promise, kind="undrained", said=said)


def other(promise: str, said: str) -> Violation:
    return Violation(promise=promise, kind="other", said=said)
