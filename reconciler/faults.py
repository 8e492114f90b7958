"""Named places where a crash matters: no-ops in production, armed by tests."""

import os
import signal

_armed = os.environ.get("RECONCILER_TEST_CRASH_AT")


def point(name: str) -> None:
    """
    Mark a place where a crash would matter.

    With RECONCILER_TEST_CRASH_AT=*name* the process kills itself here with SIGKILL,
    so that a test sees exactly what a power cut at this place leaves behind.
    """
    if _armed is not None and _armed == name:
        os.kill(os.getpid(), signal.SIGKILL)
