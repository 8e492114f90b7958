"""Stories of bulk redrives: worked off by whatever relays run, followed and stopped by command."""

import asyncio
import json
from collections import Counter
from datetime import timedelta

import anyio.to_thread
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from outbox import redrive_runs
from reconciler.cli import main
from reconciler.operations.assembly import assemble
from reconciler.operations.redrive_runs import work_off
from tests.outbox.pretend import Answers
from tests.outbox.world import an_entry, run_sql, until

pytestmark = pytest.mark.anyio

LIFE = timedelta(hours=20)

CONFIGURATION = """
[database]
url = "{url}"

[destinations.payments]
base_url = "https://api.payments.example"
"""


@pytest.fixture
def command(database_url, tmp_path):
    (tmp_path / "reconciler.toml").write_text(CONFIGURATION.format(url=database_url))

    async def run(*words, as_json=True, code=0):
        config = ["--config", str(tmp_path / "reconciler.toml")]
        words = ["outbox", "redrive", *words, *config, *(["--json"] if as_json else [])]
        done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(main, words))
        assert code == done.exit_code, done.output
        return json.loads(done.stdout) if as_json else done.stdout

    return run


async def dead(world, numbers, **fields):
    await world.enqueue(*(an_entry(n, **fields) for n in numbers))
    await run_sql(
        world.engine,
        "update reconciler.outbox set state = 'dead', due_at = null, completed_at = now(),"
        " last_error = 'answered 400' where state = 'pending'",
    )


async def the_run(world):
    async with world.engine.connect() as connection:
        (one,) = await redrive_runs.listed(connection, limit=2)
        return one


async def at_work(world, tmp_path, stop, *, file="reconciler.toml", **how):
    """What the relay role of one replica does about bulk redrives."""
    assembly = assemble(tmp_path / file, environ={})

    async def may(_):
        return True

    await work_off(
        world.engine,
        assembly,
        **{"may_call": may, "beat": lambda: None, "redriven": lambda: None, **how},
        stop=stop,
    )
    await assembly.aclose()


def due(world):
    async def look():
        return (await the_run(world))["state"] != "running"

    return look


async def test_many_are_redriven_in_the_background_by_whatever_relays_run(world, command, tmp_path):
    """
    Two hundred are dead: the command only asks. Two replicas share the work; each entry is
    redriven once, one that stopped after that is not meant, and each knows who wanted it.
    """
    await dead(world, range(1, 201))
    tried = await command("--destination", "payments", "--dry-run", "--limit", "3")
    assert (3, None) == (len(tried["items"]), tried["run"])
    asked = await command("--destination", "payments", "--rate", "1000/s", "--yes", "--reason", "x")
    assert ([], "running") == (asked["items"], asked["run"]["state"])
    assert 200 == asked["counts"]["matching"]
    await dead(world, [201])
    assert {"dead"} == set(await world.states())

    stop = asyncio.Event()
    async with asyncio.TaskGroup() as replicas:
        for _ in range(2):
            replicas.create_task(at_work(world, tmp_path, stop))
        await until(due(world))
        stop.set()
    run = await the_run(world)
    assert ("done", 200, 0) == (run["state"], run["redriven"], run["refused"])
    assert {"pending": 200, "dead": 1} == Counter(await world.states())
    async with world.engine.connect() as connection:
        acts = list(await connection.execute(text(ACTS)))
    assert [("outbox.redrive", "x", 201)] == [tuple(row) for row in acts]
    shown = await command("--status")
    assert ("done", 200, 0) == tuple(
        shown["items"][0][name] for name in ("state", "redriven", "left")
    )


async def test_a_replica_that_does_not_know_the_destination_leaves_it_to_those_that_do(
    world, command, database_url, tmp_path
):
    """
    In the middle of an upgrade one replica has a configuration without `payments`. It has all
    the time in the world, and refuses nothing; the other redrives every entry.
    """
    other = CONFIGURATION.replace("payments]", "ledger]").format(url=database_url)
    (tmp_path / "other.toml").write_text(other)
    await dead(world, range(1, 11))
    await command("--effect", "capture", "--rate", "1000/s", "--yes")
    beats, looked, stop = 0, asyncio.Event(), asyncio.Event()

    def beat():
        nonlocal beats
        beats += 1
        if beats == 2:
            looked.set()

    async with asyncio.TaskGroup() as replicas:
        replicas.create_task(at_work(world, tmp_path, stop, file="other.toml", beat=beat))
        await looked.wait()
        assert ("running", 0, 0) == await standing_of(world)
        replicas.create_task(at_work(world, tmp_path, stop))
        await until(due(world))
        stop.set()
    assert ("done", 10, 0) == await standing_of(world)


async def standing_of(world):
    run = await the_run(world)
    return run["state"], run["redriven"], run["refused"]


ACTS = """select action, reason, count(distinct coalesce(subject ->> 'entry_id', 'the run'))
 from reconciler.actions group by action, reason"""


async def test_a_run_keeps_to_its_rate_and_is_stopped_by_command(world, command, tmp_path):
    """A few go, the person stops it, and what has not gone stays as it is; a stop has no echo."""
    await dead(world, range(1, 11))
    asked = await command("--effect", "capture", "--rate", "1/h", "--yes")
    id_ = asked["run"]["id"]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as replica:
        replica.create_task(at_work(world, tmp_path, stop))

        async def first():
            return (await the_run(world))["redriven"] == 1

        await until(first)
        told = await command("--status", as_json=False)
        assert f"{id_}  running  1" in told
        tried = await command("--stop", id_, "--dry-run")
        assert "stopped" == tried["items"][0]["result"]
        assert "running" == (await the_run(world))["state"]
        for result in ("stopped", "was_over"):
            ended = await command("--stop", id_, "--reason", "they are down again")
            assert result == ended["items"][0]["result"]
        await run_sql(world.engine, "update reconciler.redrive_runs set due_at = now()")
        await asyncio.sleep(0.1)  # for whoever would go on
        stop.set()
    assert {"pending": 1, "dead": 9} == Counter(await world.states())
    await command("--stop", str((await world.entries())[0].id), code=1, as_json=False)


async def test_a_crash_in_the_middle_repeats_nothing_and_loses_nothing(world, command, tmp_path):
    """What a batch did and how far the run is commit together, or not at all."""
    await dead(world, range(1, 121))
    await command("--destination", "payments", "--yes")

    class Gone(BaseException):
        pass

    async def dies(*_):
        raise Gone

    async with world.engine.connect() as connection:
        with pytest.raises(Gone):
            await redrive_runs.work_off(
                connection, key_lives={"payments": LIFE}, passing=(), noted=dies
            )
    assert (0, {"dead"}) == ((await the_run(world))["redriven"], set(await world.states()))
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as replica:
        replica.create_task(at_work(world, tmp_path, stop))
        await until(due(world))
        stop.set()
    assert (120, {"pending"}) == ((await the_run(world))["redriven"], set(await world.states()))


async def test_live_entries_go_before_those_that_were_redriven(world, pretend, command, tmp_path):
    """A hundred are redriven first, then two arrive: at the destination these come first."""
    await dead(world, range(1, 101))
    await command("--destination", "payments", "--rate", "1000/s", "--yes")
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as replica:
        replica.create_task(at_work(world, tmp_path, stop))
        await until(due(world))
        stop.set()
    await world.enqueue(an_entry(901), an_entry(902))
    world.set(concurrency=2)
    pretend.behave = lambda _, __: Answers()
    assert 2 == await world.relay_once()
    assert {"key_901", "key_902"} == set(pretend.keys)
    assert 2 == await world.relay_once()
    assert 4 == len(pretend.keys)


async def test_a_destination_gets_no_more_than_it_works_off(world, command, monkeypatch):
    """A stop must not come too late: a run waits while enough of what it redrove waits."""
    monkeypatch.setattr(redrive_runs, "WAITING", 10)
    await dead(world, range(1, 31))
    await command("--destination", "payments", "--rate", "10000/s", "--yes", "--limit", "25")

    async def nothing(*_):
        return

    async def batch():
        async with world.engine.begin() as connection:
            return await redrive_runs.work_off(
                connection, key_lives={"payments": LIFE}, passing=(), noted=nothing
            )

    monkeypatch.setattr(redrive_runs, "LARGEST", 10)
    assert 10 == (await batch()).redriven
    await run_sql(world.engine, "update reconciler.redrive_runs set due_at = now()")
    assert 0 == (await batch()).redriven
    await run_sql(world.engine, "update reconciler.outbox set state = 'delivered' where redriven")
    gone = []
    while (await the_run(world))["state"] == "running":
        await run_sql(world.engine, "update reconciler.redrive_runs set due_at = now()")
        gone.append((await batch()).redriven)
        await run_sql(
            world.engine, "update reconciler.outbox set state = 'delivered' where redriven"
        )
    assert [10, 5] == gone
