"""One run of a scan: page by page in constant memory, resumable after every page."""

import asyncio
from dataclasses import replace
from datetime import datetime
from functools import partial

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import uuid7
from reconciler import faults
from reconciler.database import now
from reconciler.errors import DatabaseAwayError
from reconciler.ledger import baselines
from reconciler.polling import ending, scans
from reconciler.polling.checkpoint import Checkpoint
from reconciler.polling.client import Response
from reconciler.polling.errors import (
    ApiError,
    AwayError,
    LeaseLostError,
    MassChangeError,
    PageBrokenError,
    RefusedError,
)
from reconciler.polling.holding import held
from reconciler.polling.listing import ask
from reconciler.polling.pages import ReadPage, read_response
from reconciler.polling.pagination import Page, next_position
from reconciler.polling.report import End, ScanReport
from reconciler.polling.rounds import Rounds
from reconciler.polling.run import Order, Run, kept_watermark, since_of
from reconciler.polling.settling import settle_page
from reconciler.polling.slots import Held
from reconciler.polling.waiting import StoppedError, Waits
from reconciler.polling.watermark import Stamp
from reconciler.transactions import told, transact

log = structlog.get_logger()


async def run_scan(order: Order) -> ScanReport | None:
    """
    Run one scan of a slot until its pass is complete, its deadline, a failure or a stop.

    None: it was not due any more. Every page that was read is committed with the place where
    the next run goes on. What fails is written down in the slot, with when to try again.

    Raises BusyError while another run holds the slot, and DatabaseAwayError.
    """
    run = await _begin(order)
    if run is None:
        return None
    lease = run.held.lease if run.held else None
    waits = Waits(stop=order.stop)
    try:
        async with asyncio.timeout(order.policy.deadline.total_seconds()) as deadline:
            async with held(order.engine, lease, waits):
                await _run(run, waits)
    except TimeoutError:
        if not deadline.expired():
            raise
        await ending.put_off(run, End.DEADLINE)
    except StoppedError:
        await ending.put_off(run, End.STOPPED)
    except LeaseLostError as error:
        run.report.end, run.report.error = End.LEASE_LOST, str(error)
    except ApiError as error:
        await _failed(run, error)
    except asyncio.CancelledError:
        await ending.let_go(run)
        raise
    except DatabaseAwayError:
        raise
    except Exception as error:
        log.exception("scan.crashed", **run.report.facts())
        await ending.fail(run, End.CRASHED, f"{type(error).__name__}: {told(error)}")
    log.info("scan.ended", **run.report.facts())
    return run.report


async def _begin(order: Order) -> Run | None:
    """Take the slot, and go on with the pass that it holds or start one."""
    report = ScanReport(
        run_id=uuid7(),
        sender=order.source.sender,
        kind=order.source.kind,
        mode=order.mode,
        dry_run=order.dry_run,
    )
    taken = None if order.dry_run else await _take(order, report)
    if taken is None and not order.dry_run:
        return None
    faults.point("scan-after-take")
    assert order.source.listing is not None
    moment, watermark, in_baseline = await transact(order.engine, partial(_look, order=order))
    run = Run(
        order=order,
        report=report,
        held=taken,
        checkpoint=Checkpoint.from_json(taken.checkpoint if taken else None),
        pass_started=moment,
        watermark=watermark,
        asked_at=moment,
        rounds=Rounds(listing=order.source.listing, mode=order.mode, in_baseline=in_baseline),
    )
    if taken is not None and taken.pass_started_at is not None and run.checkpoint.begun:
        run.pass_started = taken.pass_started_at
        log.info("scan.resumed", sender=report.sender, kind=report.kind, run_id=str(report.run_id))
    else:
        await _begin_pass(run)
    return run


async def _look(
    connection: AsyncConnection, *, order: Order
) -> tuple[datetime, Stamp | None, bool]:
    """The database's time, the slot's watermark, and whether the kind is still in baseline."""
    source = order.source
    row = await scans.state_of(connection, source.slot(order.mode))
    watermark = kept_watermark(row.watermark_ns, row.watermark) if row else None
    known = await baselines.states(connection, [(source.sender, source.kind)])
    baseline = known.get((source.sender, source.kind))
    in_baseline = baseline is None or baseline.completed_at is None
    return await now(connection), watermark, in_baseline


async def _take(order: Order, report: ScanReport) -> Held | None:
    slot = order.source.slot(order.mode)

    async def take(connection: AsyncConnection) -> Held | None:
        taken = await scans.take(
            connection,
            slot,
            owner=report.run_id,
            lease=order.policy.lease,
            only_when_due=order.only_when_due,
        )
        if taken is None and not order.only_when_due:
            raise await scans.holder(connection, slot)
        return taken

    return await transact(order.engine, take)


async def _begin_pass(run: Run) -> None:
    """Start from the first page, behind the watermark."""
    order = run.order
    since = since_of(run.source, order.mode, run.watermark)
    run.checkpoint = Checkpoint(since=since, refused=run.checkpoint.refused)
    run.rounds.clear()
    if run.held is not None:
        lease, checkpoint = run.held.lease, run.checkpoint.to_json()
        run.pass_started = await transact(
            order.engine,
            lambda connection: scans.begin_pass(connection, lease, checkpoint=checkpoint),
        )
        run.asked_at = run.pass_started


async def _run(run: Run, waits: Waits) -> None:
    order, listing = run.order, run.source.listing
    assert listing is not None
    while run.checkpoint.position is not None:
        if order.progress is not None:
            order.progress()
        try:
            async with waits():
                response = await ask(
                    order.api, listing, run.checkpoint.position, since=run.checkpoint.since
                )
        except RefusedError as error:
            if run.checkpoint.begun and error.about_the_request and not run.restarted:
                log.warning("scan.cursor_expired", **run.report.facts(), status=error.status)
                run.restarted = True
                await _begin_pass(run)
                continue
            raise
        await _settle(run, response)
    await ending.complete(run)


async def _settle(run: Run, response: Response) -> None:
    """
    Put a page right and move on.

    A page that names no usable next one is put right all the same before the run fails: its
    own items were listed.
    """
    listing = run.source.listing
    assert listing is not None
    # in a thread: a large page must not keep webhooks waiting for the loop
    page, turned = await asyncio.to_thread(read_response, run.source, response)
    faults.point("scan-after-page")
    position = run.checkpoint.position
    assert position is not None
    run.rounds.saw(page.keys, overlapping=position.overlapping, checkpoint=run.checkpoint)
    broken: PageBrokenError | None = None
    try:
        following = _following(run, page, turned)
    except PageBrokenError as error:
        broken, following = error, run.checkpoint
    await settle_page(run, page, following)
    faults.point("scan-after-checkpoint")
    if following.turned == 0 and broken is None:
        run.rounds.begin()
    if broken is not None:
        raise broken


def _following(run: Run, page: ReadPage, turned: Page) -> Checkpoint:
    listing, position = run.source.listing, run.checkpoint.position
    assert listing is not None
    assert position is not None
    following = next_position(listing.pagination, position, turned)
    after = run.checkpoint.after(following, content=page.digest)
    if after.position is None and run.rounds.needs_another(after):
        log.info("scan.read_again", **run.report.facts())
        return after.again()
    return after


async def _failed(run: Run, error: ApiError) -> None:
    match error:
        case AwayError():
            await ending.fail(run, End.AWAY, str(error), retry_after=error.retry_after)
        case MassChangeError():
            await ending.fail(run, End.MASS_CHANGE, str(error))
        case RefusedError():
            if not run.checkpoint.begun and run.checkpoint.since and error.about_the_request:
                run.checkpoint = replace(run.checkpoint, refused=run.checkpoint.refused + 1)
            await ending.fail(run, End.REFUSED, str(error))
        case _:
            await ending.fail(run, End.PAGE_BROKEN, str(error))
