"""What takes turns: the full and the incremental scan of each kind, and the right to run one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID


class Mode(StrEnum):
    FULL = "full"  #: all of the listing
    INCREMENTAL = "incremental"  #: what changed since the watermark, less the look-back


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Slot:
    """One of the scans that take turns: a kind of a sender, full or incremental."""

    sender: str
    kind: str
    mode: Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to run a slot until a time of the database's clock; its fence only grows."""

    slot: Slot
    owner: UUID  #: the run
    fence: int
    duration: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a slot was found with when it was taken."""

    lease: Lease
    checkpoint: Mapping[str, Any] | None
    pass_started_at: datetime | None
    failures: int  #: in a row, before this run
