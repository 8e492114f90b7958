"""`reconciler demo`: it proves what it says, and it can fail."""

import json
import os
import subprocess
import sys

import pytest

from reconciler.proving.judge import judge, unlike_once
from tests.demo_mutants import demo_without
from tests.mutants import STABLE_KEY


@pytest.mark.timeout(180)
def test_the_demo_loses_and_doubles_nothing():
    """Exit 0, every kind of trouble occurred, and its document has the keys that scripts read."""
    ran = subprocess.run(
        [sys.executable, "-m", "reconciler", "demo", "--seed", "1", "--json"],
        env={n: v for n, v in os.environ.items() if not n.startswith("RECONCILER_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert ("reconciler.cli/1", 1, 300) == (found["schema"], found["seed"], found["events"])
    assert {"deliveries", "lost", "repeated", "late", "out_of_order"} <= found["sender"].keys()
    outcomes = {"applied", "duplicate", "stale", "late", "corrected", "effects_asked"}
    assert outcomes <= found["reconciler"].keys()
    assert {"calls", "retried_calls", "effects"} <= found["destination"].keys()
    assert (0, 0) == (found["lost_effects"], found["doubled_effects"])
    troubles = [
        *(found["sender"][name] for name in ("lost", "repeated", "late", "out_of_order")),
        *(found["reconciler"][name] for name in ("duplicate", "stale", "late", "corrected")),
        found["destination"]["retried_calls"],
    ]
    assert all(troubles), found
    assert found["destination"]["effects"] == found["reconciler"]["effects_asked"]
    assert found["seconds"] < 170


@pytest.mark.timeout(180)
def test_the_demo_fails_where_calls_have_no_stable_key():
    """The other parts that can be taken out: `python -m tests.demo_mutants`."""
    code, found = demo_without(STABLE_KEY, events=120)
    assert 1 == code, found
    assert "doubled_effects: 0" not in found


PAID = {"order_id": "ord_1", "version": 3, "paid": True}
EVENT = {"what": "event", "id": "evt_1", "type": "order.paid", "data": PAID}
DONE = {"what": "done", "orders": [{"id": "ord_1", "version": 3}]}
KEY = "shop:order:ord_1:3:capture"


def sent(status: int) -> dict:
    return {"what": "sent", "id": "evt_1", "attempt": 1, "status": status, "late": False}


def effect(key: str = KEY, reference: str = "capture ord_1") -> dict:
    return {"what": "effect", "key": key, "reference": reference}


def test_the_judge_believes_the_histories_alone():
    """What was asked for and not performed, performed twice, or never asked for."""
    good = judge([EVENT, sent(200), DONE], [{"what": "call", "key": KEY}, effect()])
    assert ((), (), (), ()) == (
        good.lost_effects,
        good.doubled_effects,
        good.strange_keys,
        good.refused,
    )
    assert (True, 1, 1) == (good.finished, good.calls, good.effects)
    assert ("capture ord_1",) == judge([EVENT, DONE], []).lost_effects
    assert ("capture ord_1",) == judge([EVENT, DONE], [effect(), effect()]).doubled_effects
    assert ("capture ord_2",) == (
        judge([EVENT, DONE], [effect(), effect(reference="capture ord_2")]).doubled_effects
    )


def test_the_judge_knows_which_key_every_path_would_have_used():
    assert ("7",) == judge([EVENT, DONE], [effect(key="7")]).strange_keys


def test_the_judge_tells_a_refusal_from_being_asked_to_come_again():
    """503 and no answer in time are no refusals; 500 is one, also when a later delivery works."""
    assert () == judge([EVENT, sent(503), sent(0), sent(200), DONE], []).refused
    assert ("evt_1",) == judge([EVENT, sent(500), sent(200), DONE], []).refused


def test_a_refund_is_booked_once():
    assert [] == unlike_once(["evt_1"], {"evt_1": 1})
    assert ["evt_1: booked 2 times", "evt_2: booked 0 times"] == unlike_once(
        ["evt_2", "evt_1"], {"evt_1": 2}
    )
