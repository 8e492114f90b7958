"""A kind reconciled by hand: one scan, and the reads that it asked for."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler.ledger import baselines
from reconciler.polling import scans
from reconciler.polling.report import End, Fate, Item, ScanReport
from reconciler.polling.run import Order
from reconciler.polling.scan import run_scan
from reconciler.polling.single import reconcile_one
from reconciler.polling.slots import Mode
from reconciler.transactions import transact

READERS = 4  #: reads under way at once


async def reconcile_kind(order: Order, *, full: bool = False) -> ScanReport:
    """
    Scan as *order* says, but for its mode: incremental once the baseline is complete, else full.

    Reads that the scan asks for are done here, as far as one more deadline allows. `order.note`
    takes every listed item that is not in sync, and then every one that was read. Before the
    baseline a whole kind fires nothing: that takes naming one resource.

    Raises BusyError while another run holds the slot.
    """
    mode = await transact(order.engine, lambda connection: _mode(connection, order, full=full))
    noting = order.note or (lambda _: None)
    report = await run_scan(replace(order, mode=mode, by_person=True, note=noting))
    assert report is not None  # only scheduled runs may find that it is not due
    keys = iter(report.asked_keys)
    try:
        async with asyncio.timeout(order.policy.deadline.total_seconds()) as deadline:
            async with asyncio.TaskGroup() as readers:
                for _ in range(READERS):
                    readers.create_task(_read(order, report, keys))
    except TimeoutError:
        if not deadline.expired():
            raise
        report.end, report.error = (
            End.DEADLINE,
            "not everything could be read in time",
        )
    return report


async def _mode(connection: AsyncConnection, order: Order, *, full: bool) -> Mode:
    source = order.source
    if not order.dry_run:
        await baselines.register(connection, [(source.sender, source.kind)])
        await scans.register(connection, [source.slot(mode) for mode in source.modes])
    if full or Mode.INCREMENTAL not in source.modes:
        return Mode.FULL
    states = await baselines.states(connection, [(source.sender, source.kind)])
    baseline = states.get((source.sender, source.kind))
    if baseline is None or baseline.completed_at is None:
        return Mode.FULL
    row = await scans.state_of(connection, source.slot(Mode.INCREMENTAL))
    if row is not None and (row.checkpoint or {}).get("refused", 0) >= scans.REFUSALS:
        return Mode.FULL
    return Mode.INCREMENTAL


async def _read(order: Order, report: ScanReport, keys: Iterator[str]) -> None:
    for key in keys:
        if order.stop.is_set():
            return
        item: Item = await reconcile_one(
            order.engine,
            order.rules,
            order.api,
            order.source,
            key,
            dry_run=order.dry_run,
            by_person=False,
            run_id=report.run_id,
        )
        _count(report, item)
        if order.note is not None:
            order.note(item)


def _count(report: ScanReport, item: Item) -> None:
    match item["result"]:
        case Fate.CORRECTED | Fate.WOULD_CORRECT | Fate.GONE:
            report.corrected += 1
        case Fate.FAILED:
            report.failed += 1
        case Fate.AHEAD:
            report.ahead += 1
        case Fate.IN_SYNC:
            report.in_sync += 1
