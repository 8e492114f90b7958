"""`reconciler demo`: it proves what it says, and it can fail."""

import json
import os
import subprocess
import sys

import pytest

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
