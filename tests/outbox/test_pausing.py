"""What a person pauses and resumes by the command line: over restarts, told, and noted."""

import json

import anyio.to_thread
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from outbox import relay
from outbox.enqueue import enqueue
from reconciler.cli import main
from tests.outbox.world import an_entry

pytestmark = pytest.mark.anyio

CONFIGURATION = """
[database]
url = "{url}"

[senders.shop]
preset = "generic"
secrets = ["env:SECRET"]

[destinations.payments]
base_url = "https://api.payments.example"

[destinations.desk]
base_url = "https://desk.example"

[effects.capture]
on = ["shop:paid"]
destination = "payments"
request = "POST /v1/charges"
"""


@pytest.fixture
def command(database_url, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "s" * 32)
    (tmp_path / "reconciler.toml").write_text(CONFIGURATION.format(url=database_url))

    async def run(*words, as_json=True):
        config = ["--config", str(tmp_path / "reconciler.toml")]
        words = [*words, *config, *(["--json"] if as_json else [])]
        done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(main, words))
        return (done.exit_code, json.loads(done.stdout)) if as_json else done

    return run


async def noted(engine):
    async with engine.connect() as connection:
        rows = await connection.execute(
            text("select action, subject, reason from reconciler.actions order by id")
        )
        return [tuple(row) for row in rows]


async def test_a_destination_is_paused_and_resumed_by_command(world, pretend, command):
    """
    Asked twice it is paused once, and says since when. Whoever looks is told what waits, for
    what, since when, by whom and why; a relay that starts now sends nothing, until it is resumed.
    """
    (entry,) = await world.enqueue(an_entry())
    asked = ("--destination", "payments", "--reason", "they asked us to")
    tried, planned = await command("outbox", "pause", *asked, "--dry-run")
    assert (0, "paused", 1) == (
        tried,
        planned["items"][0]["result"],
        planned["items"][0]["waiting"],
    )
    assert [] == await noted(world.engine)

    for result in ("paused", "already_paused"):
        code, said = await command("outbox", "pause", *asked)
        (item,) = said["items"]
        assert (0, result, "they asked us to") == (code, item["result"], item["reason"])
    assert 0 == await world.relay_once()
    assert [] == pretend.calls

    _, shown = await command("outbox", "show", str(entry.id))
    assert "pause" == shown["waiting_for"]
    assert (None, "they asked us to") == (shown["paused"]["effect"], shown["paused"]["reason"])
    _, status = await command("status")
    assert "they asked us to" == status["outbox"]["destinations"]["payments"]["paused"]["reason"]
    for words in (["status"], ["outbox", "show", str(entry.id)]):
        told = (await command(*words, as_json=False)).stdout
        (line,) = [line for line in told.splitlines() if "they asked us to" in line]
        assert f"since {item['paused_at'][:10]}" in line
        assert f"by {item['actor']}: they asked us to" in line

    for result in ("resumed", "not_paused"):
        code, said = await command(
            "outbox", "resume", "--destination", "payments", "--reason", "they are back"
        )
        assert (0, result) == (code, said["items"][0]["result"])
    assert 1 == await world.relay_once()
    assert [
        ("outbox.pause", {"destination": "payments"}, "they asked us to"),
        ("outbox.resume", {"destination": "payments"}, "they are back"),
    ] == await noted(world.engine)


async def test_an_effect_is_paused_where_it_goes_and_names_are_held_against_the_configuration(
    world, pretend, command
):
    """A pause of a name that nobody has would stop nothing: it is refused, and says which exist."""
    await world.enqueue(an_entry(1), an_entry(2, effect="receipt"))
    why = ("--reason", "a wrong template")
    for wrong in (["--destination", "paymnets"], ["--effect", "captrue"], []):
        refused = await command("outbox", "pause", *wrong, *why, as_json=False)
        assert 2 == refused.exit_code, refused.output
    for reason in ([], ["--reason", " "]):
        without = await command("outbox", "pause", "--effect", "capture", *reason, as_json=False)
        assert 2 == without.exit_code, without.output
    elsewhere = ["--destination", "desk", "--effect", "capture"]
    refused = await command("outbox", "pause", *elsewhere, *why, as_json=False)
    assert (2, True) == (refused.exit_code, "capture goes to payments" in refused.output)
    assert [] == await noted(world.engine)

    code, said = await command("outbox", "pause", "--effect", "capture", *why)
    (item,) = said["items"]
    assert (0, "payments", "capture", 1) == (
        code,
        *(item[name] for name in ("destination", "effect", "waiting")),
    )
    assert 1 == await world.relay_once()
    assert ["key_2"] == pretend.keys
    _, whole = await command("outbox", "resume", "--destination", "payments", *why)
    assert "not_paused" == whole["items"][0]["result"]
    resumed = await command("outbox", "resume", "--effect", "capture", *why, as_json=False)
    assert "capture at payments is resumed, after a pause since" in resumed.stdout
    assert 1 == await world.relay_once()


async def test_a_call_under_way_when_its_destination_is_paused_ends_as_it_will(
    world, pretend, command
):
    """It is delivered; what comes behind it waits."""
    from tests.outbox.pretend import Answers, Misbehaves, in_turn

    pretend.behave = in_turn(Misbehaves("answers_late"), Answers())
    async with world.running():
        async with world.engine.begin() as connection:
            await enqueue(connection, [an_entry(1)])
        await world.until(lambda: pretend.in_flight == 1)
        await command("outbox", "pause", "--destination", "payments", "--reason", "now")
        await world.enqueue(an_entry(2))
        pretend.release.set()
        await world.until(lambda: delivered(world))
    assert 0 == await relay.run_once(world.engine, world.destinations, world.policy)
    assert ["delivered", "pending"] == await world.states()


async def delivered(world):
    return "delivered" in await world.states()
