"""Reconciling by hand: one resource, one kind, or all of a sender."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.entry import uuid7
from reconciler.errors import NeedsDecisionError, UsageError
from reconciler.ledger import baselines
from reconciler.operations.assembly import Assembly
from reconciler.operations.naming import require_sender
from reconciler.operations.opening import give_birthdays
from reconciler.polling.by_hand import reconcile_kind
from reconciler.polling.report import Fate, Item, ScanReport
from reconciler.polling.run import Order
from reconciler.polling.single import reconcile_one
from reconciler.polling.slots import Mode
from reconciler.polling.sources import Source, source_of
from reconciler.transactions import transact

MOST_TOLD = 16 * 2**20  #: characters of items in one report; a listing may be any length
CORRECTABLE = frozenset({Fate.WOULD_CORRECT, Fate.CORRECTED, Fate.GONE})


@dataclass(slots=True, kw_only=True)
class Reconciled:
    """What a run by hand came to."""

    run_id: UUID
    dry_run: bool
    items: list[Item] = field(default_factory=list)
    scans: list[ScanReport] = field(default_factory=list)
    omitted: int = 0  #: items that were not in sync either, and are only counted
    told: int = 0  #: characters of those that are kept, about

    @property
    def failed(self) -> bool:
        """Whether a page or a resource could not be read or applied."""
        broken = any(item["result"] == Fate.FAILED for item in self.items)
        return broken or any(not scan.completed or scan.failed for scan in self.scans)

    @property
    def drifted(self) -> bool:
        told = any(item["result"] in CORRECTABLE for item in self.items)
        return told or (self.omitted > 0 and any(scan.corrected for scan in self.scans))

    def document(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "dry_run": self.dry_run,
            "items": self.items,
            "omitted": self.omitted,
            "scans": [scan.facts() for scan in self.scans],
            "next": None,
        }


async def reconcile(  # noqa: PLR0913 - what a person may say
    engine: AsyncEngine,
    assembly: Assembly,
    *,
    sender: str,
    kind: str | None = None,
    key: str | None = None,
    dry_run: bool = False,
    full: bool = False,
) -> Reconciled:
    """
    Hold what we have against the sender and correct it, through the one transaction.

    A person's trigger ignores grace. Of a whole kind it is incremental once the baseline is
    complete, else full, moves the watermark, and does the reads that it asked for itself.

    Raises UsageError for what is not configured, BusyError while another run holds a scan.
    """
    sources = chosen(assembly, sender=sender, kind=kind, key=key)
    if not dry_run:
        await give_birthdays(engine, assembly.kinds)
    done = Reconciled(run_id=uuid7(), dry_run=dry_run)
    if key is not None:
        item = await reconcile_one(
            engine,
            assembly.rules,
            assembly.apis[sender],
            sources[0],
            key,
            dry_run=dry_run,
            run_id=done.run_id,
        )
        done.items.append(item)
        return done
    for source in sources:
        await _reconcile_kind(engine, assembly, source, done=done, full=full)
    return done


def chosen(
    assembly: Assembly, *, sender: str, kind: str | None, key: str | None
) -> Sequence[Source]:
    """The kinds that are meant. Raises UsageError where they cannot be read."""
    require_sender(assembly.rules.senders, sender)
    if kind is not None:
        source = source_of(assembly.sources, sender, kind)
        readable = source.listing is not None or (key is not None and source.getting is not None)
        if not readable or sender not in assembly.apis:
            wanted = "get or list" if key is not None else "list"
            raise UsageError(f"senders.{sender}.resources.{kind} has no {wanted} to read from")
        return [source]
    listed = [
        source
        for (name, _), source in assembly.sources.items()
        if name == sender and source.listing is not None and name in assembly.apis
    ]
    if not listed:
        raise UsageError(f"no kind of senders.{sender} has a list to read from")
    return listed


async def _reconcile_kind(
    engine: AsyncEngine, assembly: Assembly, source: Source, *, done: Reconciled, full: bool
) -> None:
    """Run one scan of a kind, and the reads that it asked for; keep what was not in sync."""
    found: dict[str, Item] = {}

    def note(item: Item) -> None:
        if item["result"] == Fate.IN_SYNC:  # a read has settled what the listing had doubts about
            found.pop(str(item["key"]), None)
        elif done.told >= MOST_TOLD:
            done.omitted += 1
        else:
            done.told += len(str(item))
            found[str(item["key"])] = item

    order = Order(
        engine=engine,
        rules=assembly.rules,
        api=assembly.apis[source.sender],
        source=source,
        policy=assembly.loaded.settings.polling,
        mode=Mode.FULL,
        dry_run=done.dry_run,
        note=note,
    )
    done.scans.append(await reconcile_kind(order, full=full))
    done.items += found.values()


async def accept_baseline(
    engine: AsyncEngine, assembly: Assembly, *, sender: str, kind: str
) -> bool:
    """
    Say by hand that a kind's baseline is complete; False where it was already.

    From then on, what we never held is news. Raises UsageError for an unknown kind, and
    NeedsDecisionError for one without a listing, which never has a baseline.
    """
    source = source_of(assembly.sources, sender, kind)
    if source.listing is None:
        raise NeedsDecisionError(
            f"{sender} {kind} has no list, so it never has a baseline",
            hint="its `first_seen` says what a resource does that was never seen before",
        )
    await give_birthdays(engine, assembly.kinds)
    return await transact(
        engine, lambda connection: baselines.complete(connection, sender, kind, by="person")
    )
