"""One page: each item read, the page held against our rows at once, drift put right."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from hashlib import blake2b
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler.exact_json import Json, canonical
from reconciler.ledger import quarantine
from reconciler.ledger.alerts import set_aside
from reconciler.ledger.drifts import Found
from reconciler.ledger.effects import Effect
from reconciler.ledger.event import Event, Observation, Origin
from reconciler.ledger.projection import ProjectionError
from reconciler.ledger.versions import from_datetime
from reconciler.polling import sightings
from reconciler.polling.answer import Answer, Poison, read_page
from reconciler.polling.client import Response
from reconciler.polling.drift import Patience, Step, next_step
from reconciler.polling.pagination import Page
from reconciler.polling.sources import Source
from reconciler.polling.watermark import Reach, Stamp

EPOCH_DIGITS = {"ms": 3, "us": 6, "ns": 9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One item of a page that could be read."""

    seen: Observation
    object: Json  #: what the listing has of it
    stamp: Stamp | None  #: when it changed, by the sender's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPage:
    """A page with its items read; nothing of it is judged yet."""

    items: Sequence[Listed]  #: one a key, the newest
    poisons: Sequence[Poison]
    count: int  #: of items as listed
    last_key: str | None  #: of the last item that has one, usable or not
    keys: list[str]  #: of all items, also where one came twice
    digest: str  #: of what was on the page; "" of an empty one


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """How one item stands to what we hold."""

    item: Listed
    how: Found
    held_version: int | None


@dataclass(slots=True, kw_only=True)
class Judged:
    """What follows from a page."""

    events: list[Event] = field(default_factory=list)  #: in key order
    left: list[Differing] = field(default_factory=list)
    ahead: int = 0
    reach: Reach = field(default_factory=Reach)


def read_response(source: Source, response: Response) -> tuple[ReadPage, Page]:
    """
    Read what a listing answered: its items, and what it has for the question how to go on.

    Raises PageBrokenError for what is no page of this listing.
    """
    assert source.listing is not None
    answer = read_page(response.body, source.listing.items)
    page = read_items(source, answer)
    return page, Page(
        answer=answer.whole,
        count=page.count,
        last_key=page.last_key,
        url=response.url,
        link_next=response.link_next,
    )


def read_items(source: Source, answer: Answer) -> ReadPage:
    """
    Read every item of *answer*; one that cannot be read is kept apart and holds nothing up.

    Of a key that is listed twice on one page (it moved while the page was made) the newest
    item counts.
    """
    newest: dict[str, Listed] = {}
    poisons: list[Poison] = []
    keys: list[str] = []
    last_key: str | None = None
    digest = blake2b(digest_size=12)
    for item in answer.items:
        if isinstance(item, Poison):
            poisons.append(item)
            digest.update(item.raw)
            last_key = _key_of(source, item) or last_key
            continue
        try:
            listed = _listed(source, item)
        except ProjectionError as error:
            fault = f"a listed item of {source.kind} cannot be read: {error.reason}"
            raw = canonical(item)
            poison = Poison(raw=raw, fault=fault)
            poisons.append(poison)
            digest.update(raw)
            last_key = _key_of(source, poison) or last_key
            continue
        seen = listed.seen
        keys.append(seen.key)
        last_key = seen.key
        digest.update(f"{len(seen.key)}:{seen.key}@{seen.version}".encode())
        before = newest.get(seen.key)
        if before is None or _is_newer(seen, before.seen):
            newest[seen.key] = listed
    return ReadPage(
        items=list(newest.values()),
        poisons=poisons,
        count=len(answer.items),
        last_key=last_key,
        keys=keys,
        digest=digest.hexdigest() if answer.items else "",
    )


def _listed(source: Source, item: Json) -> Listed:
    reader = source.rules.reader
    found = reader.locate(item, path="list")
    seen = reader.read(found, path="list")
    stamp = None
    if seen.changed_at is not None:
        place = reader.place("list").changed_at
        assert place is not None
        written = EPOCH_DIGITS.get(place.spec.format)
        digits = reader.changed_digits(found, path="list") if written is None else written
        stamp = Stamp(ns=seen.changed_at, digits=digits)
    return Listed(seen=seen, object=found, stamp=stamp)


def _key_of(source: Source, poison: Poison) -> str | None:
    """The key of an item beyond use, where a listing goes on behind it."""
    reader = source.rules.reader
    try:
        found = reader.locate(json.loads(poison.raw, parse_float=Decimal), path="list")
        key = reader.key_of(found, path="list")
    except (ProjectionError, ValueError, ArithmeticError, RecursionError):
        return None
    return None if "\0" in key else key  # no checkpoint could keep it


def _is_newer(seen: Observation, before: Observation) -> bool:
    """Of two equal ones the later on the page, as the listing's order is its own business."""
    return (seen.version or 0) >= (before.version or 0)


async def judge(  # noqa: PLR0913 - one page and what it is judged by
    connection: AsyncConnection,
    source: Source,
    page: ReadPage,
    found: Sequence[Differing],
    *,
    patience: Patience,
    run_id: UUID,
    reach: Reach,
) -> Judged:
    """
    Decide what follows from each item that is not in sync, and how far the pass has read.

    Notes since when what is left for its webhook has been behind: it will not be left for ever.
    """
    judged = Judged(ahead=sum(one.how is Found.AHEAD for one in found))
    waiting = {
        one.item.seen.key: one.held_version
        for one in found
        if _step(source, one, patience, since=None) is Step.LEAVE
    }
    since = await sightings.see(connection, source.sender, source.kind, waiting)
    for item in page.items:
        reach = reach.read(item.stamp) if item.stamp else reach
    for one in sorted(found, key=lambda one: one.item.seen.key):
        match _step(source, one, patience, since=since.get(one.item.seen.key)):
            case Step.NOTHING:
                pass
            case Step.LEAVE:
                judged.left.append(one)
                reach = reach.left(one.item.stamp)
            case Step.CORRECT | Step.READ:
                # a request for a read too is made under the row's lock, where it is judged again
                judged.events.append(
                    correction(source, one.item, asked_at=patience.now, run_id=run_id)
                )
    judged.reach = reach
    return judged


def _step(source: Source, found: Differing, patience: Patience, *, since: datetime | None) -> Step:
    return next_step(
        found.how,
        changed_at=found.item.seen.changed_at,
        since=since,
        patience=patience,
        readable=source.rules.has_get,
    )


def correction(
    source: Source, item: Listed, *, asked_at: datetime, run_id: UUID, by_person: bool = False
) -> Event:
    """The event that stands in for the one that did not arrive; its id is deterministic."""
    seen = item.seen
    if seen.version is None and source.rules.observed:
        seen = replace(seen, version=from_datetime(asked_at))
    return Event(
        sender=source.sender,
        event_id=f"correction:{source.kind}:{seen.key}:{seen.version}",
        type=f"{source.kind}.corrected",
        origin=Origin.CORRECTION,
        body=item.object,
        raw=canonical(item.object),
        observation=seen,
        read_started=asked_at,
        run_id=run_id,
        by_person=by_person,
    )


async def keep_poisons(
    connection: AsyncConnection,
    alerts: Sequence[Effect],
    source: Source,
    poisons: Sequence[Poison],
) -> None:
    """Keep items beyond use where they are visible, once for each content."""
    for poison in poisons:
        headers: Mapping[str, str] = {quarantine.LISTED: source.kind}
        await set_aside(connection, alerts, source.sender, poison.raw, headers, poison.fault)
