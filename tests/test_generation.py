"""The generation's mark: what is noticed, by whom, what it holds, and what does no harm."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.enqueue import enqueue
from outbox.entry import RESTORED, NewEntry
from outbox.generations import Generation, Place, Seen
from reconciler.daemon_generation import GenerationWatch
from reconciler.generation import Remembered, Verdict, judge, next_number
from reconciler.memory import Memory
from reconciler.operations.restoring import say_restored
from tests.world import eventually

pytestmark = pytest.mark.anyio

HERE = Place(system_identifier=1, timeline=1, database_oid=2, table_oid=3)
MINE = Remembered(mark=UUID(int=7), beat=5, generation=1, synchronous=False)


def seen(
    place: Place = HERE,
    *,
    number: int | None = 1,
    beat: int | None = 5,
    flushed: int | None = 1000,
) -> Seen:
    generation = None
    if number is not None:
        generation = Generation(
            number=number,
            opened_at=None,  # type: ignore[arg-type] - no clock decides anything here
            reason="first",
            place=HERE,
            settled=True,
            healed=True,
        )
    return Seen(
        standby=False,
        place=place,
        synchronous=False,
        next_transaction=100,
        flushed=flushed,
        generation=generation,
        beat=beat,
    )


PROMOTED = replace(HERE, timeline=2)
SYNCHRONOUS = replace(MINE, synchronous=True, timeline=1, flushed=1000)
FLUSHED = replace(MINE, timeline=1, flushed=1000)


@pytest.mark.parametrize(
    ("what", "look", "remembered", "verdict"),
    [
        ("a new database", seen(number=None, beat=None), None, Verdict.FIRST),
        ("nothing changed", seen(), MINE, Verdict.CURRENT),
        ("a daemon without memory", seen(beat=None), None, Verdict.CURRENT),
        ("our mark went further than we know", seen(beat=6), MINE, Verdict.CURRENT),
        ("the mark went back", seen(beat=4), MINE, Verdict.BACK),
        ("the mark is gone", seen(beat=None), MINE, Verdict.BACK),
        ("everything is gone", seen(number=None, beat=None), MINE, Verdict.BACK),
        ("another has seen to it", seen(number=2, beat=4), MINE, Verdict.CURRENT),
        ("as far as it was", seen(), FLUSHED, Verdict.CURRENT),
        ("back to after our last mark", seen(flushed=999), FLUSHED, Verdict.BACK),
        ("the same, seen to", seen(number=2, flushed=999), FLUSHED, Verdict.CURRENT),
        ("we were there before", seen(flushed=999), replace(FLUSHED, timeline=0), Verdict.CURRENT),
        ("it cannot be told", seen(flushed=None), FLUSHED, Verdict.CURRENT),
        ("a standby had less on disk", seen(PROMOTED, flushed=9), SYNCHRONOUS, Verdict.FOLLOW),
        ("another table", seen(replace(HERE, table_oid=9)), MINE, Verdict.BACK),
        ("another database", seen(replace(HERE, database_oid=9)), MINE, Verdict.BACK),
        ("another server", seen(replace(HERE, system_identifier=9)), SYNCHRONOUS, Verdict.BACK),
        ("a failover", seen(PROMOTED), MINE, Verdict.BACK),
        ("a synchronous failover", seen(PROMOTED), SYNCHRONOUS, Verdict.FOLLOW),
        ("one, and nobody remembers", seen(PROMOTED, beat=None), None, Verdict.BACK),
        ("one that lost our mark", seen(PROMOTED, beat=4), SYNCHRONOUS, Verdict.BACK),
        ("back on an older timeline", seen(replace(HERE, timeline=0)), SYNCHRONOUS, Verdict.BACK),
    ],
)
def test_what_one_look_comes_to(
    what: str, look: Seen, remembered: Remembered | None, verdict: Verdict
):
    assert verdict is judge(look, remembered)[0], what


def test_a_generations_number_is_higher_than_any_that_was_seen():
    """Else a daemon that remembers the lost one would take it for that."""
    assert 2 == next_number(seen(), MINE)
    assert 8 == next_number(seen(), replace(MINE, generation=7))
    assert 1 == next_number(seen(number=None), None)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 60
        return self.now


@pytest.fixture
def daemon(engine: AsyncEngine, tmp_path: Path) -> Iterator[Callable[..., GenerationWatch]]:
    """Makes watches; those of one name share a state directory, as the starts of a daemon do."""
    memories: dict[str, Memory] = {}

    def made(name: str | None = None) -> GenerationWatch:
        if name in memories:
            memories[name].close()
        memory = Memory(None if name is None else tmp_path / name)
        memories[name or ""] = memory
        return GenerationWatch(
            engine=engine,
            memory=memory,
            key_lives={"payments": timedelta(hours=24), "letters": timedelta(hours=24)},
            listed=[],
            clock=Clock(),
        )

    yield made
    for memory in memories.values():
        memory.close()


async def looked(watch: GenerationWatch) -> Seen:
    """One turn of the watch."""
    found = await watch.look()
    assert found is not None
    await watch.settle(found, beat=lambda: None)
    return found


async def may_call(watch: GenerationWatch) -> bool:
    async with watch.engine.connect() as connection:
        return await watch.may_call(connection)


def query(url: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, values or None)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


def numbers(url: str) -> list[int]:
    return [row[0] for row in query(url, "select number from reconciler.generations order by 1")]


PROMOTE = "update reconciler.generations set timeline = timeline - 1"
WRITTEN = "select pg_snapshot_xmax(pg_current_snapshot())::text"
ROLL_BACK = "update reconciler.generation_marks set beat = beat - 1"


async def test_a_look_at_what_did_not_change_writes_nothing(daemon, database_url):
    """And its mark moves only after somebody has written something."""
    watch = daemon()
    await looked(watch)

    async def nobody_wrote() -> bool:
        written = query(database_url, WRITTEN)
        before = query(database_url, "select * from reconciler.generation_marks")
        for _ in range(5):
            await looked(watch)
        if written != query(database_url, WRITTEN):
            return False  # another test did, in a database of its own
        assert before == query(database_url, "select * from reconciler.generation_marks")
        return True

    await eventually(nobody_wrote)
    before = query(database_url, "select * from reconciler.generation_marks")
    assert await may_call(watch)
    query(database_url, "delete from reconciler.purge_horizons where sender <> sender")
    query(database_url, "insert into reconciler.purge_horizons values ('shop', now())")
    await looked(watch)
    ((_, beat, _),) = query(database_url, "select * from reconciler.generation_marks")
    assert before[0][1] + 1 == beat


async def test_no_call_goes_out_before_a_restore_is_noticed(daemon, database_url):
    """A running relay is back before the watch has looked: its own transaction looks."""
    watch = daemon()
    assert not await may_call(watch)
    await looked(watch)
    assert await may_call(watch)
    query(database_url, ROLL_BACK)
    assert not await may_call(watch)
    assert watch.asked.is_set()
    await looked(watch)
    assert await may_call(watch)
    assert [1, 2] == numbers(database_url)


async def test_a_snapshot_of_after_the_last_mark_is_noticed(daemon, database_url, tmp_path):
    """
    The volume goes back to a moment at which our mark stood where it stands: there is less WAL
    than a running daemon has seen, or than a stopped one has written down.
    """
    watch = daemon("host")
    await looked(watch)
    ran_ahead(watch)
    assert not await may_call(watch)
    await looked(watch)
    assert await may_call(watch)
    assert [1, 2] == numbers(database_url)

    ran_ahead(watch)
    stop = asyncio.Event()
    stop.set()
    await watch.watch(stop, beat=lambda: None)
    await looked(daemon("host"))
    assert [1, 2, 3] == numbers(database_url)
    await looked(daemon("host"))
    assert [1, 2, 3] == numbers(database_url)


def ran_ahead(watch: GenerationWatch) -> None:
    """It saw a terabyte that is gone."""
    assert watch.remembered is not None
    assert watch.remembered.flushed is not None
    watch.remembered = replace(watch.remembered, flushed=watch.remembered.flushed + 2**40)


async def test_of_several_replicas_one_opens_the_generation(daemon, database_url):
    """All of them remember more than the database does, and look at the same time."""
    watches = [daemon(f"host-{number}") for number in range(4)]
    for watch in watches:
        await looked(watch)
    query(database_url, ROLL_BACK)
    async with asyncio.TaskGroup() as replicas:
        for watch in watches:
            replicas.create_task(looked(watch))
    for watch in watches:
        await looked(watch)
        assert await may_call(watch)
    assert [1, 2] == numbers(database_url)


async def test_what_a_restarted_daemon_remembers(daemon, database_url, tmp_path):
    """Its state directory outlives it; a daemon without one cannot know."""
    await looked(daemon("host"))
    query(database_url, ROLL_BACK)
    await looked(daemon())
    assert [1] == numbers(database_url)
    await looked(daemon("host"))
    assert [1, 2] == numbers(database_url)
    await looked(daemon("host"))
    assert [1, 2] == numbers(database_url)
    kept = json.loads((tmp_path / "host" / "generation-0.json").read_text())
    assert [2] == [one["generation"] for one in kept.values()]


async def test_a_memory_that_cannot_be_read_is_none(daemon, tmp_path, database_url):
    """A full disk, a torn file: the daemon starts, and remembers from now on."""
    await looked(daemon("host"))
    (tmp_path / "host" / "generation-0.json").write_text('{"app": ')
    await looked(daemon("host"))
    assert [1] == numbers(database_url)


async def test_two_daemons_of_one_state_directory_keep_apart(daemon, tmp_path, database_url):
    first = Memory(tmp_path / "both")
    second = Memory(tmp_path / "both")
    first.keep("app", MINE)
    second.keep("app", replace(MINE, beat=9))
    assert MINE == first.recall("app")
    assert replace(MINE, beat=9) == second.recall("app")
    first.close()
    second.close()


async def test_a_synchronous_failover_holds_nothing(daemon, database_url):
    """Nothing was lost, and the daemon knows: its mark is where it left it."""
    watch = daemon()
    await looked(watch)
    await waiting(database_url, idempotent=False)
    watch.remembered = replace(watch.remembered, synchronous=True)
    query(database_url, PROMOTE)
    assert not await may_call(watch)
    await looked(watch)
    assert await may_call(watch)
    assert [1] == numbers(database_url)
    assert [("pending",)] == query(database_url, "select state from reconciler.outbox")


async def test_an_asynchronous_failover_counts_as_a_loss(daemon, database_url):
    watch = daemon()
    await looked(watch)
    await waiting(database_url, idempotent=False)
    query(database_url, PROMOTE)
    await looked(watch)
    assert [1, 2] == numbers(database_url)
    held = query(database_url, "select state, last_error from reconciler.outbox")
    assert [("uncertain", RESTORED)] == held


async def test_what_is_held_and_what_goes_out_again(daemon, database_url):
    """By what the destination does with keys, and by how old the key may be at the least."""
    watch = daemon()
    await looked(watch)
    await waiting(database_url, id_=1)
    await waiting(database_url, id_=2, made="25 hours")
    await waiting(database_url, id_=3, made="1 hour", first="25 hours")
    await waiting(database_url, id_=4, made="1 hour", destination="letters", idempotent=False)
    await waiting(database_url, id_=5, made="30 hours", destination="gone")
    await waiting(database_url, id_=6, made="30 hours", state="dead")
    await waiting(database_url, id_=7, made="30 hours", rendered=False)
    query(database_url, ROLL_BACK)
    await looked(watch)
    found = query(database_url, "select event_id, state from reconciler.outbox order by id")
    states = ["pending", "uncertain", "uncertain", "uncertain", "pending", "dead", "pending"]
    assert [(f"evt_{number}", state) for number, state in enumerate(states, 1)] == found
    # its key's clock began when it was made, at the latest: also for a destination to come
    starts = query(
        database_url,
        "select event_id from reconciler.outbox where first_attempt_at <= created_at order by id",
    )
    assert [(f"evt_{number}",) for number in (1, 2, 3, 4, 5)] == starts
    assert [(3,)] == query(database_url, "select max(held) from reconciler.generations")


async def test_holding_goes_on_after_a_crash(daemon, database_url, monkeypatch):
    """Opened and not settled: whoever comes next finishes it, and nobody calls before."""
    monkeypatch.setattr("reconciler.daemon_generation.BATCH", 2)
    watch = daemon()
    await looked(watch)
    for number in range(1, 6):
        await waiting(database_url, id_=number, idempotent=False)
    query(database_url, ROLL_BACK)
    await watch.look()
    assert not await may_call(watch)
    other = daemon()
    await looked(other)
    assert await may_call(watch)
    assert [(5,)] == query(
        database_url, "select count(*) from reconciler.outbox where state = 'uncertain'"
    )


async def test_a_person_says_that_it_was_restored(daemon, engine, database_url):
    """Where the server and the state directory went back together, nothing shows it."""
    watch = daemon()
    await looked(watch)
    await waiting(database_url, idempotent=False)
    assert 2 == await say_restored(engine, actor="ada@host")
    assert not await may_call(watch)
    await looked(watch)
    assert await may_call(watch)
    assert [("uncertain",)] == query(database_url, "select state from reconciler.outbox")
    assert [("ada@host", "restored", {"generation": 2})] == query(
        database_url, "select actor, action, subject from reconciler.actions"
    )


async def test_what_is_asked_for_after_a_restore(daemon, engine, database_url):
    """
    By when it happened. Of the time before: under the key that it had, whose life counts from
    then, or held where there are no keys. Undated, it counts as such while states are healing,
    if it was found and not told. What happened afterwards is news.
    """
    watch = daemon()
    await looked(watch)
    query(database_url, ROLL_BACK)
    await looked(watch)
    query(database_url, "update reconciler.generations set healed_at = null where number = 2")
    now = datetime.now(UTC)
    before, after = now - timedelta(hours=3), now + timedelta(minutes=1)
    mail = {"destination": "letters", "idempotent": False}
    cases: list[tuple[dict[str, Any], str, bool]] = [
        ({"happened_at": before}, "pending", True),
        ({"happened_at": after}, "pending", False),
        ({"found": True}, "pending", True),
        ({}, "pending", False),
        ({"happened_at": before, **mail}, "uncertain", True),
        ({"happened_at": after, **mail}, "pending", False),
        ({"found": True, **mail}, "uncertain", True),
        (dict(mail), "pending", False),
        ({"happened_at": before, "skip": "baseline", **mail}, "skipped", False),
        ({"happened_at": before, "fault": "no", **mail}, "pending", False),
    ]
    entries = [an_entry(number, **case) for number, (case, *_) in enumerate(cases)]
    async with engine.begin() as connection:
        answers = await enqueue(connection, entries)
    assert [state for _, state, _ in cases] == [one.state.value for one in answers]
    rows = query(
        database_url,
        "select state, first_attempt_at is not null from reconciler.outbox order by id",
    )
    assert [(state, dated) for _, state, dated in cases] == rows
    assert RESTORED == answers[4].reason
    assert answers[0].reason is None
    # once every listing has been read, what is found undated is news as well
    query(database_url, "update reconciler.generations set healed_at = now()")
    async with engine.begin() as connection:
        (answer,) = await enqueue(connection, [an_entry(99, found=True, **mail)])
    assert "pending" == answer.state.value


async def test_a_database_that_never_went_back_holds_nothing(daemon, engine, database_url):
    """Old news are sent as ever in the first generation, and before it."""
    old = datetime.now(UTC) - timedelta(days=30)
    for number in range(2):
        async with engine.begin() as connection:
            (answer,) = await enqueue(
                connection, [an_entry(number, happened_at=old, idempotent=False)]
            )
        assert "pending" == answer.state.value
        await looked(daemon())
    assert [(None,)] == query(
        database_url, "select distinct first_attempt_at from reconciler.outbox"
    )


def an_entry(number: int, **facts: Any) -> NewEntry:
    given: dict[str, Any] = {
        "sender": "shop",
        "event_id": f"evt_{number}",
        "effect": "capture",
        "destination": "payments",
        "idempotency_key": f"key_{number}",
        "method": "POST",
        "path": "/",
        **facts,
    }
    return NewEntry(**given)


async def waiting(
    url: str,
    *,
    id_: int = 1,
    destination: str = "payments",
    idempotent: bool = True,
    made: str = "1 second",
    first: str | None = None,
    state: str = "pending",
    rendered: bool = True,
) -> None:
    """An entry of the outbox that waits to be called."""
    query(
        url,
        "insert into reconciler.outbox (id, sender, event_id, effect, destination, idempotent,"
        " state, due_at, created_at, first_attempt_at) values (%s, 'shop', %s, 'capture', %s, %s,"
        " %s, case when %s then now() end, now() - %s::interval, now() - %s::interval)",
        UUID(int=id_),
        f"evt_{id_}",
        destination,
        idempotent,
        state,
        rendered and state == "pending",
        made,
        first,
    )
