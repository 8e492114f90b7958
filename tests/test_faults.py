"""Crash points: what the list names is what the code has, and an armed one is the end."""

import os
import re
import signal
import subprocess
import sys

import pytest

from reconciler import faults
from tests.mutants import place_of

CALLS = re.compile(r'(?:point|crash_in_commit)\((?:connection, )?"([a-z-]+)"\)')


def test_every_point_is_listed_and_every_listed_point_is_somewhere():
    """A story armed with a name that nothing has would only wait."""
    sources = [file for part in ("reconciler", "outbox") for file in place_of(part).rglob("*.py")]
    found = {name for file in sources for name in CALLS.findall(file.read_text())}
    from outbox.destinations.http import WITHIN

    assert set(faults.POINTS) == found | set(WITHIN)


@pytest.mark.parametrize(("armed", "lines"), [("draining", 0), ("draining:3", 2), ("", 4)])
def test_an_armed_point_is_the_end_the_time_that_was_named(armed: str, lines: int):
    program = "from reconciler import faults\nfor n in range(4): faults.point('draining'); print(n)"
    ran = subprocess.run(
        [sys.executable, "-u", "-c", program],
        env={**os.environ, "RECONCILER_TEST_CRASH_AT": armed},
        capture_output=True,
        check=False,
    )
    assert lines == len(ran.stdout.splitlines())
    assert (-signal.SIGKILL if armed else 0) == ran.returncode
