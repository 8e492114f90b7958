"""What an outbox entry is: a call to the outside, frozen when it was asked for."""

import hashlib
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

KeyFormat = Literal["text", "uuid"]

HASHED_PREFIX = "h-"
PRINTABLE = re.compile(r"[!-~](?:[ -~]*[!-~])?")  # ASCII, with no space at either end
RESTORED = "restored: a future that the database does not know any more may have sent it"
REASON_LIMIT = 500  # characters kept of anything that explains a failure


class State(StrEnum):
    """Where an entry stands."""

    PENDING = "pending"  #: to be called: due, backing off, in flight, or unrendered (no due_at)
    DELIVERED = "delivered"  #: the destination said that it has taken effect
    DEAD = "dead"  #: given up on; it certainly had no effect
    UNCERTAIN = "uncertain"  #: it may or may not have taken effect; not repeated blindly
    SKIPPED = "skipped"  #: recorded, never called: history, too old, or its key was used
    DISCARDED = "discarded"  #: a person decided that it is not wanted


class Verdict(StrEnum):
    """What one attempt told us."""

    DELIVERED = "delivered"  #: it has taken effect
    RETRY = "retry"  #: ask again later, under the same key
    DEAD = "dead"  #: it was refused for good and had no effect
    UNCERTAIN = "uncertain"  #: it may have taken effect and must not be repeated blindly


def outgoing_key(
    text: str,
    max_length: int = 255,
    key_format: KeyFormat = "text",
    *,
    part: str = "0",
    repetition: int = 0,
) -> str:
    """
    The idempotency key as it goes out (and is stored) for the configured *text*.

    *part* and *repetition*, where not zero, are appended first (`:p2`, `:r1`). The
    result goes out as it is only if that loses nothing on the way: 1 to *max_length*
    printable ASCII characters with no space at either end (HTTP trims header values, so
    that `a` and `a ` would meet) and no `h-` in front; every other key becomes `h-` and
    the SHA-256 hex of its UTF-8 bytes, as much of it as fits. `uuid` makes a UUIDv5 of that.
    """
    key = text
    if part != "0":
        key += f":p{part}"
    if repetition:
        key += f":r{repetition}"
    if not _goes_out_unchanged(key, max_length=max_length):
        # surrogatepass: a lone surrogate is no UTF-8, and still must get a key of its own
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        key = (HASHED_PREFIX + digest)[:max_length]
    return str(uuid.uuid5(KEY_NAMESPACE, key)) if key_format == "uuid" else key


KEY_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:webhook-reconciler:idempotency-key")


def uuid7(
    *,
    time_ns: Callable[[], int] = time.time_ns,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> uuid.UUID:
    """
    A UUIDv7 (RFC 9562, 5.7): 48 bits of milliseconds since 1970, then 74 random bits.

    Kind to indexes, and good enough to list by; which call goes first never rests on it.
    """
    milliseconds = (time_ns() // 1_000_000) & (2**48 - 1)
    noise = int.from_bytes(random_bytes(10))
    high = milliseconds << 16 | 0x7000 | noise >> 68 & 0xFFF
    low = 0b10 << 62 | noise & (2**62 - 1)
    return uuid.UUID(int=high << 64 | low)


def bounded(text: str) -> str:
    """*text* as a reason that the database takes whole: no NUL, no surrogates, limited."""
    clean = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= REASON_LIMIT else clean[: REASON_LIMIT - 1] + "\u2026"


def _goes_out_unchanged(key: str, *, max_length: int) -> bool:
    return (
        len(key) <= max_length
        and PRINTABLE.fullmatch(key) is not None
        and not key.startswith(HASHED_PREFIX)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEntry:
    """
    One call to be made, as `enqueue` takes it.

    *idempotency_key* is final (see `outgoing_key`); without one the call is not idempotent,
    whatever *idempotent* says. *skip* says why the call is recorded but
    never made; *fault* says why it could not be rendered, in which case what makes up the
    request may be missing. Neither uses up the key.
    """

    sender: str
    event_id: str
    effect: str
    part: str = "0"
    repetition: int = 0

    kind: str | None = None
    key: str | None = None
    revision: int | None = None  #: rises with the resource, under its row's lock
    position: int = 0  #: of the effect in the configuration
    ordered: bool = False  #: after the earlier calls about its resource to its destination
    lane: str | None = None  #: after the earlier calls of that lane, in the place of `ordered`
    hold_after_dead: bool | None = None  #: dead, it holds those behind; None: by its destination
    supersedes: bool = False  #: discards what waits before it in its lane for the same effect

    destination: str
    idempotency_key: str | None
    lasting: bool = False  #: the key names neither version nor event: kept as long as the resource
    idempotent: bool = True  #: whether the destination makes the key count for this call

    method: str | None = None
    path: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None

    happened_at: datetime | None = None  #: by whoever told of its cause
    expires: timedelta | None = None  #: after that it is called no more; None: it never is too old
    found: bool = False  #: its cause was found by looking, not told

    skip: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """What became of a `NewEntry`."""

    id: uuid.UUID
    state: State
    reason: str | None  #: why it is skipped, or `unrendered: ...`
    idempotency_key: str | None
