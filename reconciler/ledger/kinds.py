"""What the ledger knows of each kind of resource."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reconciler.ledger.globs import matches
from reconciler.ledger.projection import KindReader
from reconciler.settings.models import ResourceSettings, VersionSpec


def kind_rules(kind: str, resource: ResourceSettings, reader: KindReader) -> KindRules:
    return KindRules(
        kind=kind,
        reader=reader,
        about=about(resource),
        created_on=resource.created_on,
        has_list=resource.list is not None,
        has_get=resource.get is not None,
        observed=is_observed(resource),
        declared=frozenset(resource.fields),
        first_seen=resource.first_seen,
        gone_means_deleted=resource.get is not None and resource.get.absent == "deleted",
    )


def about(resource: ResourceSettings) -> tuple[str, ...]:
    """The globs of all event types that are about *resource*."""
    return tuple(dict.fromkeys((*resource.on, *resource.created_on, *resource.deleted_on)))


def is_observed(resource: ResourceSettings) -> bool:
    """Whether its sender has no versions, so that we count by when we read."""
    return isinstance(resource.version, VersionSpec) and resource.version.kind == "observed"


def is_dated(resource: ResourceSettings) -> bool:
    """Whether its versions are times of the sender's clock."""
    return isinstance(resource.version, VersionSpec) and resource.version.kind == "timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRules:
    """One kind of one sender."""

    kind: str
    reader: KindReader
    about: tuple[str, ...]  #: globs of event types
    created_on: tuple[str, ...]
    has_list: bool
    has_get: bool
    observed: bool
    declared: frozenset[str]  #: names of the declared fields; empty: the whole object is kept
    first_seen: Literal["fire", "skip"] | None
    gone_means_deleted: bool  #: what 404 and 410 of its `get` mean

    def is_creation(self, event_type: str) -> bool:
        return matches(self.created_on, event_type)
