"""A database that went back in time: restored, rolled back, failed over. See docs/restore.md."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest

from reconciler.embedded_binaries import binaries_directory
from reconciler.proving.misbehaving_http import Answer
from tests.world import CONFIGURATION, World, a_world, eventually, order_event, refund_event

pytestmark = pytest.mark.anyio

RESTORED = "restored: a future that the database does not know any more may have sent it"

LETTERS = """
[destinations.letters]
base_url = "@destination@"
timeout = "3s"
allow_private = ["127.0.0.0/8"]
idempotent = false

[effects.letter]
on = ["shop:refund.succeeded"]
destination = "letters"
request = "POST /v1/letters"
json = { reference = "letter {{ event_id }}" }
"""


def program(name: str, url: str) -> str:
    """pg_dump and pg_restore of the server's own version, where there are any."""
    with psycopg.connect(url) as connection:
        major = connection.info.server_version // 10000
    system = Path(f"/usr/lib/postgresql/{major}/bin") / name
    return str(system if system.exists() else binaries_directory() / name)


async def dump(world: World) -> Path:
    """What the nightly backup does."""
    file = world.directory / "backup.dump"
    command = [program("pg_dump", world.database_url), "--format=custom", f"--file={file}"]
    await ran(*command, f"--dbname={world.database_url}")
    return file


async def restore(world: World, file: Path) -> None:
    command = [program("pg_restore", world.database_url), "--clean", "--if-exists", "--no-owner"]
    await ran(*command, f"--dbname={world.database_url}", str(file))
    await world.time_passes()


async def ran(*command: str) -> None:
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr


#: Two days have passed for two of what the backup has waiting.
OLD = """
update reconciler.outbox set created_at = created_at - interval '47 hours',
       first_attempt_at = first_attempt_at - interval '47 hours'
 where key in ('ord_0', 'ord_1')
"""


def busy(world: World, status: int) -> None:
    """The destination puts every call off."""
    later = Answer(status=status, headers={"Retry-After": "600"}, body={})
    world.destination.troubles = [later] * 100


async def at_ease(world: World) -> None:
    """The destination performs what it is asked for, and has been asked long enough ago."""

    async def put_off() -> bool:
        return not await world.rows(
            "select 1 from reconciler.outbox"
            " where state = 'pending' and (attempts = 0 or call_open)"
        )

    await eventually(put_off)
    world.destination.troubles.clear()
    await world.time_passes()


async def paid(world: World, key: str, *, age: float = 0.0) -> dict:
    """An order is paid, and its webhook arrives."""
    data = world.sender.sets(key, status="paid", paid=True, age=age)
    await world.outcome(order_event(f"evt_{key}", data, type_="order.created"))
    return data


async def test_c132_a_backup_is_restored_two_days_later(world: World):
    """
    A dump with five calls that wait, two of them old. They are made; the provider forgets the old
    keys in time; an order is deleted, another is paid. Then the dump is restored. What is young is
    called again under its key, what is old is held, what was deleted stays deleted, and what the
    dump never knew is found again under the key that it had. Nobody is charged twice, although the
    first daemon that notices dies while it holds.
    """
    busy(world, 503)
    async with world.serving():
        await world.baseline_over()
        for number in range(5):
            await paid(world, f"ord_{number}")
        await world.outcome(order_event("evt_gone", world.sender.sets("ord_gone")))
        backup = await dump(world)
        await at_ease(world)  # from here on it is the future that will be lost
        await paid(world, "ord_5")
        charged = [f"capture ord_{number}" for number in range(6)]
        await world.effects(*charged)
        del world.sender.orders["ord_gone"]
        await world.outcome(
            order_event("evt_del", {"order_id": "ord_gone", "version": 9}, type_="order.deleted")
        )
        await world.settled()
    calls = len(world.destination.calls)

    await restore(world, backup)
    await world.rows(OLD)
    await world.dies_at("between-holds")
    async with world.serving() as daemon:
        await eventually(lambda: healed(world))
        await world.settled()
        assert await daemon.shown("/readyz") is not None
        metrics = await daemon.shown("/metrics")
        assert metrics is not None
        assert "reconciler_generation 2.0" in metrics

    assert sorted(charged) == world.destination.effects
    assert set(world.destination.keys[calls:]) <= set(world.destination.keys[:calls])
    entries = {row["key"]: row for row in await world.outbox()}
    held = {key for key, row in entries.items() if row["state"] == "uncertain"}
    assert {"ord_0", "ord_1"} == held
    assert {RESTORED} == {entries[key]["last_error"] for key in held}
    assert {"ord_2", "ord_3", "ord_4", "ord_5"} == {
        key for key, row in entries.items() if row["state"] == "delivered"
    }
    assert await world.value("select deleted from reconciler.resources where key = 'ord_gone'")
    generation = await world.rows("select * from reconciler.generations where number = 2")
    assert [2] == [row["held"] for row in generation]
    assert "its tables were made anew" in generation[0]["reason"]


async def healed(world: World) -> bool:
    return bool(
        await world.rows(
            "select 1 from reconciler.generations where number > 1 and healed_at is not null"
        )
    )


async def test_c132_what_a_destination_without_keys_may_have_got_is_held(
    tmp_path: Path, database_url: str
):
    """
    Letters know no keys: what waited when the backup was made may be in the post. So may what the
    sender tells again of the time before the restore. What happens afterwards is news.
    """
    configuration = CONFIGURATION + LETTERS
    async with a_world(tmp_path, database_url, configuration=configuration) as world:
        world.destination.idempotent = False
        busy(world, 429)  # nothing is done, ask again
        async with world.serving():
            await world.baseline_over()
            await world.outcome(refund_event("evt_1"))
            backup = await dump(world)
            await at_ease(world)
            await world.outcome(refund_event("evt_2"))
            await eventually(lambda: posted(world, "letter evt_1", "letter evt_2"))
            await world.settled()

        await restore(world, backup)
        async with world.serving():
            await eventually(lambda: healed(world))
            await world.outcome(refund_event("evt_2", age=60))
            await world.outcome(refund_event("evt_3", age=-2))
            await eventually(lambda: posted(world, *(f"letter evt_{n}" for n in (1, 2, 3))))
            await world.settled()
        held = await world.rows(
            "select event_id, last_error from reconciler.outbox"
            " where effect = 'letter' and state = 'uncertain' order by 1"
        )
        expected = [{"event_id": id_, "last_error": RESTORED} for id_ in ("evt_1", "evt_2")]
        assert expected == held


async def posted(world: World, *letters: str) -> bool:
    return sorted(letters) == [
        effect for effect in world.destination.effects if effect.startswith("letter")
    ]


async def test_c132_a_data_directory_that_was_rolled_back_is_noticed(
    tmp_path: Path, database_url: str
):
    """
    The server's directory is copied while it stands, and copied back: nothing in the database
    tells of it. The daemon's state directory remembers more than the database knows.
    """
    state = tmp_path / "state"
    configuration = private(CONFIGURATION, state)
    async with a_world(tmp_path, database_url, configuration=configuration) as world:
        async with world.serving("--role", "receiver,reconciler"):
            world.database_url = (await world.document("status"))["database"]["url"]
            await world.baseline_over()
            await paid(world, "ord_1")
        data = next(path for path in state.iterdir() if path.name.startswith("pg"))
        copy = tmp_path / "copy"
        await ran("cp", "-a", str(data), str(copy))
        async with world.serving():
            await paid(world, "ord_2")
            await world.effects("capture ord_1", "capture ord_2")
            await world.settled()
        shutil.rmtree(data)
        await ran("cp", "-a", str(copy), str(data))

        async with world.serving() as daemon:
            await eventually(lambda: healed(world))
            await world.settled()
            assert "it is older than what this daemon remembers" in daemon.log
            await world.effects("capture ord_1", "capture ord_2")
            assert ["delivered", "delivered"] == [row["state"] for row in await world.outbox()]


def private(configuration: str, state: Path) -> str:
    """*configuration* on the private PostgreSQL, where no tables of the user's are."""
    head, *steps = configuration.split("[[senders.shop.apply]]")
    rest = steps[-1][steps[-1].index("[destinations.payments]") :]
    served = f'[server]\nstate_directory = "{state}"'
    return (head + rest).replace('url = "@database@"', "").replace("[server]", served)
