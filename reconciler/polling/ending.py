"""How a run ends: a pass completed, put off, or failed, and what follows for the next one."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler import faults
from reconciler.database import now
from reconciler.errors import DatabaseAwayError
from reconciler.exact_json import Json
from reconciler.ledger import baselines, fetches
from reconciler.ledger.alerts import hour_of, met, tell
from reconciler.ledger.rowsets import storable
from reconciler.polling import scans, sightings
from reconciler.polling.absence import find_absent
from reconciler.polling.checkpoint import Checkpoint
from reconciler.polling.errors import LeaseLostError
from reconciler.polling.report import End
from reconciler.polling.run import Run, told
from reconciler.polling.slots import Mode
from reconciler.polling.watermark import moved, watermark_of
from reconciler.transactions import transact

FIRST_PAUSE = timedelta(seconds=5)  #: after a failure; each further one doubles it
LONGEST_PAUSE = timedelta(minutes=5)
LET_GO_WITHIN = 2.0  #: seconds
TRIES_AT_ONE_PLACE = 3  #: what fails so often in a row may be due to where we came from ...
TRIES_WHILE_AWAY = 10  #: ... and so may answers that never come: half an hour of them

log = structlog.get_logger()


async def complete(run: Run) -> None:
    """
    All pages are read: look for what was not listed, move the watermark, free the slot.

    Raises MassChangeError instead where too much is missing.
    """
    source, order = run.source, run.order
    if order.mode is Mode.FULL and not run.checkpoint.resumed:
        # after a resume nobody knows what the pages before had: the next full scan will tell
        absent = await find_absent(
            order.engine, source, run.rounds.all(), pass_started=run.pass_started
        )
        run.report.absent = len(absent)
        if source.getting is not None and order.note is not None:
            run.report.asked_keys += absent
        if source.rules.gone_means_deleted and not order.dry_run:
            # elsewhere a 404 would settle nothing, and be asked for again for ever
            await _ask_about(run, absent)
    if run.held is None:
        return
    faults.point("scan-before-complete")
    await transact(order.engine, lambda connection: _completed(connection, run))


async def _ask_about(run: Run, absent: Sequence[str]) -> None:
    """Ask for a read of each: only an answer about the resource itself can bury it."""
    source = run.source
    for at in range(0, len(absent), 1000):
        wishes = [
            fetches.Request(resource=(source.sender, source.kind, key), reason="absent")
            for key in absent[at : at + 1000]
        ]

        async def ask(connection: AsyncConnection, wishes: list[fetches.Request] = wishes) -> None:
            await fetches.request(connection, wishes)

        await transact(run.order.engine, ask)
        run.report.asked += len(wishes)


async def _completed(connection: AsyncConnection, run: Run) -> None:
    assert run.held is not None
    source, mode = run.source, run.order.mode
    found = watermark_of(run.checkpoint.reach, pass_started=run.pass_started_ns)
    mark = moved(run.watermark, found)
    incremental = source.slot(Mode.INCREMENTAL)
    if mode is Mode.FULL and Mode.INCREMENTAL in source.modes:
        if found is not None:
            await scans.set_watermark(
                connection,
                incremental,
                found,
                told(found),
                next_in=source.interval(Mode.INCREMENTAL),
            )
        mark = None
    await scans.complete(
        connection,
        run.held.lease,
        next_in=source.interval(mode),
        watermark=None if mark is None else (mark, told(mark)),
    )
    if mode is Mode.FULL:
        await sightings.forget_before(
            connection, source.sender, source.kind, run.pass_started - source.grace
        )
        if await baselines.complete(connection, source.sender, source.kind, by="scan"):
            log.info("scan.baseline_completed", sender=source.sender, kind=source.kind)


async def put_off(run: Run, end: End) -> None:
    """The run ends before the pass does; the next one goes on where it is."""
    run.report.end = end
    if run.held is None:
        return
    lease, progressed = run.held.lease, run.report.pages > 0
    if end is End.DEADLINE and not progressed:
        await fail(run, end, "not one page was read within the deadline")
        return
    with contextlib.suppress(LeaseLostError):
        await transact(
            run.order.engine,
            lambda connection: scans.release(connection, lease, progressed=progressed),
        )


async def let_go(run: Run) -> None:
    """Free the slot of a run that is being cancelled, if that is quick; else its lease runs out."""
    if run.held is None:
        return
    lease = run.held.lease
    with contextlib.suppress(TimeoutError, DatabaseAwayError, LeaseLostError):
        async with asyncio.timeout(LET_GO_WITHIN):
            await transact(
                run.order.engine,
                lambda connection: scans.release(connection, lease, progressed=False),
            )


async def fail(run: Run, end: End, error: str, *, retry_after: timedelta | None = None) -> None:
    """The run failed: the watermark stays, and another one tries after a pause."""
    run.report.end = end
    run.report.error = error
    if run.held is None:
        return
    lease, failures = run.held.lease, run.held.failures
    pause = pause_after(failures, draw=run.order.draw())
    if retry_after is not None:
        pause = max(pause, retry_after)
    checkpoint = _next_beginning(run, end)
    refused = checkpoint.refused >= scans.REFUSALS and end is End.REFUSED

    async def work(connection: AsyncConnection) -> None:
        await scans.fail(
            connection, lease, error=error, again_in=pause, checkpoint=checkpoint.to_json()
        )
        await _tell_of_failure(connection, run)
        if refused and run.order.mode is Mode.INCREMENTAL:
            await scans.make_due(connection, run.source.slot(Mode.FULL))

    try:
        await transact(run.order.engine, work)
    except LeaseLostError as lost:  # then what went wrong is the other run's to find out
        run.report.end, run.report.error = End.LEASE_LOST, str(lost)


async def _tell_of_failure(connection: AsyncConnection, run: Run) -> None:
    """Ask for the effects that tell of scans that fail: once an hour for each kind and mode."""
    alerts, report = run.order.rules.alerts, run.report
    if not alerts:
        return
    assert run.held is not None
    moment = await now(connection)
    about = (report.sender, report.kind, report.mode.value, hour_of(moment))
    body: dict[str, Json] = {
        "sender": report.sender,
        "kind": report.kind,
        "mode": report.mode.value,
        "end": report.end.value,
        "reason": None if report.error is None else storable(report.error),
        "failures": run.held.failures + 1,
        "run_id": str(report.run_id),
    }
    await tell(connection, alerts, met("scan_failed", about, body, now=moment))


def _next_beginning(run: Run, end: End) -> Checkpoint:
    """
    Where the next run begins: here, unless this place is what fails.

    Only failures at this very place count: a listing that breaks off now and then, each time
    somewhere further on, must not be begun again for it.
    """
    tries = run.checkpoint.tries + 1
    enough = TRIES_WHILE_AWAY if end is End.AWAY else TRIES_AT_ONE_PLACE
    if end is End.MASS_CHANGE or tries >= enough:
        return Checkpoint(refused=run.checkpoint.refused)
    return replace(run.checkpoint, tries=tries)


def pause_after(failures: int, *, draw: float) -> timedelta:
    """
    How long to wait after this many failures before this one, with some jitter on top.

    >>> pause_after(0, draw=0.0), pause_after(3, draw=0.0), pause_after(99, draw=0.0)
    (datetime.timedelta(seconds=5), datetime.timedelta(seconds=40), datetime.timedelta(seconds=300))
    """
    pause: timedelta = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10))
    return pause * (1 + draw / 4)
