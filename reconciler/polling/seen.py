"""Which keys a full scan has seen, in eight bytes each."""

from array import array
from bisect import bisect_left
from hashlib import blake2b
from itertools import islice
from operator import eq


class Seen:
    """
    A set of keys that only grows until it is asked.

    A hash of 64 bits may take one key in 10^7 scans of a million for another one; such a
    key counts as seen, and its absence is found by a later scan.
    """

    def __init__(self) -> None:
        self._hashes = array("Q")
        self._sorted = True

    def add(self, key: str) -> None:
        self._hashes.append(_hash(key))
        self._sorted = False

    def update(self, others: "Seen") -> None:
        self._hashes.extend(others._hashes)  # noqa: SLF001 - one of us
        self._sorted = False

    def has_one_twice(self) -> bool:
        """Whether a key was added more than once."""
        self._sort()
        return any(map(eq, self._hashes, islice(self._hashes, 1, None)))

    def clear(self) -> None:
        self._hashes = array("Q")
        self._sorted = True

    def __contains__(self, key: str) -> bool:
        self._sort()
        wanted = _hash(key)
        at = bisect_left(self._hashes, wanted)
        return at < len(self._hashes) and self._hashes[at] == wanted

    def __len__(self) -> int:
        return len(self._hashes)

    def _sort(self) -> None:
        if self._sorted:
            return
        # one array's worth of objects at a time: sorted() would make an int of every hash
        self._hashes = _radix_sorted(self._hashes)
        self._sorted = True


def _hash(key: str) -> int:
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _radix_sorted(hashes: "array[int]") -> "array[int]":
    """Sort by the top byte into buckets, then each bucket: at most 1/256 as objects at once."""
    buckets = [array("Q") for _ in range(256)]
    for value in hashes:
        buckets[value >> 56].append(value)
    result = array("Q")
    for bucket in buckets:
        result.extend(sorted(bucket))
    return result
