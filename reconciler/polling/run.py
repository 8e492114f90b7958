"""One run of a scan: what it is made of, and how far it is."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler.ledger.rules import Rules
from reconciler.ledger.versions import digits, format_time, from_datetime
from reconciler.polling.checkpoint import Checkpoint
from reconciler.polling.client import Api
from reconciler.polling.drift import Patience
from reconciler.polling.report import Note, ScanReport
from reconciler.polling.rounds import Rounds
from reconciler.polling.slots import Held, Mode
from reconciler.polling.sources import Source
from reconciler.polling.watermark import Stamp
from reconciler.settings.models import PollingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is asked of a run."""

    engine: AsyncEngine
    rules: Rules
    api: Api
    source: Source
    policy: PollingSettings
    mode: Mode
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    by_person: bool = False  #: ignores grace
    dry_run: bool = False  #: every page's transaction is rolled back; no slot is taken
    only_when_due: bool = False  #: another run may have done it since it was ordered
    note: Note | None = None  #: takes each item that is not in sync, or was read by hand
    progress: Callable[[], None] | None = None  #: told of every page
    draw: Callable[[], float] = random.random

    def patience(self, now: datetime, *, in_baseline: bool) -> Patience:
        grace = timedelta(0) if self.by_person or self.dry_run else self.source.grace
        return Patience(now=now, grace=grace, in_baseline=in_baseline)


@dataclass(slots=True, kw_only=True)
class Run:
    """A run under way."""

    order: Order
    report: ScanReport
    held: Held | None  #: None: a dry run, which holds nothing
    checkpoint: Checkpoint
    pass_started: datetime
    watermark: Stamp | None  #: of the slot, when the run began
    asked_at: datetime  #: database time, before the page under way was asked for
    rounds: Rounds  #: which keys the pass has seen
    restarted: bool = False  #: this run has begun anew once, after its cursor had expired

    @property
    def pass_started_ns(self) -> int:
        return from_datetime(self.pass_started)

    @property
    def source(self) -> Source:
        return self.order.source


def kept_watermark(ns: int | None, text: str | None) -> Stamp | None:
    """A watermark as it stands in the slot's row."""
    return None if ns is None else Stamp(ns=ns, digits=digits(text or ""))


def told(stamp: Stamp) -> str:
    """A watermark as it is kept and shown: RFC 3339, with as many digits as the sender gave."""
    return format_time(stamp.ns, digits=stamp.digits)


def since_of(source: Source, mode: Mode, watermark: Stamp | None) -> str | None:
    """What a pass asks for changes since; None: for all that there is."""
    assert source.listing is not None
    since = source.listing.since
    if mode is Mode.FULL or since is None or watermark is None:
        return None
    ns = watermark.ns - since.lookback // timedelta(microseconds=1) * 1000
    if since.format in ("ms", "us", "ns", "s"):
        return format_time(ns, since.format)
    return format_time(ns, since.format, digits=watermark.digits)
