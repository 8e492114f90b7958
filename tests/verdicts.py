"""
A pytest plugin that says how each test failed: `-p tests.verdicts`, into the file $VERDICTS.

A story that ends by an error, a timeout or a wait that came to nothing has not said what is wrong.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

GAVE_UP = "did not come true"  #: what `tests.world.eventually` says when it has waited in vain


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:  # the wrapped hooks' result goes through
    report = yield
    if call.excinfo is not None:
        told = {"test": item.nodeid, "when": call.when, "errors": faults(call.excinfo.value)}
        with Path(os.environ["VERDICTS"]).open("a") as file:
            file.write(json.dumps(told) + "\n")
    return report


def faults(error: BaseException) -> list[dict[str, str]]:
    """What was raised, out of the groups around it."""
    if isinstance(error, BaseExceptionGroup):
        return [fault for one in error.exceptions for fault in faults(one)]
    asserted = isinstance(error, AssertionError) and GAVE_UP not in str(error)
    return [{"kind": "assertion" if asserted else type(error).__name__, "said": str(error)}]


def assertion(file: Path) -> str | None:
    """The first assertion by which a test failed; None where anything else did, or nothing."""
    verdicts = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    errors = [error for verdict in verdicts for error in verdict["errors"]]
    if not errors or any(error["kind"] != "assertion" for error in errors):
        return None
    return str(errors[0]["said"]).partition("\n")[0]
