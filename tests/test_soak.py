"""The soak's judgement: what is flat passes, however noisy, and what grows does not."""

import math
import random
from dataclasses import replace

import pytest

from tests.soak.judging import MIB, judge, slope
from tests.soak.sampling import Sample

FLAT = Sample(
    at=0.0,
    memory=0,
    descriptors=40,
    threads=3,
    server_memory=0,
    rows={"outbox": 9000},
    sizes={"outbox": 8_000_000},
    pending=3,
    oldest_seconds=0.4,
    given_up=0,
    p50=0.05,
    p99=0.2,
)


def half_an_hour(*, leak: float = 0.0, seed: int = 1) -> list[Sample]:
    """Memory that warms up, wanders like an allocator's, and leaks so many MiB an hour."""
    fate, wander, samples = random.Random(seed), 0.0, []
    for number in range(1, 361):
        at = number * 5.0
        wander = 0.9 * wander + fate.gauss(0, 0.02)
        warm = 105 - 4 * math.exp(-at / 120)
        memory = (warm + wander + leak * at / 3600) * MIB
        connections = fate.randrange(12)
        samples.append(
            replace(
                FLAT, at=at, memory=int(memory), descriptors=40 + connections, pending=number % 9
            )
        )
    return samples


def not_flat(samples: list[Sample]) -> list[str]:
    return [finding.what for finding in judge(samples) if not finding.flat]


@pytest.mark.parametrize("seed", range(10))
def test_what_only_wanders_is_flat(seed: int):
    assert [] == not_flat(half_an_hour(seed=seed))


@pytest.mark.parametrize("seed", range(10))
def test_forty_bytes_an_event_are_a_leak(seed: int):
    """At fifty events a second that is 7 MiB an hour: a gigabyte in a week."""
    assert ["memory"] == not_flat(half_an_hour(leak=40 * 50 * 3600 / MIB, seed=seed))


def test_a_connection_that_is_kept_every_minute_is_seen():
    leaking = [
        replace(one, descriptors=one.descriptors + int(one.at / 60)) for one in half_an_hour()
    ]
    assert ["descriptors"] == not_flat(leaking)


def test_a_table_that_nobody_purges_is_seen():
    growing = [
        replace(
            one,
            rows={"outbox": 100 + int(50 * one.at)},
            sizes={"outbox": 100_000 + int(30_000 * one.at)},
        )
        for one in half_an_hour()
    ]
    assert ["outbox"] == not_flat(growing)


def test_a_backlog_that_grows_is_seen():
    waiting = [replace(one, oldest_seconds=one.at / 10) for one in half_an_hour()]
    assert ["backlog"] == not_flat(waiting)


def test_neighbours_that_are_alike_make_the_interval_wider():
    times = [float(number) for number in range(200)]
    alone = [float((number * 7919) % 13) for number in range(200)]
    alike = [float((number // 20 * 7919) % 13) for number in range(200)]
    assert slope(times, alike).doubt > 2 * slope(times, alone).doubt
