"""Whether a soak's figures are flat: what that means, in numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.soak.sampling import Sample, share_of

WARM_UP = 1 / 3  #: of the run is not judged: pools fill, tables reach the ages that are kept
MEMORY_GROWTH = 1.0  #: MiB an hour: more, beyond doubt, is a leak
MEMORY_AT_MOST = 8.0  #: MiB an hour, whatever the doubt
MORE_DESCRIPTORS = 8  #: a pool may grow by a connection or two
MORE_THREADS = 2
LOWEST = 0.1  #: what is leaked never goes away: the lowest tenth shows it, peaks come and go
TABLE_GROWTH, TABLE_SLACK = 1.25, 300  #: rows: the last third against the one before
SIZE_GROWTH, SIZE_SLACK = 1.35, 1024**2  #: bytes: vacuum comes when it comes
OLDEST_SECONDS = 60.0  #: an entry may wait; at the end and in the median of the run
MIB = 1024.0**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was judged."""

    what: str
    before: str  #: after the warm-up
    after: str  #: at the end
    rule: str
    flat: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """A straight line through noisy values: its growth, and how far that may be off."""

    per_hour: float
    doubt: float  #: half of the width of the 95 % interval


def slope(times: Sequence[float], values: Sequence[float]) -> Slope:
    """
    Least squares over *times* in seconds.

    Values that follow each other closely tell less than they are many: the interval is widened
    by what the residuals have in common with the ones before (lag-1 autocorrelation).
    """
    n = len(times)
    mean_t, mean_v = sum(times) / n, sum(values) / n
    spread = sum((t - mean_t) ** 2 for t in times)
    per_second = (
        sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values, strict=True)) / spread
    )
    rest = [v - mean_v - per_second * (t - mean_t) for t, v in zip(times, values, strict=True)]
    noise = sum(r * r for r in rest)
    likeness = sum(a * b for a, b in pairwise(rest)) / noise if noise else 0.0
    likeness = min(max(likeness, 0.0), 0.98)
    alone = max(3.0, n * (1 - likeness) / (1 + likeness))
    error = math.sqrt(noise / max(n - 2, 1) / spread) * math.sqrt(n / alone)
    return Slope(per_hour=per_second * 3600, doubt=2 * error * 3600)


def judge(samples: Sequence[Sample]) -> list[Finding]:
    """Hold what was sampled after the warm-up against what flat means."""
    end = samples[-1].at
    kept = [sample for sample in samples if sample.at >= end * WARM_UP]
    half = len(kept) // 2
    earlier, later = kept[:half], kept[half:]
    return [
        memory(kept),
        none_kept(earlier, later, "descriptors", slack=MORE_DESCRIPTORS),
        none_kept(earlier, later, "threads", slack=MORE_THREADS),
        *tables(earlier, later),
        backlog(kept),
    ]


def memory(kept: Sequence[Sample]) -> Finding:
    found = slope([one.at for one in kept], [one.memory / MIB for one in kept])
    surely = found.per_hour - found.doubt
    return Finding(
        what="memory",
        before=f"{kept[0].memory / MIB:.1f} MiB",
        after=f"{kept[-1].memory / MIB:.1f} MiB",
        rule=f"{found.per_hour:+.2f} +- {found.doubt:.2f} MiB/h; surely at most"
        f" {MEMORY_GROWTH:g}, and at most {MEMORY_AT_MOST:g}",
        flat=surely <= MEMORY_GROWTH and (found.per_hour <= MEMORY_AT_MOST or surely <= 0),
    )


def none_kept(
    earlier: Sequence[Sample], later: Sequence[Sample], name: str, *, slack: int
) -> Finding:
    before = share_of([getattr(one, name) for one in earlier], LOWEST)
    after = share_of([getattr(one, name) for one in later], LOWEST)
    return Finding(
        what=name,
        before=f"{before:g}",
        after=f"{after:g}",
        rule=f"the lowest tenth of the first and of the second half, at most {slack} more",
        flat=after <= before + slack,
    )


def tables(earlier: Sequence[Sample], later: Sequence[Sample]) -> list[Finding]:
    found = []
    for name in later[-1].rows:
        rows = most(earlier, lambda one, name=name: one.rows[name])
        more_rows = most(later, lambda one, name=name: one.rows[name])
        size = most(earlier, lambda one, name=name: one.sizes[name])
        more = most(later, lambda one, name=name: one.sizes[name])
        found.append(
            Finding(
                what=name,
                before=f"{rows} rows, {size / MIB:.1f} MiB",
                after=f"{more_rows} rows, {more / MIB:.1f} MiB",
                rule="the most at a time: rows"
                f" x{TABLE_GROWTH:g} + {TABLE_SLACK}, bytes x{SIZE_GROWTH:g} + 1 MiB",
                flat=more_rows <= rows * TABLE_GROWTH + TABLE_SLACK
                and more <= size * SIZE_GROWTH + SIZE_SLACK,
            )
        )
    return found


def most(samples: Sequence[Sample], of: Callable[[Sample], int]) -> int:
    return max(of(one) for one in samples)


def backlog(kept: Sequence[Sample]) -> Finding:
    waited = sorted(one.oldest_seconds for one in kept)
    return Finding(
        what="backlog",
        before=f"{waited[len(waited) // 2]:.1f} s (median of the oldest entry's age)",
        after=f"{kept[-1].oldest_seconds:.1f} s, {kept[-1].pending} pending",
        rule=f"both at most {OLDEST_SECONDS:g} s",
        flat=waited[len(waited) // 2] <= OLDEST_SECONDS
        and kept[-1].oldest_seconds <= OLDEST_SECONDS,
    )
