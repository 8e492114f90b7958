"""What stands, waits and failed: the document behind `status`, and the gauges of /metrics."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import generations, store, waiting
from reconciler import migrate
from reconciler.ledger import baselines, claims, fetches, quarantine
from reconciler.operations import redrive_runs
from reconciler.operations.assembly import Assembly
from reconciler.polling import scans
from reconciler.polling.scans import Mode
from reconciler.transactions import taking_up_to

COUNTED_WITHIN = timedelta(seconds=50)  #: what counts a large table may take its time


async def status(engine: AsyncEngine, assembly: Assembly, *, url: str) -> dict[str, Any]:
    """Everything that an operator asks first; *url* is the database's, without a password."""
    async with engine.connect() as connection:
        with taking_up_to(connection, COUNTED_WITHIN):
            version = await connection.scalar(select(func.current_setting("server_version")))
            counts = await figures(connection, assembly)
    revision = await migrate.current(engine)
    return {
        "database": {"url": url, "server_version": version, "migration": revision},
        **counts,
    }


async def figures(connection: AsyncConnection, assembly: Assembly) -> dict[str, Any]:
    """The parts of `status` that change by themselves."""
    kept = await quarantine.count_open(connection)
    born = await baselines.states(connection)
    slots = await scans.states(connection)
    senders = {}
    for name, rules in assembly.rules.senders.items():
        senders[name] = {
            "last_delivery_at": await claims.last_delivery_at(connection, name),
            "quarantined": kept.get(name, 0),
            "kinds": {
                kind: {
                    "listed": kind_rules.has_list,
                    **kind_status(name, kind, born, slots),
                }
                for kind, kind_rules in rules.kinds.items()
            },
        }
    return {
        "senders": senders,
        "outbox": await outbox_figures(connection, assembly),
        "generation": await generation(connection),
        "fetch_requests": await fetches.count(connection),
    }


async def outbox_figures(connection: AsyncConnection, assembly: Assembly) -> dict[str, Any]:
    """How many entries there are, how each destination stands, and bulk redrives under way."""
    standings = await waiting.standings(connection)
    unused = dict.fromkeys(assembly.destinations, waiting.FRESH)
    return {
        **await store.counts(connection),
        "destinations": {**unused, **standings},
        "redrive_runs": await redrive_runs.listed(connection, running=True),
    }


async def generation(connection: AsyncConnection) -> dict[str, Any] | None:
    """Which generation of the database this is, and what its opening held."""
    row = await generations.current(connection)
    if row is None:
        return None
    names = ("number", "opened_at", "reason", "lost_since", "held", "settled_at", "healed_at")
    return {name: getattr(row, name) for name in names}


def kind_status(
    sender: str,
    kind: str,
    born: dict[tuple[str, str], baselines.Baseline],
    slots: dict[tuple[str, str, str], Any],
) -> dict[str, Any]:
    """One kind: its baseline, and its two scans as one progress."""
    baseline = born.get((sender, kind))
    rows = [row for mode in Mode if (row := slots.get((sender, kind, mode.value))) is not None]
    return {
        "born_at": baseline.born_at if baseline else None,
        "baseline_completed_at": baseline.completed_at if baseline else None,
        "last_completed_at": latest([row.last_completed_at for row in rows]),
        "watermark": next((row.watermark for row in rows if row.watermark is not None), None),
        "due_at": earliest([row.due_at for row in rows]),
        "last_error": next((row.last_error for row in rows if row.last_error), None),
    }


def latest(moments: list[datetime | None]) -> datetime | None:
    return max((moment for moment in moments if moment), default=None)


def earliest(moments: list[datetime | None]) -> datetime | None:
    return min((moment for moment in moments if moment), default=None)
