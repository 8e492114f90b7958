"""Who calls: credentials are added at the moment of the call, and are nowhere else."""

from base64 import b64decode
from datetime import timedelta

import pytest
from sqlalchemy import text

from outbox.destinations import Request
from tests.outbox.pretend import Answers, Misbehaves, in_turn
from tests.outbox.world import an_entry

pytestmark = pytest.mark.anyio

SECRET = "sk_live_XYZZY"  # noqa: S105


async def test_basic_credentials_are_user_and_password(world):
    """Twilio, Mailgun, Mollie: RFC 7617, in UTF-8; a key as the user and no password (Stripe)."""
    for user, password in (("AC1", "tökén"), (SECRET, "")):
        channel = world.channel(basic=(user, lambda password=password: password))
        await channel.send(a_request(), timeout=timedelta(seconds=5))
        scheme, _, value = world.pretend.calls[-1].headers["authorization"].partition(" ")
        assert ("Basic", f"{user}:{password}") == (scheme, b64decode(value).decode())


async def test_query_parameters_of_the_destination_follow_those_of_the_call(world):
    channel = world.channel(query={"api_key": lambda: "a b&c", "v": "2"})

    await channel.send(a_request(), timeout=timedelta(seconds=5))
    await channel.send(a_request(path="/v1?x=1"), timeout=timedelta(seconds=5))

    assert ["/v1/charges?api_key=a%20b%26c&v=2", "/v1?x=1&api_key=a%20b%26c&v=2"] == [
        call.target for call in world.pretend.calls
    ]


async def test_credentials_are_nowhere_but_in_the_call(world, caplog):
    """P18: whatever goes wrong, no table of the outbox and no reason holds a credential."""
    world.set(
        channel=world.channel(
            basic=("user", SECRET), query={"token": SECRET}, headers={"X-Api-Key": SECRET}
        )
    )
    world.pretend.behave = in_turn(Misbehaves("resets"), Answers(status=500), Answers(status=422))
    await world.enqueue(an_entry())

    for _ in range(3):
        await world.relay_once()
        await world.time_passes(timedelta(hours=1))

    assert 3 == len(world.pretend.calls)
    assert all(SECRET in call.target for call in world.pretend.calls)
    async with world.engine.connect() as connection:
        for table in ("outbox", "outbox_attempts"):
            rows = await connection.execute(text(f"select t::text from reconciler.{table} t"))  # noqa: S608
            assert not [row for row in rows if SECRET in row[0]]
    assert SECRET not in caplog.text


async def test_every_attempt_has_the_same_bytes_and_key(world):
    """P7, C77, C78: over lost answers and errors, one key, one body, to the byte."""
    world.pretend.behave = in_turn(Misbehaves("resets"), Answers(status=503), Answers())
    await world.enqueue(an_entry(body=b"a%5Bb%5D=1&key=key_1", headers={"Content-Type": "x/y"}))

    for _ in range(3):
        await world.relay_once()
        await world.time_passes(timedelta(hours=1))

    assert ["delivered"] == await world.states()
    sent = [(call.key, call.target, call.body) for call in world.pretend.calls]
    assert [("key_1", "/v1/charges", b"a%5Bb%5D=1&key=key_1")] * 3 == sent


def a_request(**changes):
    fields = {
        "method": "POST",
        "path": "/v1/charges",
        "headers": {},
        "body": b"{}",
        "idempotency_key": "key_1",
        "idempotent": True,
    }
    return Request(**fields | changes)
