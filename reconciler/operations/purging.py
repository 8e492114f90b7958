"""Purging: what is older than it has to be kept goes, by command and by the daemon's clock."""

import asyncio
import random as randomness
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox import redrive_runs
from outbox.forgetting import Old, count
from reconciler.database import clock_skew
from reconciler.errors import DatabaseAwayError, ReconcilerError, UsageError
from reconciler.ledger import claims, retention
from reconciler.ledger.retention import Between, Keep
from reconciler.lifecycle import pause
from reconciler.operations import actions
from reconciler.polling import sightings
from reconciler.settings.models import Settings
from reconciler.transactions import transact

OFTEN = timedelta(minutes=10)  #: at the longest so far apart
SHARE = 10  #: of the shortest time that anything is kept
SELDOM = 20  #: times as long as the last run took
RAREST = timedelta(hours=6)  #: after a run that took hours, as the first of a large table does
BEAT = timedelta(seconds=5)
APART = timedelta(hours=1)  #: a clock that jumps by a year would have us forget everything

log = structlog.get_logger()


async def purge(
    engine: AsyncEngine,
    settings: Settings,
    *,
    only: str | None = None,
    between: Between = retention.rest,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> dict[str, Any]:
    """
    Remove what is older than it has to be kept, of every sender or *only* of one.

    Senders that are configured no more are purged like the others, by `[retention]`. Raises
    UsageError for a sender that is neither configured nor has left anything, DatabaseAwayError;
    ClocksApartError where the database's time is not believable.
    """
    skew = await clock_skew(engine, clock=clock)
    if abs(skew) > APART:
        raise ClocksApartError(skew)
    items = []
    for name in await senders(engine, settings, only=only):
        purged = await retention.purge(engine, name, keep_of(name, settings), between=between)
        items.append({"sender": name, **asdict(purged)})
    common = {}
    if only is None:
        for what, old in without_sender(settings).items():
            common[what] = await retention.until_done(
                engine, retention.plain(old), what=what, sender=None, between=between
            )
    return {"dry_run": False, "items": items, "next": None, **common}


async def would_purge(
    engine: AsyncEngine, settings: Settings, *, only: str | None = None
) -> dict[str, Any]:
    """What `purge` would remove now; nothing is deleted, and nothing is locked."""
    items = []
    for name in await senders(engine, settings, only=only):
        counting = partial(retention.would_purge, sender=name, keep=keep_of(name, settings))
        items.append({"sender": name, **asdict(await transact(engine, counting))})
    common = {}
    if only is None:
        for what, old in without_sender(settings).items():
            common[what] = await transact(engine, partial(count, old=old))
    return {"dry_run": True, "items": items, "next": None, **common}


async def keep_purging(
    engine: AsyncEngine,
    settings: Settings,
    *,
    stop: asyncio.Event,
    beat: Callable[[], None],
    random: Callable[[], float] = randomness.random,
) -> None:
    """
    Purge again and again until *stop*; *beat* is called at least every few seconds of waiting,
    and after every batch.

    When exactly is left to chance, so that replicas do not all begin at once. (If they do, they
    share the work.)
    """
    wait = timedelta(seconds=1)
    while True:
        await waited(wait * (0.5 + random()), stop=stop, beat=beat)
        if stop.is_set():
            return
        began = time.monotonic()

        async def between(seconds: float) -> bool:
            await waited(min(BEAT, timedelta(seconds=seconds)), stop=stop, beat=beat)
            return not stop.is_set()

        try:
            await purge(engine, settings, between=between)
        except ClocksApartError as error:
            log.warning("retention.clocks_apart", reason=str(error))
        except DatabaseAwayError:
            pass  # the database part says so, once
        took = timedelta(seconds=time.monotonic() - began)
        wait = max(every(settings), min(SELDOM * took, RAREST))


async def waited(duration: timedelta, *, stop: asyncio.Event, beat: Callable[[], None]) -> None:
    """Sleep for *duration*, but wake up at once when asked to stop, and show that we live."""
    until = time.monotonic() + duration.total_seconds()
    while not stop.is_set() and (left := until - time.monotonic()) > 0:
        beat()
        await pause(stop, min(BEAT, timedelta(seconds=left)))
    beat()


def every(settings: Settings) -> timedelta:
    """How often to purge: a tenth of the shortest time that anything is kept, within reason."""
    kept = [keep_of(name, settings) for name in settings.senders]
    shortest = min((min(keep.claims, keep.bodies, keep.entries) for keep in kept), default=OFTEN)
    return min(OFTEN, max(shortest / SHARE, timedelta(seconds=1)))


def keep_of(name: str, settings: Settings) -> Keep:
    """How long what the sender *name* left is kept; by `[retention]` where it says nothing."""
    sender = settings.senders.get(name)
    common = settings.retention
    ids = (sender and sender.keep_claims) or common.claims
    bodies = sender.keep_bodies if sender else None
    lives = [destination.key_ttl for destination in settings.destinations.values()]
    return Keep(
        claims=ids,
        bodies=common.bodies if bodies is None else bodies,
        entries=common.entries or ids,
        keys=max([ids, *lives]),  # a key that its provider knows must not be used a second time
        quarantine=common.quarantine,
        undecided=common.undecided,
    )


def without_sender(settings: Settings) -> dict[str, Old]:
    """What is no sender's own: by name, and how old it must be."""
    return {
        "sightings": sightings.old(settings.retention.claims),
        "actions": actions.old(settings.retention.actions),
        "redrive_runs": redrive_runs.old(settings.retention.actions),
    }


async def senders(
    engine: AsyncEngine, settings: Settings, *, only: str | None = None
) -> Sequence[str]:
    """Whose rows to look at: the configured senders, and those that have left any."""

    async def held(connection: AsyncConnection) -> list[str]:
        return await claims.senders(connection)

    names = sorted({*settings.senders, *await transact(engine, held)})
    if only is None:
        return names
    if only not in names:
        raise UsageError(f"there is no sender {only!r}: not configured, and nothing of it is kept")
    return [only]


class ClocksApartError(ReconcilerError):
    """Nothing is forgotten by a clock that no other clock agrees with."""

    def __init__(self, skew: timedelta) -> None:
        super().__init__(
            f"this host's clock and the database's are {abs(skew)} apart: nothing is purged",
            hint="set the one right that is wrong",
        )
