"""One resource read by its `get`: what the sender says of it, as an event for the ledger."""

from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from reconciler import faults
from reconciler.database import now
from reconciler.expressions import ExpressionError
from reconciler.ledger.event import Event, Observation, Origin
from reconciler.ledger.projection import ProjectionError
from reconciler.polling.answer import read_object
from reconciler.polling.client import Api, Response
from reconciler.polling.errors import PageBrokenError, RefusedError
from reconciler.polling.sources import Source
from reconciler.polling.waiting import Waits
from reconciler.transactions import transact

GONE = frozenset({404, 410})
UNEXPLAINED = "the sender answered 404, and nothing says what that means (`get.absent`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What came of asking for one resource."""

    started: datetime  #: database time, before anything was asked
    event: Event | None  #: None: 404 or 410, and nothing says what that means


async def read_resource(  # noqa: PLR0913 - one read, and who asks for it
    engine: AsyncEngine,
    api: Api,
    source: Source,
    key: str,
    *,
    run_id: UUID | None = None,
    by_person: bool = False,
    waits: Waits | None = None,
) -> Read:
    """
    Ask the sender for one resource. Nothing is written.

    Raises ApiError: AwayError, RefusedError, and PageBrokenError for an answer beyond use, also
    for one about another resource. StoppedError where *waits* were ended.
    """
    assert source.getting is not None
    try:
        target = source.getting.target(key)
    except ExpressionError as error:
        raise PageBrokenError(f"this key makes no path: {error}") from error
    # before the request: what changes while it is under way may be missing from its answer
    started = await transact(engine, now)
    async with waits() if waits else nullcontext():
        response = await api.fetch(target)
    if response.status in GONE:
        seen = _absent(source, key)
    elif response.status >= 400:
        raise RefusedError(f"the sender answered {response.status}", status=response.status)
    else:
        seen = _present(source, key, response)
    faults.point("read-between-fetch-and-apply")
    if seen is None:
        return Read(started=started, event=None)
    event = Event(
        sender=source.sender,
        event_id=f"read:{source.kind}:{key}:{seen.version}:{started.isoformat()}",
        type=f"{source.kind}.corrected",
        origin=Origin.READ,
        body=read_object(response.body) if not seen.deleted else None,
        raw=response.body,
        observation=seen,
        read_started=started,
        run_id=run_id,
        by_person=by_person,
    )
    return Read(started=started, event=event)


def _absent(source: Source, key: str) -> Observation | None:
    """A 404 has no version: it buries what we hold at the version that it has."""
    assert source.getting is not None
    if source.getting.absent != "deleted":
        return None
    return Observation(kind=source.kind, key=key, version=None, state=None, deleted=True)


def _present(source: Source, key: str, response: Response) -> Observation:
    reader = source.rules.reader
    try:
        found = reader.locate(read_object(response.body), path="get")
        seen = reader.read(found, path="get")
    except ProjectionError as error:
        raise PageBrokenError(f"the answer cannot be read: {error.reason}") from error
    if seen.key != key:
        raise PageBrokenError("the answer is about another resource than was asked for")
    return seen
