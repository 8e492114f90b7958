"""Stories of the group commit: together without waiting, apart in misfortune."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from reconciler.errors import DatabaseAwayError
from reconciler.ledger.event import Event, Origin
from reconciler.receiver import group_commit
from reconciler.receiver.group_commit import GroupCommit, OverloadError

pytestmark = pytest.mark.anyio


def event(name: str, *, raw: bytes = b"") -> Event:
    return Event(sender="shop", event_id=name, type="t", origin=Origin.WEBHOOK, raw=raw)


class Database:
    """Something to commit to: it can be held up, it remembers batches, it fails on demand."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.free = asyncio.Event()
        self.free.set()
        self.fails: dict[str, Exception] = {}

    async def commit(self, events: Sequence[Event]) -> list[str]:
        names = [each.event_id for each in events]
        self.batches.append(names)
        await self.free.wait()
        for name in names:
            if name in self.fails:
                raise self.fails[name]
        return [f"{name} done" for name in names]


@asynccontextmanager
async def running(database: Database, **limits: object) -> AsyncIterator[GroupCommit[str]]:
    settings = {"batch_max": 200, "waiting_max": 1000, "lanes": 1, **limits}
    committer: GroupCommit[str] = GroupCommit(commit=database.commit, **settings)
    stop = asyncio.Event()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(committer.run(stop))
        yield committer
        database.free.set()
        stop.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - any state, not one event
            await asyncio.sleep(0)


async def test_what_arrives_during_a_commit_is_committed_together():
    """
    The first delivery does not wait for company. While its commit is under way nine more
    arrive, and they become one commit; each waiter gets the result of its own.
    """
    database = Database()
    async with running(database) as committer, asyncio.TaskGroup() as waiters:
        database.free.clear()
        first = waiters.create_task(committer.submit([event("a")]))
        await until(lambda: database.batches == [["a"]])
        others = {
            name: waiters.create_task(committer.submit([event(name)])) for name in "bcdefghij"
        }
        await until(lambda: len(committer.waiting) == 9)
        database.free.set()

    assert [["a"], list("bcdefghij")] == database.batches
    assert ["a done"] == first.result()
    assert {name: [f"{name} done"] for name in others} == {
        name: task.result() for name, task in others.items()
    }


async def test_a_second_commit_begins_for_a_crowd(monkeypatch: pytest.MonkeyPatch):
    """
    While the first is under way a few wait, for two small commits cost more than one larger.
    A crowd does not: it is committed beside it, and there is no third.
    """
    monkeypatch.setattr(group_commit, "CROWD", 3)
    monkeypatch.setattr(group_commit, "PATIENCE", timedelta(seconds=60))
    database = Database()
    async with running(database, lanes=2) as committer, asyncio.TaskGroup() as waiters:
        database.free.clear()
        waiters.create_task(committer.submit([event("a")]))
        await until(lambda: database.batches == [["a"]])
        for name in "bcd":
            assert 1 == len(database.batches)
            waiters.create_task(committer.submit([event(name)]))
        await until(lambda: len(database.batches) == 2)
        for name in "efg":
            waiters.create_task(committer.submit([event(name)]))
        await until(lambda: len(committer.waiting) == 3)
        assert [["a"], ["b", "c", "d"]] == database.batches
        database.free.set()

    assert [["a"], ["b", "c", "d"], ["e", "f", "g"]] == database.batches


async def test_a_commit_that_is_held_up_does_not_hold_up_the_next():
    """Somebody else's lock is waited for by those who need it, not by all."""
    database = Database()
    async with running(database, lanes=2) as committer, asyncio.TaskGroup() as waiters:
        database.free.clear()
        waiters.create_task(committer.submit([event("a")]))
        await until(lambda: database.batches == [["a"]])
        waiters.create_task(committer.submit([event("b")]))
        await until(lambda: database.batches == [["a"], ["b"]])
        database.free.set()


async def test_a_commit_has_limits_and_a_delivery_stays_together():
    """
    At most three events a commit here: a delivery that would make it more waits for the next,
    and one that is larger by itself goes alone. None is cut in two.
    """
    database = Database()
    async with running(database, batch_max=3) as committer, asyncio.TaskGroup() as waiters:
        database.free.clear()
        waiters.create_task(committer.submit([event("x")]))
        await until(lambda: database.batches == [["x"]])
        for names in ("ab", "c", "de", "fghij", "k"):
            waiters.create_task(committer.submit([event(name) for name in names]))
        await until(lambda: len(committer.waiting) == 5)
        database.free.set()

    assert [["x"], list("abc"), list("de"), list("fghij"), ["k"]] == database.batches


async def test_a_commit_is_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch):
    """A hundred large bodies are not one statement."""
    monkeypatch.setattr(group_commit, "BYTES_MAX", 100)
    database = Database()
    async with running(database) as committer, asyncio.TaskGroup() as waiters:
        database.free.clear()
        waiters.create_task(committer.submit([event("x")]))
        await until(lambda: database.batches == [["x"]])
        for name in "abc":
            waiters.create_task(committer.submit([event(name, raw=b"." * 50)]))
        await until(lambda: len(committer.waiting) == 3)
        database.free.set()

    assert [["x"], ["a", "b"], ["c"]] == database.batches


async def test_a_waiter_that_gives_up_takes_its_delivery_back():
    """
    Its sender hears 503, so nothing of it is to be stored if that can be helped. The commit that
    has begun on another's goes on, also when that waiter is gone.
    """
    database = Database()
    async with running(database) as committer:
        database.free.clear()
        begun = asyncio.create_task(committer.submit([event("a")]))
        await until(lambda: database.batches == [["a"]])
        queued = asyncio.create_task(committer.submit([event("b")]))
        kept = asyncio.create_task(committer.submit([event("c")]))
        await until(lambda: len(committer.waiting) == 2)
        for task in (begun, queued):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        database.free.set()

        assert ["c done"] == await kept
    assert [["a"], ["c"]] == database.batches


async def test_too_many_waiters_are_sent_away():
    """Memory and patience have a limit; those that wait already keep their places."""
    database = Database()
    async with running(database, waiting_max=2) as committer, asyncio.TaskGroup() as waiters:
        database.free.clear()
        waiters.create_task(committer.submit([event("a")]))
        await until(lambda: database.batches == [["a"]])
        places = [waiters.create_task(committer.submit([event(name)])) for name in "bc"]
        await until(lambda: len(committer.waiting) == 2)
        with pytest.raises(OverloadError):
            await committer.submit([event("d")])
        database.free.set()

    assert [["b done"], ["c done"]] == [place.result() for place in places]


async def test_who_gives_up_leaves_its_place():
    """Else a commit that hangs would fill the line with nobody."""
    database = Database()
    async with running(database, waiting_max=1) as committer, asyncio.TaskGroup() as waiters:
        database.free.clear()
        waiters.create_task(committer.submit([event("a")]))
        await until(lambda: database.batches == [["a"]])
        gone = asyncio.create_task(committer.submit([event("b")]))
        await until(lambda: len(committer.waiting) == 1)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        place = waiters.create_task(committer.submit([event("c")]))
        await until(lambda: len(committer.waiting) == 1)
        database.free.set()

    assert ["c done"] == place.result()


@pytest.mark.parametrize("error", [DatabaseAwayError("away"), RuntimeError("a bug")], ids=type)
async def test_a_commit_that_fails_fails_its_waiters_and_nobody_else(error: Exception):
    """Whatever it was: those who wait for it hear of it, and the next ones are served."""
    database = Database()
    database.fails["bad"] = error
    async with running(database) as committer:
        with pytest.raises(type(error)):
            await committer.submit([event("bad")])

        assert ["good done"] == await committer.submit([event("good")])


async def test_a_commit_that_hangs_is_given_up():
    """A connection may be dead and never say so: the lane is free again after its deadline."""
    database = Database()
    async with running(database, deadline=timedelta(milliseconds=20)) as committer:
        database.free.clear()
        with pytest.raises(DatabaseAwayError):
            await committer.submit([event("a")])
        database.free.set()

        assert ["b done"] == await committer.submit([event("b")])


async def test_a_stop_commits_what_waits_and_takes_nothing_more():
    """Deliveries that wait when we are told to stop get their answers; later ones hear so."""
    database = Database()
    committer: GroupCommit[str] = GroupCommit(
        commit=database.commit, batch_max=1, waiting_max=10, lanes=1
    )
    stop = asyncio.Event()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        database.free.clear()
        group.create_task(committer.run(stop))
        waiters = [group.create_task(committer.submit([event(name)])) for name in "abc"]
        await until(lambda: len(committer.waiting) == 2)
        stop.set()
        await until(lambda: committer.closed)
        with pytest.raises(OverloadError):
            await committer.submit([event("late")])
        database.free.set()

    assert [["a done"], ["b done"], ["c done"]] == [waiter.result() for waiter in waiters]


async def test_a_cancelled_loop_leaves_nobody_waiting():
    """When the drain's time is up, those under way and those in line are told."""
    database = Database()
    database.free.clear()
    committer: GroupCommit[str] = GroupCommit(
        commit=database.commit, batch_max=1, waiting_max=10, lanes=1
    )
    loop = asyncio.create_task(committer.run(asyncio.Event()))
    waiters = [asyncio.create_task(committer.submit([event(name)])) for name in "ab"]
    await until(lambda: len(committer.waiting) == 1)
    loop.cancel()

    for waiter in waiters:
        with pytest.raises(OverloadError):
            await waiter
    with pytest.raises(asyncio.CancelledError):
        await loop
