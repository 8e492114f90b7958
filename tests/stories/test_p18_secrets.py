"""P18, secrets stay out: a canary in every place that can hold one, and a look everywhere."""

import asyncio
import base64
import json
import os
import sys
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from reconciler.proving.misbehaving_http import Answer, Request
from tests.world import CONFIGURATION, World, a_world, eventually, order_event, refund_event

pytestmark = pytest.mark.anyio

#: By the variable that carries it; long enough that none is found by chance.
CANARIES = {
    "SHOP_SECRET": "canary-signing-secret-4711",
    "SHOP_SECRET_OLD": "canary-signing-secret-before-0815",
    "SHOP_TOKEN": "canary-token-of-the-api-2357",
    "SHOP_HEADER": "canary-header-of-the-api-1123",
    "ADMIN_TOKEN": "canary-admin-token-that-is-long-enough-5813",
    "PAY_TOKEN": "canary-token-of-the-destination-2134",
    "PAY_HEADER": "canary-header-of-the-destination-5589",
    "DATABASE_PASSWORD": "canary-password-of-the-database-3377",
}
DELIVERED = {
    "Authorization": "Bearer canary-delivered-token-6102",
    "Cookie": "session=canary-delivered-cookie-9871",
    "X-Api-Key": "canary-delivered-key-5971",
    "X-Note": f"a proxy put {CANARIES['SHOP_SECRET_OLD']} here",
}

SECRETIVE = (
    CONFIGURATION.replace(
        'secrets = ["env:SHOP_SECRET"]', 'secrets = ["env:SHOP_SECRET", "env:SHOP_SECRET_OLD"]'
    )
    .replace(
        'bearer = "env:SHOP_TOKEN"',
        'bearer = "env:SHOP_TOKEN"\nheaders = { X-Shop = "env:SHOP_HEADER" }',
    )
    .replace(
        '[destinations.payments]\nbase_url = "@destination@"',
        '[destinations.payments]\nbase_url = "@destination@"\nbearer = "env:PAY_TOKEN"\n'
        'headers = { X-Pay = "env:PAY_HEADER" }',
    )
    .replace("[server]\n", '[server]\nadmin_token = "env:ADMIN_TOKEN"\n')
    .replace('url = "@database@"\n', 'url = "@database@"\npassword = "env:DATABASE_PASSWORD"\n')
)

#: One process, as most of a command's time is imports.
MANY_COMMANDS = """\
import contextlib, io, json, os, sys
from reconciler.cli import main

told = []
usual = dict(os.environ)
for words, environ in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update(usual | environ)
    text, code = io.StringIO(), 0
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            main([*words, "--config", sys.argv[1]])
        except SystemExit as end:
            code = end.code
    told.append([code, text.getvalue()])
json.dump(told, sys.stdout)
"""

COMMANDS = (
    ["check"],
    ["status"],
    ["events", "list"],
    ["events", "show", "shop", "evt_1"],
    ["events", "list", "--outcome", "quarantined"],
    ["outbox", "list"],
    ["reconcile", "shop", "order", "ord_1"],
    ["reconcile", "shop", "--dry-run"],
    ["migrate"],
)
#: A secret where a reference should be, and other places where people put one by mistake.
MISTAKES = {
    "RECONCILER_SENDERS__SHOP__SECRETS": '["canary-signing-secret-4711"]',
    "RECONCILER_SENDERS__SHOP__API__BEARER": "canary-token-of-the-api-2357",
    "RECONCILER_DESTINATIONS__PAYMENTS__BEARER": "env:canary-token-of-the-destination-2134",
    "RECONCILER_DESTINATIONS__PAYMENTS__BASE_URL": "http://me:canary-header-of-the-api-1123@[x",
    "RECONCILER_DATABASE__URL": "postgresql://me:canary-password-of-the-database-3377@127.0.0.1/x",
    "PAY_TOKEN": "canary-token-of-the-destination-2134\nin-two-lines",
    "RECONCILER_SERVER__ADMIN_TOKEN": "canary-admin-token-that-is-long-enough-5813",
}


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    async with a_world(tmp_path, database_url, configuration=SECRETIVE) as world:
        yield world


def environment() -> dict[str, str]:
    """The canaries; the database's own password, where it asks for one, is one of them."""
    password = os.environ.get("PGPASSWORD")  # see the fixture `cluster`
    return CANARIES | ({"DATABASE_PASSWORD": password} if password else {})


def found_in(text: str, canaries: list[str]) -> list[str]:
    """Which of *canaries* stand in *text*, as they are or encoded as one often is."""
    forms = {
        form: canary
        for canary in canaries
        for line in [canary, *canary.split("\n")]
        for form in (
            line,
            line.encode().hex(),
            urllib.parse.quote(line, safe=""),
            json.dumps(line)[1:-1],
            base64.b64encode(line.encode()).decode().rstrip("=")[:-1],
        )
        if len(line) > 12
    }
    return sorted({canary for form, canary in forms.items() if form in text})


def test_p18_the_look_finds_what_is_there():
    """A search that never finds anything would prove nothing."""
    for canary in CANARIES.values():
        line = canary.split("\n")[0]
        for text in (line, line.encode().hex(), base64.b64encode(line.encode()).decode()):
            assert [canary] == found_in(f"x{text}y", [canary])


async def test_p18_no_canary_is_found_anywhere(world: World):
    """
    Deliveries that are right and wrong, an API and a destination that refuse us and repeat what
    we sent them, and every mistake that people make with secrets. Afterwards none of them stands
    in the log, the metrics, any table, or what any command says.
    """
    variables = environment()

    def echoed(request: Request) -> Answer:
        told = json.dumps(dict(request.headers))
        return Answer(status=401, body={"error": told}, headers={"Location": told.replace(" ", "")})

    world.sender.instead = world.destination.instead = echoed
    texts: dict[str, str] = {}
    async with world.serving(**variables) as daemon:
        paid = order_event("evt_1", world.sender.sets("ord_1", status="paid", paid=True))
        for event in (paid, refund_event("evt_2"), b"not JSON", {"id": "evt_3"}):
            for secret in (variables["SHOP_SECRET"], "another-secret"):
                await world.deliver(event, secret=secret, headers=DELIVERED)

        async def tried() -> bool:
            attempted = await world.value("select count(*) from reconciler.outbox_attempts")
            scanned = await world.rows("select 1 from reconciler.scans where last_error <> ''")
            return attempted >= 2 and bool(scanned)

        await eventually(tried)
        for path in ("/metrics", "/livez", "/readyz", "/nowhere"):
            answer = await world.http.get(daemon.admin + path)
            texts[path] = f"{answer.headers} {answer.text}"
    texts["log"] = daemon.log
    texts |= await told_by_commands(world, variables)
    texts |= await stored(world)

    canaries = [*variables.values(), *(value for value in DELIVERED.values())]
    canaries += [value.split()[-1].split("=")[-1] for value in DELIVERED.values()]
    leaks = {place: found for place, text in texts.items() if (found := found_in(text, canaries))}
    assert {} == leaks


async def told_by_commands(world: World, variables: dict[str, str]) -> dict[str, str]:
    """What every command says, with the right configuration, a wrong one, and no database."""
    runs = [([*words, *form], {}, None) for words in COMMANDS for form in ([], ["--json"])]
    runs += [(["check"], {name: value}, 78) for name, value in MISTAKES.items()]
    nowhere = {"RECONCILER_DATABASE__URL": "postgresql://nobody@127.0.0.1:9/nowhere"}
    runs.append((["status"], nowhere, 69))
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MANY_COMMANDS, str(world.config)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**world.environment, **variables},
        cwd=world.directory,
    )
    answers, _ = await started.communicate(json.dumps([run[:2] for run in runs]).encode())
    texts = {}
    for (words, environ, expected), (code, text) in zip(runs, json.loads(answers), strict=True):
        assert expected is None or expected == code, (words, environ, text)
        texts[" ".join([*environ, *words])] = text
    return texts


async def stored(world: World) -> dict[str, str]:
    """Every row of every table of ours, as text."""
    tables = await world.rows("select tablename from pg_tables where schemaname = 'reconciler'")
    found = {}
    for name in (row["tablename"] for row in tables):
        rows = await world.rows(f"select t::text as row from reconciler.{name} t")  # noqa: S608
        found[f"table {name}"] = "\n".join(row["row"] for row in rows)
    assert found["table processed_events"]
    assert found["table event_bodies"]
    return found
