"""A sample of `python -m tests.sweep`: calls that fail, and an end that is that of a quiet run."""

from pathlib import Path

import pytest

from tests.sweep.scenarios import SCENARIOS
from tests.sweep.scene import a_scene
from tests.sweep.sweeping import sweep

pytestmark = pytest.mark.anyio

SAMPLE = {"a delivery": 8, "calls": 1, "a redrive": 1, "a start": 5}


@pytest.mark.parametrize(("name", "every"), SAMPLE.items(), ids=SAMPLE)
async def test_a_call_that_fails_changes_nothing_in_the_end(
    tmp_path: Path, database_url: str, name: str, every: int
):
    """
    The Nth call breaks before it takes effect, breaks after it has, or is given up; then the
    sender, the operator or the schedule does what it always does. (All scenarios, every call: by
    the command.)
    """
    (scenario,) = [one for one in SCENARIOS if one.name == name]
    async with a_scene(tmp_path, database_url) as scene:
        swept = await sweep(scene, scenario, every=every)
    assert [] == swept.faults
    assert swept.runs >= 3
