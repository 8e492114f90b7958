"""One resource reconciled by hand: read, compared, corrected, and told field by field."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from outbox.entry import uuid7
from reconciler.database import now
from reconciler.ledger import resources
from reconciler.ledger.batch import Result
from reconciler.ledger.commit import commit
from reconciler.ledger.content import differences
from reconciler.ledger.event import Event, Outcome
from reconciler.ledger.guard import DriftKind, Held
from reconciler.ledger.locked import held_of
from reconciler.ledger.rules import Rules
from reconciler.polling.checkpoint import Checkpoint
from reconciler.polling.client import Api
from reconciler.polling.errors import ApiError, AwayError, PageBrokenError
from reconciler.polling.listing import ask
from reconciler.polling.pages import Listed, ReadPage, correction, read_response
from reconciler.polling.pagination import Position, next_position
from reconciler.polling.reading import UNEXPLAINED, read_resource
from reconciler.polling.rehearsal import rehearse
from reconciler.polling.report import Fate, Item, fate_of, item_of, resource_item, side
from reconciler.polling.sources import Source
from reconciler.transactions import transact

SEARCH = timedelta(minutes=10)  #: how long a listing is searched for one resource
TRIES = 3  #: a read that a write of ours has overtaken is made again


async def reconcile_one(  # noqa: PLR0913 - one resource, and how it is to be treated
    engine: AsyncEngine,
    rules: Rules,
    api: Api,
    source: Source,
    key: str,
    *,
    dry_run: bool = False,
    by_person: bool = True,
    run_id: UUID | None = None,
) -> Item:
    """
    Hold one resource against the sender, and correct it; grace counts for nothing here.

    With *dry_run* the real transaction runs and is rolled back. Without a `get` the listing is
    searched. What fails (the sender, its answer, the user's own SQL) is the item's result.
    """
    task = Task(
        engine=engine,
        rules=rules,
        api=api,
        source=source,
        key=key,
        dry_run=dry_run,
        by_person=by_person,
        run_id=run_id or uuid7(),
    )
    try:
        return await (_by_get(task) if source.getting is not None else _by_listing(task))
    except ApiError as error:
        return await _unread(task, Fate.FAILED, str(error))


async def first_page(api: Api, source: Source) -> int:
    """Ask for one page of the listing and return how many items it has. Raises ApiError."""
    _, page = await _turn(api, source, Checkpoint())
    return page.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One resource, and how it is to be treated."""

    engine: AsyncEngine
    rules: Rules
    api: Api
    source: Source
    key: str
    dry_run: bool
    by_person: bool
    run_id: UUID


async def _by_get(task: Task) -> Item:
    result: Result | None = None
    for _ in range(TRIES):
        read = await read_resource(
            task.engine,
            task.api,
            task.source,
            task.key,
            run_id=task.run_id,
            by_person=task.by_person,
        )
        if read.event is None:
            return await _unread(task, Fate.UNKNOWN, UNEXPLAINED)
        result = await _applied(task, read.event)
        if result.fault is not None or not _is_overtaken(result):
            break
    assert result is not None
    return _told(task, result)


async def _by_listing(task: Task) -> Item:
    if task.source.listing is None:
        raise PageBrokenError("this kind has neither a `get` nor a `list` to ask")
    asked_at = await transact(task.engine, now)
    try:
        async with asyncio.timeout(SEARCH.total_seconds()):
            item = await _search(task)
    except TimeoutError as error:
        raise AwayError("the listing did not end in time") from error
    if item is None:
        return await _unread(task, Fate.UNKNOWN, "it is not listed; that alone means nothing")
    event = correction(
        task.source, item, asked_at=asked_at, run_id=task.run_id, by_person=task.by_person
    )
    return _told(task, await _applied(task, event))


async def _search(task: Task) -> Listed | None:
    """Go through the listing until the resource is found; None: it is not listed."""
    checkpoint = Checkpoint()
    while checkpoint.position is not None:
        checkpoint, page = await _turn(task.api, task.source, checkpoint)
        for item in page.items:
            if item.seen.key == task.key:
                return item
    return None


async def _turn(api: Api, source: Source, checkpoint: Checkpoint) -> tuple[Checkpoint, ReadPage]:
    """Read one page of the whole listing. Raises ApiError."""
    listing, position = source.listing, checkpoint.position or Position()
    assert listing is not None
    response = await ask(api, listing, position, since=None)
    page, turned = read_response(source, response)
    following = next_position(listing.pagination, position, turned)
    return checkpoint.after(following, content=page.digest), page


async def _applied(task: Task, event: Event) -> Result:
    if task.dry_run:
        return (await rehearse(task.engine, task.rules, [event]))[0]
    return (await commit(task.engine, task.rules, [event]))[0]


def _is_overtaken(result: Result) -> bool:
    """Whether our row was written after this read began, so that it decided nothing."""
    return result.outcome is Outcome.DEFERRED or (
        fate_of(result, dry_run=False) is Fate.AHEAD and _is_equal_version(result)
    )


def _is_equal_version(result: Result) -> bool:
    return result.held is not None and result.held.version == result.event.version


def _told(task: Task, result: Result) -> Item:
    item = item_of(result, dry_run=task.dry_run)
    if result.outcome is Outcome.TIED and result.fault is None:
        item |= {
            "result": Fate.FAILED.value,
            "drift": DriftKind.CONFLICT.value,
            "error": "equal version, other content, and no `get` to say which is right",
        }
    if not item["differences"] and item["result"] in {Fate.AHEAD, Fate.FAILED}:
        ours = result.held.state if result.held else None
        item["differences"] = differences(ours, result.event.state)
    return item


async def _unread(task: Task, fate: Fate, error: str) -> Item:
    """What can be said of a resource that the sender said nothing usable about."""
    held = await transact(task.engine, partial(_held, source=task.source, key=task.key))
    return resource_item(
        task.source.sender, task.source.kind, task.key, fate=fate, ours=side(held), error=error
    )


async def _held(connection: AsyncConnection, *, source: Source, key: str) -> Held | None:
    row = await resources.show(connection, source.sender, source.kind, key)
    return None if row is None else held_of(row)
