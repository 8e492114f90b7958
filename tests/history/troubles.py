"""Which kinds of trouble a seed has met, and which a whole batch must meet; pure."""

from collections import Counter
from collections.abc import Iterable

from tests.history.judge import Rows
from tests.history.plan import FAULTS, POINTS, SCAN_POINTS, TROUBLES
from tests.history.told import Line, Told, told

ENOUGH = 20  #: seeds in a row that meet everything
REQUIRED = (
    *(f"crash at {point}" for point in (*POINTS, *SCAN_POINTS)),
    *FAULTS,
    *(f"destination {trouble}" for trouble in TROUBLES),
    *(f"sender {trouble}" for trouble in ("lost", "repeated", "out of order", "gave_up")),
    *(f"sender {trouble}" for trouble in ("unknown", "away", "503", "500", "redelivered")),
    *(f"outcome {outcome}" for outcome in ("applied", "duplicate", "stale", "tied", "late")),
    "outcome quarantined",
    "outcome corrected",
    "recovered",
    "uncertain",
    "two replicas",
    "ordered",
    "lanes",
    "rate",
    "breaker opened",
)


def met(
    sender: Iterable[Line], destination: Iterable[Line], faults: Iterable[Line], rows: Rows
) -> Counter[str]:
    """How often each kind of trouble occurred, by what was written down."""
    theirs, found = told(sender), Counter[str]()
    for line in faults:
        if line["what"] == "crash":
            found[f"crash at {line['at'].partition(':')[0]}"] += 1
        elif line["what"] in (*FAULTS, "two replicas", "ordered", "lanes", "rate"):
            found[line["what"]] += 1
    for line in destination:
        if line["what"] == "call" and line["trouble"]:
            found[f"destination {line['trouble']}"] += 1
    found["sender lost"] = sum(event["fate"] == "lost" for event in theirs.events.values())
    found["sender out of order"] = out_of_order(theirs)
    for answers in theirs.answers.values():
        found["sender repeated"] += any(one["copy"] for one in answers)
        found["sender redelivered"] += any(one["n"] > 1 for one in answers)
        for one in answers:
            found[f"sender {one['answer']}"] += 1
            found[f"outcome {one.get('outcome')}"] += 1
    found["recovered"] = len(theirs.recovered)
    found["uncertain"] = sum(row["state"] == "uncertain" for row in rows["outbox"])
    found["outcome corrected"] = len(rows["corrections"])
    return found


def out_of_order(theirs: Told) -> int:
    """Deliveries about an order after one of a newer version had been answered."""
    times, newest = 0, Counter[str]()
    lines = [line for answers in theirs.answers.values() for line in answers]
    for line in sorted(lines, key=lambda line: float(line["at"])):
        event = theirs.events[line["id"]]
        if event["kind"] == "order" and line["answer"] == 200:
            order, version = event["data"]["order_id"], event["data"]["version"]
            times += version < newest[order]
            newest[order] = max(newest[order], version)
    return times


def not_met(counts: Counter[str]) -> list[str]:
    return [name for name in REQUIRED if not counts[name]]
