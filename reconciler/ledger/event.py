"""What arrives at the ledger: events, and what they say about a resource."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from reconciler.exact_json import Json

OWN_PREFIXES = ("correction:", "read:")  #: ids of our own making; no delivered one begins so


class Origin(StrEnum):
    """Which path found out."""

    WEBHOOK = "webhook"  #: delivered by the sender
    FEED = "feed"  #: read from the sender's events feed
    CORRECTION = "correction"  #: made from a listed item
    READ = "read"  #: made from a `get` of one resource
    OWN = "own"  #: what the reconciler itself met: an entry that is dead, or uncertain
    REPLAY = "replay"  #: a delivered event applied again by a person


class Outcome(StrEnum):
    """What applying one event came to."""

    APPLIED = "applied"  #: newer state, or a fact without one: state and effects are written
    DUPLICATE = "duplicate"  #: this (sender, event id) was claimed before: nothing is written
    STALE = "stale"  #: we hold something newer, or the same fact twice: only the claim
    TIED = "tied"  #: equal version, other content: facts count, a read is requested
    LATE = "late"  #: a correction or read was first: facts count, state was already so
    DEFERRED = "deferred"  #: needs a read first: claimed, a read is requested
    IGNORED = "ignored"  #: no rule names this type: claimed, nothing else
    QUARANTINED = "quarantined"  #: kept whole, unclaimed, to be replayed


class Change(StrEnum):
    """How a resource became newer."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"
    REVIVED = "revived"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What an event, a listed item or a read says about one resource."""

    kind: str
    key: str
    version: int | None  #: comparable (section "Versions"); None: none was given
    state: Mapping[str, Json] | None  #: declared fields that were present; None: thin
    lacking: frozenset[str] = frozenset()  #: declared fields that the object did not have
    deleted: bool = False
    changed_at: int | None = None  #: ns since 1970, the sender's clock
    created_at: int | None = None  #: ns since 1970, the sender's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """
    What the sender says happened, or a correction that the reconciler made.

    Python handlers receive it too; `previous`, `current` and `change` are filled in then.
    """

    sender: str
    event_id: str
    type: str
    origin: Origin
    occurred_at: datetime | None = None
    body: Json = None  #: the delivered event, parsed; for a correction the listed object
    headers: Mapping[str, str] = field(default_factory=dict)  #: lower-case names, secrets masked
    raw: bytes = b""  #: the delivery's exact bytes
    observation: Observation | None = None
    read_started: datetime | None = None  #: database time; corrections and reads only
    run_id: UUID | None = None  #: the scan or manual run that made it
    by_person: bool = False  #: a person's trigger of one resource, or a replay

    previous: Mapping[str, Json] | None = None  #: state held before, for a change
    current: Mapping[str, Json] | None = None  #: state held now, for a stale fact
    change: Change | None = None

    @property
    def kind(self) -> str | None:
        return self.observation.kind if self.observation else None

    @property
    def key(self) -> str | None:
        return self.observation.key if self.observation else None

    @property
    def version(self) -> int | None:
        return self.observation.version if self.observation else None

    @property
    def state(self) -> Mapping[str, Json] | None:
        return self.observation.state if self.observation else None
