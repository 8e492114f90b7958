"""Senders that have fallen silent: noticed from what is not there, and told of once."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler import database
from reconciler.errors import DatabaseAwayError
from reconciler.exact_json import Json
from reconciler.ledger import baselines, claims, corrections, quarantine
from reconciler.ledger.alerts import met, tell
from reconciler.ledger.causes import rfc3339
from reconciler.ledger.rules import Rules
from reconciler.ledger.triggers import OURSELVES
from reconciler.lifecycle import pause
from reconciler.operations.assembly import Assembly
from reconciler.transactions import transact

LOOK_EVERY = timedelta(seconds=15)
UNSAID = timedelta(hours=1)  #: without a delivery, while scans correct what was not delivered


@dataclass(slots=True, kw_only=True)
class SilenceWatch:
    """
    Looks for senders that deliver nothing any more.

    With a `silent_after` that alone is silence. Without one nobody knows how much a sender has
    to say: it is silent after an hour in which a scan corrected what it should have delivered.
    """

    engine: AsyncEngine
    rules: Rules
    silent_after: Mapping[str, timedelta | None]  #: by sender; None: not said
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    async def watch(self, stop: asyncio.Event, *, beat: Callable[[], None]) -> None:
        """Look until told to stop."""
        said = [after for after in self.silent_after.values() if after is not None]
        rest = min([LOOK_EVERY, *(after / 4 for after in said)])
        while not stop.is_set():
            try:
                for sender in sorted(self.silent_after):
                    await transact(self.engine, partial(self.look, sender=sender))
            except DatabaseAwayError:
                pass  # the database part says so, once
            beat()
            await pause(stop, rest)

    async def look(self, connection: AsyncConnection, *, sender: str) -> bool:
        """Whether *sender* is silent; if so it is told of, once until it speaks again."""
        said = self.silent_after[sender]
        if self.clock() - self._began < min(said or UNSAID, UNSAID).total_seconds():
            return False  # what came while we were away is still on its way to us
        heard = await last_heard(connection, sender)
        since = heard or await first_followed(connection, sender)
        now = await database.now(connection)
        if since is None or now - since < (said or UNSAID):
            return False
        found = await corrections.count_since(connection, sender, since)
        if said is None and not found:
            return False
        told = None if heard is None else rfc3339(heard)
        quiet = int((now - since).total_seconds())
        body: dict[str, Json] = {
            "sender": sender,
            "last_delivery_at": told,
            "corrections": found,
            "reason": f"nothing was delivered for {quiet} s, and {found} corrected meanwhile",
        }
        event = met("sender_silent", (sender, told or "never"), body, now=now)
        await tell(connection, self.rules.alerts, event)
        return True


def is_wanted(rules: Rules) -> bool:
    """Whether any effect wants to know; without one nobody looks."""
    return any(one.gate.takes_fact(OURSELVES, "sender_silent") for one in rules.alerts)


def watch_over(engine: AsyncEngine, assembly: Assembly) -> SilenceWatch:
    """The watch over the senders of *assembly*."""
    senders = assembly.loaded.settings.senders
    return SilenceWatch(
        engine=engine,
        rules=assembly.rules,
        silent_after={name: sender.silent_after for name, sender in senders.items()},
    )


async def last_heard(connection: AsyncConnection, sender: str) -> datetime | None:
    """When anything authentic was delivered last, also what could not be applied."""
    moments = [
        await claims.last_delivery_at(connection, sender),
        await quarantine.last_delivery_at(connection, sender),
    ]
    return max((moment for moment in moments if moment is not None), default=None)


async def first_followed(connection: AsyncConnection, sender: str) -> datetime | None:
    """Since when deliveries are to be expected of a sender that never made any."""
    known = await baselines.states(connection)
    moments = [
        one.completed_at or one.born_at for (name, _), one in known.items() if name == sender
    ]
    return max(moments, default=None)
