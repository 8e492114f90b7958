"""
What a destination takes, shared by all processes that call it. Callers own the transaction.

Whoever leases for a destination locks its row first, and whoever finds it locked comes back a
moment later: nobody waits, and what is counted under the lock holds over all processes.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.breaker import Breaker, Seen, Standing, after_calls
from outbox.compiled import Compiled
from outbox.flow_statements import ASK, ASK_TO_LOOK, GIVE_BACK, KNOW, NOTE, STANDING, TAKE

BUSY = 0.005  # seconds until a row that another process has locked is asked for again
SLOWER = 4  # times fewer calls than its rate, for as long as a 429 asked for
SOONEST = 0.01  # seconds; a rate is kept by taking several at once rather than by hurrying

CLOSED, OPEN = "closed", "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How many calls a destination takes, on average and at once."""

    per_second: float
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """What may be leased for one destination now; its row is locked."""

    destination: str
    most: int | None  #: calls; None: as many as there are slots
    probe: bool  #: it is one call, to see whether the destination is well again
    live: bool  #: something is due that was not redriven
    redriven: bool
    tokens: float | None  #: with a rate: what is there to take from
    again: float | None  #: with a rate: seconds until there is one more


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What may go, and how soon it is worth asking again for what may not."""

    permits: Sequence[Permit]
    soonest: float | None  #: seconds
    waiting: Collection[str]  #: destinations for which something is due that may not go yet
    troubled: Collection[str]  #: destinations that failed lately: their next success counts
    well: Collection[str]  #: the others that were asked for
    open: Collection[str]  #: destinations that are left alone, but for a probe
    paused: Mapping[str, Collection[str]]  #: effects of each; an empty one is all of them


async def ask(connection: AsyncConnection, rates: Mapping[str, Rate | None]) -> Asked:
    """
    Ask for destinations (with their rates) what may go now; lock the rows of those that may.

    A destination for which nothing is due is not among the permits, and costs no lock.
    """
    wanted = [{"destination": name} for name in rates]
    return await _asked(connection, ASK, wanted, rates)


async def ask_to_look(
    connection: AsyncConnection,
    wanted: Sequence[Mapping[str, Any]],
    rates: Mapping[str, Rate | None],
) -> Asked:
    """
    Ask what may be looked up now, as `ask` does for calls: what is *wanted* costs as they do.

    Where a destination that is not well has calls waiting, the next probe is left to them: that
    it shows what it holds says little of whether it takes more.
    """
    asked = await _asked(connection, ASK_TO_LOOK, wanted, rates)
    permits = [one for one in asked.permits if not (one.probe and (one.live or one.redriven))]
    return replace(asked, permits=permits)


async def _asked(
    connection: AsyncConnection,
    statement: Compiled,
    wanted: Sequence[Mapping[str, Any]],
    rates: Mapping[str, Rate | None],
) -> Asked:
    rows = await statement.rows(connection, rows=list(wanted))
    unknown = [row.destination for row in rows if not row.known]
    if unknown:
        await _know(connection, unknown)
        rows = await statement.rows(connection, rows=list(wanted))
    troubled = {row.destination for row in rows if row.failures or row.breaker != CLOSED}
    permits, waits = [], {}
    for row in rows:
        if not row.due:
            continue
        permit, wait = _permit(row, rates[row.destination])
        if permit is not None:
            permits.append(permit)
        if wait is not None:
            waits[row.destination] = max(wait, SOONEST)
    return Asked(
        permits=permits,
        soonest=min(waits.values(), default=None),
        waiting=waits.keys(),
        troubled=troubled,
        well=rates.keys() - troubled,
        open={row.destination for row in rows if row.breaker == OPEN},
        paused={row.destination: row.paused_effects for row in rows if row.paused_effects},
    )


async def take(
    connection: AsyncConnection,
    permits: Sequence[Permit],
    called: Mapping[str, int],
    *,
    lease: timedelta,
) -> None:
    """Write down that so many calls were leased under *permits*, where that has to be known."""
    rows = [
        {
            "destination": permit.destination,
            "tokens": None if permit.tokens is None else permit.tokens - called[permit.destination],
            "probe": lease.total_seconds() if permit.probe else None,
        }
        for permit in permits
        if called.get(permit.destination) and (permit.tokens is not None or permit.probe)
    ]
    if rows:
        await TAKE.count(connection, rows=rows)


async def give_back(
    connection: AsyncConnection, calls: Mapping[str, int], *, probes: Collection[str]
) -> None:
    """So many calls of each destination were leased and not made; a probe may be made again."""
    rows = [
        {"destination": name, "calls": calls[name], "probe": name in probes}
        for name in sorted(calls)
    ]
    await GIVE_BACK.count(connection, rows=rows)


async def lock(connection: AsyncConnection, names: Collection[str]) -> None:
    """Lock the rows of destinations in one order, for whoever writes more than one of them."""
    await STANDING.count(connection, rows=[{"destination": name} for name in sorted(names)])


async def note(
    connection: AsyncConnection,
    seen: Sequence[Seen],
    breakers: Mapping[str, Breaker | None],
    *,
    jitter: float,
) -> "list[Changed]":
    """
    Write down what calls told of their destinations; those that stand otherwise than before.

    Whoever knows that a destination was well, and that all its calls went well, need not ask.
    """
    names = sorted({one.destination for one in seen})
    asked = [{"destination": name} for name in names]
    rows = await STANDING.rows(connection, rows=asked)
    if len(rows) < len(names):
        await _know(connection, names)
        rows = await STANDING.rows(connection, rows=asked)
    changes = []
    for row in rows:
        before = _standing(row)
        about = [one for one in seen if one.destination == row.destination]
        after = after_calls(
            before, about, breakers.get(row.destination), now=row.now, jitter=jitter
        )
        if after != before:
            changes.append(Changed(destination=row.destination, before=before, after=after))
    if changes:
        await NOTE.count(connection, rows=[_written(change) for change in changes])
    return changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A destination that stands otherwise than before."""

    destination: str
    before: Standing
    after: Standing


def tokens_at(row: Any, rate: Rate) -> float:
    """
    What there is to take from, by the database's clock.

    It fills while nothing is taken, slower while the destination asks for less, and never by a
    clock that jumped.
    """
    if row.tokens is None:
        return float(rate.burst)
    since = min(row.filled_at, row.now)
    elapsed = (row.now - since).total_seconds()
    slow = 0.0
    if row.slowed_until is not None:
        slow = max((min(row.slowed_until, row.now) - since).total_seconds(), 0.0)
    filled = row.tokens + rate.per_second * (elapsed - slow + slow / SLOWER)
    return float(min(filled, rate.burst))


def pace_at(row: Any, rate: Rate) -> float:
    """How many calls a second there may be now."""
    slowed = row.slowed_until is not None and row.slowed_until > row.now
    return rate.per_second / SLOWER if slowed else rate.per_second


def _permit(row: Any, rate: Rate | None) -> tuple[Permit | None, float | None]:
    """What may go, or after how many seconds to ask again."""
    if row.paused:
        return None, None
    if row.breaker == OPEN and row.probe_at is not None and row.probe_at > row.now:
        return None, (row.probe_at - row.now).total_seconds()
    if row.locked is None:
        return None, BUSY
    probe = row.breaker == OPEN
    tokens = None if rate is None else tokens_at(row, rate)
    if rate is not None and tokens is not None and tokens < 1:
        return None, (1 - tokens) / pace_at(row, rate)
    permit = Permit(
        destination=row.destination,
        most=1 if probe else None if tokens is None else int(tokens),
        probe=probe,
        live=row.live,
        redriven=row.redriven,
        tokens=tokens,
        again=None if rate is None else max(1 / pace_at(row, rate), SOONEST),
    )
    return permit, None


async def _know(connection: AsyncConnection, names: Sequence[str]) -> None:
    """Make the rows of destinations that have none; two processes may do so at once."""
    await KNOW.count(connection, rows=[{"destination": name} for name in sorted(names)])


def _standing(row: Any) -> Standing:
    return Standing(
        open=row.breaker == OPEN,
        failures=row.failures,
        failing=row.failing,
        opened_at=row.opened_at,
        probe_at=row.probe_at,
        reason=row.reason,
        slowed_until=row.slowed_until,
    )


def _written(change: Changed) -> dict[str, Any]:
    after = change.after
    moments = ("opened_at", "probe_at", "slowed_until")
    told = {name: getattr(after, name) for name in moments}
    return {
        "destination": change.destination,
        "breaker": OPEN if after.open else CLOSED,
        "failures": after.failures,
        "failing": None if after.failing is None else str(after.failing),
        "reason": after.reason,
        "slower": after.slowed_until != change.before.slowed_until,
        **{name: moment and moment.isoformat() for name, moment in told.items()},
    }
