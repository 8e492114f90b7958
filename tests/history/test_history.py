"""The history test proves others; here its plan and its judge are held to their own promises."""

from itertools import count

import pytest

from reconciler import faults
from tests.history import judge as judging
from tests.history.judge import judge
from tests.history.plan import ELSEWHERE, FAULTS, POINTS, SCAN_POINTS, plan
from tests.history.planted import PLANTED
from tests.history.troubles import ENOUGH, REQUIRED, not_met
from tests.mutants import place_of

ORDER = {"order_id": "ord_1", "version": 3, "status": "paid", "paid": True, "amount": 7}
EVENTS = [
    {"what": "event", "id": "evt_1", "kind": "order", "type": "order.paid", "data": ORDER},
    {"what": "event", "id": "evt_2", "kind": "refund", "type": "refund.succeeded", "data": {}},
]
CAPTURE = {"key": "shop:order:ord_1:3:capture", "reference": "capture ord_1"}
NOTICE = {"key": "shop:order:ord_1:3:notice", "reference": "notice ord_1 3"}
RECEIPT = {"key": "evt_2:receipt", "reference": "receipt evt_2"}
LETTER = {"key": "evt_2:letter", "reference": "letter evt_2"}
LANE = [CAPTURE, RECEIPT]
OF_THE_PATH = ("after-", "before-", "commit-", "ack-", "relay-", "scan-", "read-")
CALL = {"method": "POST", "path": "/v1/x", "body": "{}"}


NUMBERS = count()


def sent(id_: str, answer: object = 200, outcome: str | None = "applied") -> dict:
    return {"what": "sent", "id": id_, "n": 1, "copy": 0, "answer": answer, "outcome": outcome}


def performed(effect: dict) -> list[dict]:
    return [
        {"what": "call", "trouble": None, "at": next(NUMBERS), "key": effect["key"], **CALL},
        {"what": "effect", **effect},
        {"what": "answered", "key": effect["key"], "status": 200},
    ]


def entry(effect: dict, *, state: str = "delivered") -> dict:
    key = effect["key"]
    return {
        **CALL,
        "event_id": "evt_2" if key.startswith("evt_2") else "evt_1",
        "effect": effect["reference"].split()[0],
        "key": "ord_1",
        "destination": "payments" if effect in (CAPTURE, RECEIPT) else "post",
        "idempotency_key": key,
        "state": state,
        "last_error": None,
        "lane": "order:ord_1" if effect in LANE else None,
        "lane_position": LANE.index(effect) + 1 if effect in LANE else None,
    }


class Story:
    """A history in which all went well, for a test to spoil."""

    def __init__(self):
        self.sender = [*EVENTS, sent("evt_1"), sent("evt_2")]
        self.destination = [
            line for e in (CAPTURE, NOTICE, RECEIPT, LETTER) for line in performed(e)
        ]
        self.faults = []
        claim = {"event_type": "", "outcome": "applied"}
        self.rows = {
            "processed_events": [
                {**claim, "event_id": "evt_1", "kind": "order", "key": "ord_1", "version": 3},
                {**claim, "event_id": "evt_2", "kind": None, "key": None, "version": None},
            ],
            "quarantine": [],
            "resources": [
                {"key": "ord_1", "version": 3, "state": {"status": "paid", "paid": True}}
            ],
            "corrections": [],
            "fetch_requests": [],
            "outbox": [entry(e) for e in (CAPTURE, NOTICE, RECEIPT, LETTER)],
            "orders": [{"id": "ord_1", "version": 3}],
            "order_log": [{"seq": 1, "id": "ord_1", "version": 3}],
            "refunds": [{"source_event": "evt_2"}],
        }

    def verdict(self, *, reconciled: bool = False) -> set[str]:
        found = judge(self.sender, self.destination, self.faults, self.rows, reconciled=reconciled)
        return {f"{one.promise} {one.kind}" for one in found}


def no_claim(story: Story):
    story.rows["processed_events"].pop()
    story.rows["refunds"].clear()
    del story.rows["outbox"][2:]


def doubled(table: str, place: int):
    return lambda story: story.rows[table].append(dict(story.rows[table][place]))


def changed(table: str, place: int, **facts: object):
    return lambda story: story.rows[table][place].update(facts)


def out_of_order(story: Story):
    story.rows["outbox"][0]["lane_position"], story.rows["outbox"][2]["lane_position"] = 2, 1


SPOILT = {
    "a lane out of order": (out_of_order, {"P9 other"}),
    "acknowledged and not there": (no_claim, {"P2 lost", "P3 other"}),
    "never acknowledged": (lambda s: s.sender.append(sent("evt_9", "gave_up")), {"P2 undrained"}),
    "booked twice": (doubled("refunds", 0), {"P6 doubled"}),
    "half a transaction": (lambda s: s.rows["refunds"].clear(), {"P3 lost"}),
    "an effect without an entry": (lambda s: s.rows["outbox"].pop(), {"P3 lost", "P3 other"}),
    "two entries for one change": (doubled("outbox", 0), {"P6 doubled"}),
    "another key": (changed("outbox", 0, idempotency_key="7"), {"P6 other", "P3 other", "P9 lost"}),
    "written twice": (doubled("order_log", 0), {"P4 other"}),
    "a row behind its claims": (changed("resources", 0, version=2), {"P4 other"}),
    "a state that nobody told": (changed("resources", 0, state={"status": "x"}), {"P3 other"}),
    "delivered without an answer": (lambda s: s.destination.pop(), {"P9 lost"}),
    "performed twice": (
        lambda s: s.destination.append({"what": "effect", **LETTER}),
        {"P9 doubled"},
    ),
    "other bytes": (
        lambda s: s.destination.append({**performed(CAPTURE)[0], "body": "[]"}),
        {"P7 other"},
    ),
    "left pending": (changed("outbox", 3, state="pending"), {"P9 undrained"}),
    "given up at a destination that knows keys": (
        changed("outbox", 0, state="uncertain"),
        {"P9 lost"},
    ),
    "a daemon that gave up": (
        lambda s: s.faults.append({"what": "ended", "code": 1, "log": ""}),
        {"P19 other"},
    ),
}


def test_a_history_in_which_all_went_well_is_clean():
    assert set() == Story().verdict()
    assert set() == Story().verdict(reconciled=True)


@pytest.mark.parametrize("what", SPOILT)
def test_the_judge_sees(what: str):
    story = Story()
    spoil, expected = SPOILT[what]
    spoil(story)
    assert expected <= story.verdict()


def test_an_uncertain_call_to_a_destination_without_keys_is_for_a_person_and_no_loss():
    story = Story()
    story.rows["outbox"][3]["state"] = "uncertain"
    del story.destination[-2:]
    assert set() == story.verdict()


def test_states_are_the_senders_once_the_reconciler_has_been_on():
    """A change that nobody was told of is no loss before, and one after."""
    story = Story()
    story.sender.append({**EVENTS[0], "id": "evt_3", "data": {**ORDER, "version": 4}})
    assert set() == story.verdict()
    assert {"P12 lost"} == story.verdict(reconciled=True)


def test_a_plan_is_its_seeds_alone():
    assert plan(4711) == plan(4711)
    assert plan(1) != plan(2)


def test_the_seeds_of_a_batch_come_to_every_point_and_every_fault():
    """Every point of a delivery, a call and a scan is met here, or told to be met elsewhere."""
    plans = [plan(seed) for seed in range(1, ENOUGH + 1)]
    rounds = [one for each in plans for one in (each.before, each.aftermath)]
    points = {point.partition(":")[0] for one in rounds for point in one.crash_at}
    assert {*POINTS, *SCAN_POINTS} == points
    of_these = {name for name in faults.POINTS if name.startswith(OF_THE_PATH)}
    assert of_these <= points | set(ELSEWHERE) <= set(faults.POINTS)
    assert set(FAULTS) == {fault.what for one in rounds for fault in one.faults}


def test_nothing_is_told_of_a_version_that_never_was():
    """Encores come or do not: what comes after them must not build upon them."""
    for seed in range(1, ENOUGH + 1):
        one = plan(seed)
        for events in ((*one.before.events, *one.aftermath.events), one.before.encores):
            told = set()
            for event in events:
                version = event.data["order_id"], event.data.get("version")
                assert event.kind != "muddled" or version in told
                told.add(version)


def test_a_batch_that_met_nothing_has_proved_nothing():
    assert list(REQUIRED) == not_met(judging.Counter())


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_still_has_its_place(name: str):
    for mutant in PLANTED[name]:
        assert 1 == mutant.places(), mutant.file


def test_the_judge_never_imports_the_product():
    for module in ("judge", "told", "troubles", "plan"):
        text = (place_of("tests") / "history" / f"{module}.py").read_text()
        assert "reconciler." not in "\n".join(
            line for line in text.splitlines() if line.startswith(("from", "import"))
        )
