"""What a destination, asked about a call of unknown outcome, said: pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from outbox.verdict import Answer, Failure, Predicate, Reply, holds

DOUBLINGS = 30


class Finding(StrEnum):
    """What one look came to."""

    FOUND = "found"  #: the destination shows it: it was delivered
    ABSENT = "absent"  #: it certainly is not there, and it is too late for it to come
    UNDECIDED = "undecided"  #: not there yet, or no answer that says either


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """How to ask a destination whether a call has taken effect."""

    path: Callable[[Mapping[str, Any]], str]  #: of a GET, over the entry's own names
    found: Predicate
    not_found: Predicate | None  #: None: it can be found, and never be proven absent
    lag: timedelta  #: how long after a call its effect may not be visible yet
    every: timedelta  #: the wait after the first look; each further one is twice as long
    at_most: timedelta  #: no wait is longer
    looks: int  #: after so many it is left to a person
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    finding: Finding
    reason: str
    wait: timedelta | None = None  #: until the next look; None: there is none


def conclude(
    result: Answer | Reply | Failure, asked: LookUp, *, looks: int, since: timedelta
) -> Looked:
    """
    Judge one look, which is number *looks*, begun *since* the end of the last attempt.

    Absence is no proof within the declared lag. An answer that fits both, or neither, decides
    nothing; nor does one that broke off.
    """
    wait = min(asked.every * 2.0 ** min(looks - 1, DOUBLINGS), asked.at_most)
    later = wait if looks < asked.looks else None
    if not isinstance(result, Answer):
        why = result.reason if isinstance(result, Failure) else result.said
        return Looked(finding=Finding.UNDECIDED, reason=why, wait=later)
    said = f"answered {result.status}"
    if not result.complete:
        return Looked(finding=Finding.UNDECIDED, reason=f"{said}, broken off", wait=later)
    found = holds(asked.found, result)
    absent = None if asked.not_found is None else holds(asked.not_found, result)
    if found and not absent:
        return Looked(finding=Finding.FOUND, reason=said)
    if absent and not found and since >= asked.lag:
        return Looked(finding=Finding.ABSENT, reason=said)
    if absent and not found:
        said += f", not there, which proves nothing within {asked.lag.total_seconds():g} s"
        left = asked.lag - since
        later = None if later is None else min(max(wait, left), max(asked.at_most, left))
    elif absent and found:
        said += ", and fits both found and not_found"
    return Looked(finding=Finding.UNDECIDED, reason=said, wait=later)
