"""A page's one transaction: drift put right, and how far the pass is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler import faults
from reconciler.errors import DatabaseAwayError
from reconciler.ledger import fetches, resources
from reconciler.ledger.alerts import set_aside
from reconciler.ledger.batch import Result
from reconciler.ledger.commit import BLAMED, apply_unless_locked, commit, set_limits
from reconciler.ledger.event import Outcome
from reconciler.polling import scans, sightings
from reconciler.polling.checkpoint import Checkpoint
from reconciler.polling.errors import LeaseLostError
from reconciler.polling.pages import Differing, Judged, ReadPage, judge, keep_poisons
from reconciler.polling.rehearsal import rehearse, rolled_back
from reconciler.polling.report import item_of
from reconciler.polling.run import Run, told
from reconciler.polling.slots import Mode
from reconciler.polling.watermark import Stamp, moved, watermark_of
from reconciler.transactions import transact

MOST_ASKED = 10_000  #: reads that a run by hand does itself

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What came of a page, once its transaction has committed."""

    judged: Judged
    results: Sequence[Result]
    differing: int  #: items that are not in sync
    checkpoint: Checkpoint
    now: datetime


async def settle_page(run: Run, page: ReadPage, following: Checkpoint) -> None:
    """
    Put right what the page shows, and note in the same transaction that it was read.

    Where the user's own statement fails on an item, the items are applied one by one: only the
    guilty one is kept for later, and its neighbours and the pass go on.
    """
    try:
        settled = await _in_one(run, page, following)
    except (LeaseLostError, DatabaseAwayError):
        raise
    except BLAMED as error:
        log.warning(
            "scan.page_split",
            sender=run.source.sender,
            kind=run.source.kind,
            fault=type(error).__name__,
        )
        settled = await _one_by_one(run, page, following, cause=error)
    run.checkpoint = settled.checkpoint
    run.asked_at = settled.now
    _count(run, page, settled)


async def _in_one(run: Run, page: ReadPage, following: Checkpoint) -> Settled:
    order = run.order

    async def work(connection: AsyncConnection) -> Settled:
        judged, differing = await _judged(connection, run, page)
        results = await _applied(connection, run, judged)
        await _forget_sightings(connection, run, results)
        return await _saved(connection, run, following, judged, results, differing=differing)

    if order.dry_run:
        return await rolled_back(order.engine, work)
    return await transact(order.engine, work)


async def _applied(connection: AsyncConnection, run: Run, judged: Judged) -> Sequence[Result]:
    if not judged.events:
        return []
    await set_limits(connection, run.order.rules)
    # a lock that is not to be had is of one row: the others need not wait
    return await apply_unless_locked(connection, run.order.rules, judged.events)


async def _one_by_one(
    run: Run, page: ReadPage, following: Checkpoint, *, cause: Exception
) -> Settled:
    """In transactions of their own, the pass's progress last: whatever is repeated is harmless."""
    order = run.order

    async def look(connection: AsyncConnection) -> tuple[Judged, int]:
        return await _judged(connection, run, page)

    if order.dry_run:
        judged, differing = await rolled_back(order.engine, look)
        results = await rehearse(order.engine, order.rules, judged.events)
    else:
        judged, differing = await transact(order.engine, look)
        if not judged.events:  # then it was nothing of the user's that failed
            raise cause
        results = await commit(order.engine, order.rules, judged.events)

    async def save(connection: AsyncConnection) -> Settled:
        await _keep_failed(connection, run, judged, results)
        await _forget_sightings(connection, run, results)
        return await _saved(connection, run, following, judged, results, differing=differing)

    if order.dry_run:
        return await rolled_back(order.engine, save)
    return await transact(order.engine, save)


async def _judged(connection: AsyncConnection, run: Run, page: ReadPage) -> tuple[Judged, int]:
    source = run.source
    found = [
        Differing(
            item=page.items[drift.n],
            how=drift.found,
            held_version=drift.held.version if drift.held else None,
        )
        for drift in await resources.compare(
            connection,
            source.sender,
            source.kind,
            [item.seen for item in page.items],
            declared=bool(source.rules.declared),
        )
    ]
    await keep_poisons(connection, run.order.rules.alerts, source, page.poisons)
    judged = await judge(
        connection,
        source,
        page,
        found,
        patience=run.order.patience(run.asked_at, in_baseline=run.rounds.in_baseline),
        run_id=run.report.run_id,
        reach=run.checkpoint.reach,
    )
    return judged, len(found)


async def _saved(  # noqa: PLR0913 - what a page has come to
    connection: AsyncConnection,
    run: Run,
    following: Checkpoint,
    judged: Judged,
    results: Sequence[Result],
    *,
    differing: int,
) -> Settled:
    checkpoint = replace(following, reach=judged.reach)
    faults.point("scan-before-checkpoint")
    now = run.asked_at
    if run.held is not None:
        now = await scans.save(
            connection,
            run.held.lease,
            checkpoint=checkpoint.to_json(),
            watermark=_page_wise(run, checkpoint),
        )
    return Settled(
        judged=judged, results=results, differing=differing, checkpoint=checkpoint, now=now
    )


def _page_wise(run: Run, checkpoint: Checkpoint) -> tuple[Stamp, str] | None:
    """
    The watermark after this page, where the listing's order lets it move before the end.

    A listing that is said to be in order and is not moves it at the end, as any other.
    """
    listing = run.source.listing
    assert listing is not None
    in_order = listing.order == "oldest" and not checkpoint.reach.shuffled
    whole_only = not in_order or run.rounds.shifts
    if whole_only or run.order.mode is not Mode.INCREMENTAL:
        return None
    found = watermark_of(checkpoint.reach, pass_started=run.pass_started_ns)
    mark = moved(run.watermark, found)
    return None if mark is None or mark == run.watermark else (mark, told(mark))


async def _keep_failed(
    connection: AsyncConnection, run: Run, judged: Judged, results: Sequence[Result]
) -> None:
    """
    Let what could not be applied be tried again: by a read, which backs off by itself, or
    where there is none by the next scan; the watermark stays behind it, and a copy is kept.
    """
    source = run.source
    for result in results:
        event, seen = result.event, result.event.observation
        if result.fault is None or seen is None:
            continue
        if source.rules.has_get:
            wish = fetches.Request(
                resource=(event.sender, seen.kind, seen.key), reason="a correction failed"
            )
            await fetches.request(connection, [wish])
            continue
        stamp = None if seen.changed_at is None else Stamp(ns=seen.changed_at)
        judged.reach = judged.reach.left(stamp)
        await set_aside(
            connection,
            run.order.rules.alerts,
            event.sender,
            event.raw,
            {},
            result.fault,
            event.event_id,
        )


async def _forget_sightings(
    connection: AsyncConnection, run: Run, results: Sequence[Result]
) -> None:
    corrected = [one.event.key for one in results if one.outcome is Outcome.APPLIED]
    keys = [key for key in corrected if key is not None]
    await sightings.forget(connection, run.source.sender, run.source.kind, keys)


def _count(run: Run, page: ReadPage, settled: Settled) -> None:
    report, order = run.report, run.order
    report.pages += 1
    report.items += len(page.items)
    report.in_sync += len(page.items) - settled.differing
    report.ahead += settled.judged.ahead
    report.left += len(settled.judged.left)
    report.quarantined += len(page.poisons)
    for result in settled.results:
        if result.fault is not None:
            report.failed += 1
        elif result.outcome is Outcome.APPLIED:
            report.corrected += 1
        elif result.outcome in {Outcome.DEFERRED, Outcome.TIED}:
            report.asked += 1
            if order.note is not None and len(report.asked_keys) < MOST_ASKED:
                report.asked_keys.append(result.event.key or "")
            continue
        else:  # another path was faster
            report.in_sync += 1
            continue
        if order.note is not None:
            order.note(item_of(result, dry_run=order.dry_run))
