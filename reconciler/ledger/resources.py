"""Resources: what we hold of the senders' things, written under the version guard only."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    PrimaryKeyConstraint,
    Table,
    Text,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.compiled import Compiled
from reconciler import exact_json
from reconciler.database import metadata
from reconciler.ledger.drifts import Drift, how_it_differs
from reconciler.ledger.event import Observation
from reconciler.ledger.guard import Held
from reconciler.ledger.locked import Locked, held_of, row_of
from reconciler.ledger.rowsets import (
    RESOURCE_ID,
    AnyRow,
    C,
    ResourceId,
    Time,
    page,
    record_set,
    resource_rows,
)

resources = Table(
    "resources",
    metadata,
    Column("sender", C, nullable=False),
    Column("kind", C, nullable=False),
    Column("key", C, nullable=False),
    Column("version", BigInteger),
    Column("revision", BigInteger, nullable=False, server_default=text("0")),
    Column("read_at", Time),
    Column("state", JSONB(none_as_null=True)),
    Column("state_digest", Text),
    Column("deleted", Boolean, nullable=False, server_default=false()),
    Column("origin", Text, nullable=False),
    Column("updated_at", Time, nullable=False),
    PrimaryKeyConstraint("sender", "kind", "key", name="resources_pkey"),
)
_rows = resources.c


async def lock(connection: AsyncConnection, ids: Collection[ResourceId]) -> Locked:
    """
    Lock the rows of *ids* in key order, and read them under their locks.

    What is missing is inserted first, without a version, so that there is a row to lock: of two
    writers who see a resource first, the second must read what the first one wrote.
    """
    inserted = await _INSERT_MISSING.rows(connection, rows=resource_rows(ids))
    placeholders = {(row.sender, row.kind, row.key) for row in inserted}
    before = dict.fromkeys(placeholders, Held())  # what we inserted is locked by that
    if others := set(ids) - placeholders:
        locked = await _LOCK.rows(connection, rows=resource_rows(others))
        before |= {(row.sender, row.kind, row.key): held_of(row) for row in locked}
    return Locked(before=before, now=dict(before), placeholders=placeholders)


async def lock_held(
    connection: AsyncConnection, ids: Collection[ResourceId]
) -> dict[ResourceId, Held]:
    """Lock those of *ids* that are there, in key order, and read them under their locks."""
    rows = await _LOCK.rows(connection, rows=resource_rows(ids))
    return {(row.sender, row.kind, row.key): held_of(row) for row in rows}


async def write_if_newer(
    connection: AsyncConnection, written: Sequence[tuple[ResourceId, Held, bool]]
) -> None:
    """
    Write (resource, row, whether at an equal version), unless what is there is newer.

    The guard is part of the statement; the rows are locked and judged already, so a row that
    it keeps out is a bug of ours and nothing of this transaction may commit.
    """
    rows = [
        row_of(resource, held, same_version=same_version)
        for resource, held, same_version in written
    ]
    rows.sort(key=lambda row: (row["sender"], row["kind"], row["key"]))
    done = await _WRITE_IF_NEWER.count(connection, rows=rows)
    if done != len(rows):
        raise AssertionError(f"{len(rows) - done} resources were newer under our lock")


async def raise_revisions(connection: AsyncConnection, revisions: Mapping[ResourceId, int]) -> None:
    """Number the events that enqueue about a resource without writing its state."""
    rows = [
        {**row, "revision": revisions[row["sender"], row["kind"], row["key"]]}
        for row in resource_rows(revisions)
    ]
    await _RAISE_REVISIONS.count(connection, rows=rows)


async def drop_placeholders(connection: AsyncConnection, ids: Collection[ResourceId]) -> None:
    """Remove rows that were inserted to be locked and ended unwritten."""
    await _DROP_PLACEHOLDERS.count(connection, rows=resource_rows(ids))


async def compare(
    connection: AsyncConnection,
    sender: str,
    kind: str,
    observations: Sequence[Observation],
    *,
    declared: bool,
) -> list[Drift]:
    """
    Hold a page of *observations* against our rows, in one statement; leave out what is in sync.

    *declared*: the kind names its fields. Observations without a version (`observed`) are
    compared by their content alone.
    """
    items = [
        {
            "n": n,
            "key": seen.key,
            "version": seen.version,
            "state_digest": None if seen.state is None else exact_json.digest(seen.state),
        }
        for n, seen in enumerate(observations)
    ]
    page = {"rows": items, "sender": sender, "kind": kind}
    drifts = []
    for row in await connection.execute(_COMPARE, page):
        seen = observations[row.n]
        held = None if row.key is None else held_of(row)
        if found := how_it_differs(held, seen, declared=declared):
            drifts.append(Drift(n=row.n, observation=seen, held=held, found=found))
    return drifts


async def unseen(  # noqa: PLR0913 - which rows, and which page of them
    connection: AsyncConnection,
    sender: str,
    kind: str,
    *,
    before: datetime,
    after: str | None = None,
    limit: int = 1000,
) -> list[str]:
    """Keys, in order, of live resources last written *before*, beginning *after* a key."""
    statement = (
        select(_rows.key)
        .where(_rows.sender == sender, _rows.kind == kind, _rows.version.is_not(None))
        .where(~_rows.deleted, _rows.updated_at < before)
    )
    if after is not None:
        statement = statement.where(_rows.key > after)
    return list(await connection.scalars(statement.order_by(_rows.key).limit(limit)))


async def count_live(connection: AsyncConnection, sender: str, kind: str) -> int:
    """How many resources of a kind we hold that are not deleted."""
    statement = select(func.count()).where(
        _rows.sender == sender, _rows.kind == kind, _rows.version.is_not(None), ~_rows.deleted
    )
    return await connection.scalar(statement) or 0


async def show(connection: AsyncConnection, sender: str, kind: str, key: str) -> AnyRow | None:
    """One resource's row; None where nothing is held."""
    statement = select(resources).where(
        _rows.sender == sender, _rows.kind == kind, _rows.key == key, _rows.version.is_not(None)
    )
    return (await connection.execute(statement)).one_or_none()


async def list_resources(  # noqa: PLR0913 - filters
    connection: AsyncConnection,
    *,
    sender: str | None = None,
    kind: str | None = None,
    key: str | None = None,
    deleted: bool | None = None,
    after: ResourceId | None = None,
    limit: int = 50,
) -> Sequence[AnyRow]:
    """Resources in key order; *after* is (sender, kind, key) of the last one seen."""
    equal = {_rows.sender: sender, _rows.kind: kind, _rows.key: key, _rows.deleted: deleted}
    place = (_rows.sender, _rows.kind, _rows.key)
    statement = page(tuple(_rows), place, equal=equal, after=after, limit=limit)
    return (await connection.execute(statement.where(_rows.version.is_not(None)))).all()


_wanted = record_set("wanted", RESOURCE_ID).c
_is_wanted = and_(
    _rows.sender == _wanted.sender, _rows.kind == _wanted.kind, _rows.key == _wanted.key
)
_INSERT_MISSING = Compiled(
    insert(resources)
    .from_select(
        ["sender", "kind", "key", "origin", "updated_at"],
        select(
            _wanted.sender, _wanted.kind, _wanted.key, text("'webhook'"), func.clock_timestamp()
        ).order_by(_wanted.sender, _wanted.kind, _wanted.key),
    )
    .on_conflict_do_nothing(index_elements=["sender", "kind", "key"])
    .returning(_rows.sender, _rows.kind, _rows.key)
)
_LOCK = Compiled(
    select(resources)
    .where(_is_wanted)
    .order_by(_rows.sender, _rows.kind, _rows.key)
    .with_for_update(of=resources)
)
_DROP_PLACEHOLDERS = Compiled(delete(resources).where(_is_wanted, _rows.version.is_(None)))

_newer = record_set(
    "newer",
    {
        **RESOURCE_ID,
        "version": BigInteger(),
        "revision": BigInteger(),
        "state": JSONB(none_as_null=True),
        "state_digest": Text(),
        "deleted": Boolean(),
        "origin": Text(),
        "was_read": Boolean(),
        "same_version": Boolean(),
    },
).c
_is_newer = or_(
    _rows.version.is_(None),
    _rows.version < _newer.version,
    and_(_newer.same_version, _rows.version == _newer.version),
)
_WRITE_IF_NEWER = Compiled(
    update(resources)
    .where(_rows.sender == _newer.sender, _rows.kind == _newer.kind, _rows.key == _newer.key)
    .where(_is_newer)
    .values(
        version=_newer.version,
        revision=_newer.revision,
        state=_newer.state,
        state_digest=_newer.state_digest,
        deleted=_newer.deleted,
        origin=_newer.origin,
        # clock_timestamp(): under the lock, and later than every wait of this transaction
        read_at=case((_newer.was_read, func.clock_timestamp()), else_=_rows.read_at),
        updated_at=func.clock_timestamp(),
    )
)

_item = record_set(
    "item", {"n": BigInteger(), "key": C, "version": BigInteger(), "state_digest": Text()}
).c
_is_listed = and_(
    _rows.sender == bindparam("sender", type_=C),
    _rows.kind == bindparam("kind", type_=C),
    _rows.key == _item.key,
    _rows.version.is_not(None),
)
_is_ours_newer = and_(_item.version.is_not(None), _rows.version > _item.version)
_COMPARE = (
    select(
        _item.n,
        *(column for column in _rows if column.name not in {"state", "state_digest"}),
        case((_is_ours_newer, None), else_=_rows.state).label("state"),
    )
    .select_from(_item.key.table.outerjoin(resources, _is_listed))
    .where(
        or_(
            _rows.key.is_(None),
            and_(_item.version.is_not(None), _rows.version != _item.version),
            _rows.state_digest.is_distinct_from(_item.state_digest),
        )
    )
    .order_by(_item.n)
)

_raised = record_set("raised", {**RESOURCE_ID, "revision": BigInteger()}).c
_RAISE_REVISIONS = Compiled(
    update(resources)
    .where(_rows.sender == _raised.sender, _rows.kind == _raised.kind, _rows.key == _raised.key)
    .where(_rows.revision < _raised.revision)
    .values(revision=_raised.revision)
)
