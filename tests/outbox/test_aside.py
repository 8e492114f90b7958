"""Marks whose statements are slow: one at a time, and not for longer than a lease can bear."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from outbox.aside import PATIENCE, Aside
from outbox.entry import State, Verdict
from outbox.settling import Mark


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def mark(number: int, attempt: int = 1) -> Mark:
    return Mark(
        id=UUID(int=number),
        attempt=attempt,
        started_at=datetime(2026, 12, 1, tzinfo=UTC),
        state=State.DELIVERED,
        wait=timedelta(0),
        maybe_sent=True,
        refusals=0,
        verdict=Verdict.DELIVERED,
        status=200,
        error=None,
        ordered=False,
    )


def numbers(marks: list[Mark]) -> list[int]:
    return [one.id.int for one in marks]


def test_they_go_one_at_a_time_while_there_is_time():
    aside = Aside(clock=Clock())
    aside.put([mark(1), mark(2)])
    first, second = aside.take(at_most=9), aside.take(at_most=9)
    assert [[1], [2]] == [numbers(first), numbers(second)]
    assert not any(one.late for one in (*first, *second))
    assert 0 == len(aside)


def test_what_has_waited_too_long_goes_all_at_once_and_runs_nothing():
    """The other attempt of one entry is for the next group, and the young ones wait on."""
    clock = Clock()
    aside = Aside(clock=clock)
    aside.put([mark(1), mark(2), mark(2, attempt=2)])
    clock.now = PATIENCE / 2
    aside.put([mark(3)])
    clock.now = PATIENCE
    assert [(UUID(int=1), 1), (UUID(int=2), 1)] == aside.ended[:2]
    groups = [aside.take(at_most=9) for _ in range(3)]
    assert [[1, 2], [2], [3]] == [numbers(group) for group in groups]
    assert [True, True, True, False] == [one.late for group in groups for one in group]


def test_a_group_of_late_ones_is_bounded():
    clock = Clock()
    aside = Aside(clock=clock)
    aside.put([mark(number) for number in range(5)])
    clock.now = PATIENCE
    assert [2, 2, 1] == [len(aside.take(at_most=2)) for _ in range(3)]
