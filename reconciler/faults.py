"""Named places where a crash matters: no-ops in production, armed by tests."""

import asyncio
import os
import signal
from typing import Final

POINTS: Final = {
    # a delivery
    "after-verify": "the signature is right, nothing is read yet",
    "after-begin": "the transaction has begun",
    "after-claim": "the ids are claimed",
    "after-guard": "states are written",
    "before-enqueue": "your statements and handlers have run, no call is written",
    "after-react": "calls are written",
    "before-commit": "everything is written",
    "commit-sent": "COMMIT is on its way, and nobody will hear the answer",
    "after-commit": "committed",
    "after-commit-before-ack": "committed, and known to whoever answers",
    "ack-half-sent": "the head of a 2xx is sent, its body is not",
    "in-quarantine": "a copy of what failed is written and not committed",
    # a call
    "relay-in-lease": "entries are leased and not committed",
    "relay-after-lease": "entries are leased",
    "relay-before-send": "nothing is sent",
    "relay-half-sent": "the head of the request is sent, its body is not",
    "relay-sent": "the whole request is sent, no answer is read",
    "relay-after-send": "the answer is read",
    "relay-before-mark": "no mark is written",
    "relay-in-mark": "marks are written and not committed",
    "relay-after-mark": "marks are committed",
    # a scan, a read
    "scan-after-take": "the slot is ours, nothing is asked for",
    "scan-after-page": "a page is read",
    "scan-before-checkpoint": "a page is put right and not committed",
    "scan-after-checkpoint": "a page and where to go on are committed",
    "scan-after-renewal": "the lease is renewed, beside a page under way",
    "scan-before-complete": "the pass is over, and nobody knows",
    "read-between-fetch-and-apply": "the sender has told, nothing is written",
    # the rest
    "in-migration": "the schema is changed and not committed",
    "between-indexes": "the schema is changed, one index is made, and more are missing",
    "between-purge-and-horizon": "claims are removed, their horizon is not moved",
    "between-purges": "a batch is removed, and more wait",
    "generation-opened": "the database went back, and nothing is held yet",
    "between-holds": "some of what a lost future may have sent is held, some is not",
    "database-prepared": "everything is checked, and no part runs",
    "draining": "told to stop, with work under way",
}
"""Every point, and what has happened when it is reached."""

_name, _, _times = os.environ.get("RECONCILER_TEST_CRASH_AT", "").partition(":")
_left = int(_times or 1)
_frozen = os.environ.get("RECONCILER_TEST_FREEZE_AT")
_hung, _, _turns = os.environ.get("RECONCILER_TEST_HANG_AT", "").partition(":")
_turns_left = int(_turns or 1)


def point(name: str) -> None:
    """
    Mark a place where a crash would matter: one of POINTS.

    With RECONCILER_TEST_CRASH_AT=*name* the process kills itself here with SIGKILL, so that a
    test sees exactly what a power cut at this place leaves behind; with `*name*:3` the third
    time that it comes here. With RECONCILER_TEST_FREEZE_AT=*name* it stops with SIGSTOP instead,
    as on a host that has no time for it: what it holds stays held.
    """
    global _left  # noqa: PLW0603 - one process, one crash
    if armed(name):
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    if _frozen == name:
        os.kill(os.getpid(), signal.SIGSTOP)


async def turn(loop: str) -> None:
    """
    Mark a turn of *loop*, `relay`.

    With RECONCILER_TEST_HANG_AT=*loop* that loop, and nothing else of the process, waits here for
    ever; with `*loop*:3` the third time that it comes here.
    """
    global _turns_left  # noqa: PLW0603 - one process, one loop that hangs
    if _hung == loop:
        _turns_left -= 1
        if _turns_left <= 0:
            await asyncio.Event().wait()


def armed(name: str) -> bool:
    """Whether *name* is the place to crash at: for places that only exist then."""
    return bool(_name) and _name == name
