"""What operators do to the outbox by the command line: chosen, tried out, confirmed, noted."""

import json

import pytest
from click.testing import CliRunner
from sqlalchemy import text

from outbox.enqueue import enqueue
from reconciler.cli import main
from tests.outbox.world import an_entry

CONFIGURATION = """
[database]
url = "{url}"

[destinations.payments]
base_url = "https://api.payments.example"
"""

pytestmark = pytest.mark.anyio


@pytest.fixture
async def entries(engine, database_url, tmp_path):
    """Four entries: delivered, dead an hour ago, dead now, waiting; and a configuration."""
    (tmp_path / "reconciler.toml").write_text(CONFIGURATION.format(url=database_url))
    async with engine.begin() as connection:
        made = await enqueue(connection, [an_entry(number) for number in (1, 2, 3, 4)])
        await connection.execute(
            text(
                "update reconciler.outbox set due_at = null, completed_at = now(),"
                " state = case event_id when 'evt_1' then 'delivered' else 'dead' end,"
                " last_error = case event_id when 'evt_1' then null else 'answered 400' end,"
                " created_at = now() - case event_id when 'evt_2' then interval '1 hour'"
                " else interval '0' end where event_id <> 'evt_4'"
            )
        )
    return [str(one.id) for one in made]


@pytest.fixture
def outbox(tmp_path):
    def command(*words, as_json=True):
        config = ["--config", str(tmp_path / "reconciler.toml")]
        flags = ["--json"] if as_json else []
        return CliRunner().invoke(main, ["outbox", *words, *config, *flags])

    return command


async def rows(engine, statement):
    async with engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(text(statement))]


NOTED = "select action, reason, subject ->> 'entry_id' from reconciler.actions order by id"


async def in_thread(outbox, *words, **how):
    import anyio.to_thread

    return await anyio.to_thread.run_sync(lambda: outbox(*words, **how))


async def test_a_call_is_repeated_only_by_its_typed_id(engine, entries, outbox):
    """Nothing, a yes, or another id is no confirmation; a dry run shows it and keeps nothing."""
    delivered, dead, *_ = entries
    for words in ([], ["--yes"], ["--confirm", dead], ["--confirm", delivered[:8]]):
        done = await in_thread(outbox, "repeat", delivered, *words)
        assert 4 == done.exit_code, done.output
    tried = await in_thread(outbox, "repeat", delivered, "--dry-run")
    assert (0, True) == (tried.exit_code, json.loads(tried.stdout)["dry_run"])
    assert [(4,)] == await rows(engine, "select count(*) from reconciler.outbox")

    words = ["--confirm", delivered, "--reason", "they lost it"]
    done = await in_thread(outbox, "repeat", delivered, *words)
    assert 0 == done.exit_code, done.output
    (item,) = json.loads(done.stdout)["items"]
    assert ("repeated", "key_1:r1", 1) == (
        item["result"],
        item["new"]["idempotency_key"],
        item["new"]["repetition"],
    )
    assert [(1, "pending", "key_1:r1")] == await rows(
        engine,
        "select repetition, state, idempotency_key from reconciler.outbox where repetition > 0",
    )
    assert [("outbox.repeat", "they lost it", delivered)] == await rows(engine, NOTED)
    refused = await in_thread(outbox, "repeat", entries[3], "--confirm", entries[3])
    assert 1 == refused.exit_code
    assert "pending" == json.loads(refused.stdout)["items"][0]["refusal"]


async def test_entries_are_chosen_by_age_state_and_reason(engine, entries, outbox):
    _, old, new, waiting = entries

    async def listed(*words):
        found = await in_thread(outbox, "list", *words)
        assert 0 == found.exit_code, found.output
        return [item["id"] for item in json.loads(found.stdout)["items"]], found.stderr

    assert [old] == (await listed("--older-than", "30m"))[0]
    assert [new] == (await listed("--younger-than", "30m", "--state", "dead"))[0]
    assert [new, old] == (await listed("--reason-like", "ANSWERED 400"))[0]
    none, said = await listed("--destination", "paymnets")
    assert ([], True) == (none, "no destination 'paymnets' is configured" in said)

    words = ["--older-than", "30m", "--reason", "stale"]
    assert 4 == (await in_thread(outbox, "discard", *words)).exit_code
    tried = await in_thread(outbox, "discard", *words, "--dry-run")
    assert [old] == [item["id"] for item in json.loads(tried.stdout)["items"]]
    assert [] == await rows(engine, NOTED)
    assert 0 == (await in_thread(outbox, "discard", *words, "--yes")).exit_code
    assert 0 == (await in_thread(outbox, "redrive", "--older-than", "0s", "--yes")).exit_code
    told = ["--state", "pending", "--effect", "capture", "--reason", "none", "--yes"]
    assert 0 == (await in_thread(outbox, "discard", *told)).exit_code
    assert [
        ("outbox.discard", "stale", old),
        ("outbox.redrive", None, new),
        ("outbox.discard", "none", new),
        ("outbox.discard", "none", waiting),
    ] == await rows(engine, NOTED)
    assert 2 == (await in_thread(outbox, "discard", "--reason", "x")).exit_code
