"""Rows of resources while their locks are held: read, changed in memory, and written once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reconciler import exact_json
from reconciler.ledger.event import Origin
from reconciler.ledger.guard import FOUND_OUT, Held
from reconciler.ledger.rowsets import AnyRow, ResourceId


def held_of(row: AnyRow) -> Held:
    """What a row of ours says; a placeholder says nothing."""
    if row.version is None:
        return Held(revision=row.revision)
    return Held(
        version=row.version,
        revision=row.revision,
        state=row.state,
        deleted=row.deleted,
        origin=Origin(row.origin),
        updated_at=row.updated_at,
        read_at=row.read_at,
    )


def row_of(resource: ResourceId, held: Held, *, same_version: bool) -> dict[str, Any]:
    """What is to be written of a resource."""
    sender, kind, key = resource
    return {
        "sender": sender,
        "kind": kind,
        "key": key,
        "version": held.version,
        "revision": held.revision,
        "state": held.state,
        "state_digest": None if held.state is None else exact_json.digest(held.state),
        "deleted": held.deleted,
        "origin": held.origin.value,
        "was_read": held.origin in FOUND_OUT,
        "same_version": same_version,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """Rows under our lock: as they were, and as the events of this transaction leave them."""

    before: Mapping[ResourceId, Held]
    now: dict[ResourceId, Held]
    placeholders: set[ResourceId]  #: inserted by us, to have something to lock
