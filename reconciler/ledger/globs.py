"""Shell globs over event types, kinds and senders: what they match, and whether two can meet."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from fnmatch import fnmatchcase, translate
from functools import lru_cache

PIECE = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)


def matches(globs: Iterable[str], text: str) -> bool:
    """
    Whether any of *globs* matches the whole of *text*; upper and lower case differ.

    >>> matches(("order.*", "refund.succeeded"), "order.paid")
    True
    """
    return any(matcher(glob).match(text) for glob in globs)


@lru_cache(maxsize=4096)
def matcher(glob: str) -> re.Pattern[str]:
    return re.compile(translate(glob))


def can_meet(one: str, other: str) -> bool:
    """
    Whether some text is matched by both globs.

    >>> can_meet("order.*", "*.deleted")
    True
    >>> can_meet("order.*", "orders.*")
    False
    """
    left, right = PIECE.findall(one), PIECE.findall(other)
    # reach[j]: what stands before `piece` in left and right[:j] can match one text; O(n * m)
    reach = [all(piece == "*" for piece in right[:j]) for j in range(len(right) + 1)]
    for piece in left:
        row = [reach[0] and piece == "*"]
        for j, against in enumerate(right):
            if "*" in (piece, against):  # a star matches nothing, or swallows the other piece
                row.append(row[j] or reach[j + 1])
            else:
                row.append(reach[j] and share_a_character(piece, against))
        reach = row
    return reach[-1]


def share_a_character(one: str, other: str) -> bool:
    """Whether two pieces that each match one character (`a`, `?`, `[a-z]`) can match the same."""
    candidates = set(string.printable) | set(one) | set(other)
    return any(fnmatchcase(each, one) and fnmatchcase(each, other) for each in candidates)
