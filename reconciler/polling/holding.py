"""Holding a slot while a run lasts: the lease is renewed beside it, and waits end on a stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler import faults
from reconciler.errors import DatabaseAwayError
from reconciler.lifecycle import first_error
from reconciler.polling import scans
from reconciler.polling.slots import Lease
from reconciler.polling.waiting import Waits
from reconciler.transactions import transact

RENEWALS = 3  #: in the time of one lease

log = structlog.get_logger()


@asynccontextmanager
async def held(engine: AsyncEngine, lease: Lease | None, waits: Waits) -> AsyncIterator[None]:
    """
    Run the block while *lease* is renewed; without one (a dry run) only stops are watched for.

    Raises LeaseLostError in the block's place as soon as another run has taken it over.
    """
    try:
        async with asyncio.TaskGroup() as beside:
            tasks = [beside.create_task(waits.end_on_stop())]
            if lease is not None:
                tasks.append(beside.create_task(_keep(engine, lease)))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as group:
        raise first_error(group) from None


async def _keep(engine: AsyncEngine, lease: Lease) -> None:
    while True:
        await asyncio.sleep(lease.duration.total_seconds() / RENEWALS)
        try:
            await transact(engine, lambda connection: scans.renew(connection, lease))
            faults.point("scan-after-renewal")
        except DatabaseAwayError as error:
            # the next page's own transaction will find out whether the slot is still ours
            log.warning("scan.lease_not_renewed", error=str(error), sender=lease.slot.sender)
