"""Python handlers: found, run inside the transaction, and unable to harm it."""

import sys
from dataclasses import replace
from decimal import Decimal

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, insert, select, text
from sqlalchemy.exc import IntegrityError

from reconciler.errors import ConfigError
from reconciler.ledger.event import Change
from reconciler.ledger.handlers import handler, load, marks_of
from reconciler.ledger.reactions import UserStepError, react

from .shop import CAPTURE, PENDING, SKIPPED, change, fact, problems_of, rows, rules_for

pytestmark = pytest.mark.anyio

refunds = Table(
    "refunds",
    MetaData(),
    Column("source_event", Text, primary_key=True),
    Column("amount", Integer),
)


@pytest.fixture
async def connection(engine):
    async with engine.connect() as connection, connection.begin():
        await connection.exec_driver_sql(
            "create table refunds (source_event text primary key, amount integer)"
        )
        yield connection


def rules_with(*functions, text=""):
    return rules_for(text, [one for function in functions for one in marks_of(function)])


async def test_a_handler_writes_and_asks_in_the_events_transaction(connection):
    """The documentation's own example: a row of the user's, and a call under event_id:credit."""

    @handler("shop", on="refund.succeeded")
    async def record_refund(event, tx):
        amount = event.body["data"]["amount"]
        await tx.execute(insert(refunds).values(source_event=event.event_id, amount=amount))
        await tx.send(
            "payments", "POST /v1/credits", json={"amount": Decimal("1.50")}, effect="credit"
        )

    rules = rules_with(record_refund)

    [[asked]] = await react(connection, rules, [fact("evt_1", body={"data": {"amount": 3}})])

    assert [("evt_1", 3)] == await rows(connection, "select * from refunds")
    assert ("credit", "evt_1:credit", PENDING) == (
        asked.effect, asked.idempotency_key, asked.state,
    )  # fmt: skip
    assert [
        ("POST", "/v1/credits", b'{"amount":1.50}', {"content-type": "application/json"}, True)
    ] == await rows(
        connection, "select method, path, body, headers, ordered from reconciler.outbox"
    )


async def test_a_change_gives_the_handlers_call_the_key_of_the_change(connection):
    """Whoever found out, webhook or scan: one key. A deletion has its own."""

    @handler("shop", on_change="order")
    async def tell(event, tx):
        await tx.send("mailer", "POST /v1/told", effect="tell")

    rules = rules_with(tell)
    deleted = change(became=Change.DELETED, event_id="evt_8")

    asked = await react(connection, rules, [change(), deleted])

    assert ["shop:order:ord_42:7:tell", "shop:order:ord_42:7:tell:deleted"] == [
        one.idempotency_key for [one] in asked
    ]
    assert not asked[0][0].entry.idempotent
    assert b"" == asked[0][0].entry.body


async def test_a_caught_error_leaves_the_transaction_usable(connection):
    """
    A handler meets a unique violation, takes it for "already there", and writes its audit row:
    the statement ran under a savepoint (C38).
    """

    @handler("shop", on="refund.*")
    async def record(event, tx):
        try:
            await tx.execute(insert(refunds).values(source_event="evt", amount=1))
        except IntegrityError:
            await tx.execute(insert(refunds).values(source_event="audit", amount=0))

    await react(connection, rules_with(record), [fact("evt_1"), fact("evt_2")])

    assert [("audit", 0), ("evt", 1)] == sorted(await rows(connection, "select * from refunds"))


async def test_text_statements_take_names_and_percent_signs(connection):
    """`:name` in a text is a parameter, `::` and `'%'` are PostgreSQL's."""
    seen = []

    @handler("shop", on="refund.*")
    async def ask(event, tx):
        found = await tx.execute("select :a::int + 1, '%s :b', 7 % 4, (array[1,2])[1:1]", {"a": 1})
        seen.append(tuple(found.one()))
        found = await tx.execute(text("select cast(:a as text)"), {"a": "x"})
        seen.append(tuple(found.one()))
        await tx.execute("insert into refunds values (:id, :n)", {"id": "a", "n": 5})
        seen.append(tuple((await tx.execute(select(refunds))).one()))

    await react(connection, rules_with(ask), [fact()])

    assert [(2, "%s :b", 3, [1]), ("x",), ("a", 5)] == seen


@pytest.mark.parametrize("statement", ["commit", "rollback", text("COMMIT"), "set a.b = 'c'"])
async def test_a_handler_cannot_end_the_transaction(connection, statement):
    """What it wrote stands or falls with the event."""

    @handler("shop", on="refund.*")
    async def end(event, tx):
        await tx.execute(statement)

    with pytest.raises(UserStepError, match="must neither end"):
        await react(connection, rules_with(end), [fact()])


async def test_what_a_handler_raises_blames_its_event(connection):
    """The ledger rolls back and knows whom to quarantine."""

    @handler("shop", on="refund.*")
    async def fail(event, tx):
        raise LookupError(event.event_id)

    with pytest.raises(UserStepError) as caught:
        await react(connection, rules_with(fail), [fact("evt_1")])

    assert "evt_1" == caught.value.event.event_id
    assert caught.value.where.startswith("handlers.")
    assert "LookupError: evt_1" in str(caught.value)


@pytest.mark.parametrize(
    ("send", "says"),
    [
        ({"destination": "paymnts"}, "'payments'"),
        ({"request": "v1/credits"}, "METHOD /path"),
        ({"request": "POST /a b"}, "percent-encoded"),
        ({"request": "POST /a/../b"}, ".."),
        ({"request": "POST //evil.example/"}, "one /"),
        ({"effect": "Credit"}, "name"),
        ({"effect": "capture"}, "effects.capture"),
        ({"json": {"amount": 1.5}}, "Decimal"),
        ({"json": {"a": object()}}, "JSON"),
        ({"headers": {"Authorization": "x"}}, "destination"),
        ({"headers": {"X-A": "a\r\nX-B: b"}}, "printable"),
        ({"headers": {"Idempotency-Key": "x"}}, "idempotency_key"),
        ({"key": "  "}, "empty"),
    ],
)
async def test_a_call_that_cannot_be_made_is_refused_at_once(connection, send, says):
    """While the handler's author is there to see it, and not at the destination."""

    @handler("shop", on="refund.*")
    async def ask(event, tx):
        usual = {"destination": "payments", "request": "POST /v1/credits", "effect": "credit"}
        await tx.send(**(usual | send))

    with pytest.raises(UserStepError) as caught:
        await react(connection, rules_with(ask, text=CAPTURE), [fact()])

    assert says in str(caught.value)


async def test_one_event_asks_once_under_each_name(connection):
    """Two calls of one name would be one entry."""

    @handler("shop", on="refund.*")
    async def ask(event, tx):
        await tx.send("payments", "POST /v1/a", effect="credit")
        await tx.send("payments", "POST /v1/b", effect="credit")

    with pytest.raises(UserStepError, match="twice"):
        await react(connection, rules_with(ask), [fact()])


async def test_a_transaction_ends_with_its_handler(connection):
    """Kept for later it would write into somebody else's event."""
    kept = []

    @handler("shop", on="refund.*")
    async def keep(event, tx):
        kept.append(tx)

    await react(connection, rules_with(keep), [fact()])

    with pytest.raises(RuntimeError, match="returned"):
        await kept[0].execute("select 1")
    with pytest.raises(RuntimeError, match="returned"):
        await kept[0].send("payments", "POST /", effect="late")


async def test_before_the_baseline_a_handler_writes_and_calls_nothing(connection):
    """State and tables are built up, history fires nothing (P20)."""

    @handler("shop", on_change="order", becomes="state.paid")
    async def capture(event, tx):
        await tx.execute("insert into refunds values (:id, 1)", {"id": event.key})
        await tx.send("payments", "POST /v1/charges", effect="charge")

    [[asked]] = await react(
        connection, rules_with(capture), [replace(change(), suppressed="baseline")]
    )

    assert [("ord_42", 1)] == await rows(connection, "select * from refunds")
    assert (SKIPPED, "baseline") == (asked.state, asked.reason)


async def test_a_key_of_the_handlers_own_is_remembered_as_long_as_the_resource(connection):
    """What happens once in a resource's life; but not where it names the event anyway."""

    @handler("shop", on_change="order")
    async def capture(event, tx):
        await tx.send("payments", "POST /v1/a", effect="once", key=f"once:{event.key}")
        await tx.send("payments", "POST /v1/b", effect="each", key=f"each:{event.event_id}")
        await tx.send("payments", "POST /v1/c", effect="usual")

    [asked] = await react(connection, rules_with(capture), [change()])

    assert [("once", True), ("each", False), ("usual", False)] == [
        (one.effect, one.entry.lasting) for one in asked
    ]
    assert [0, 1, 2] == [one.entry.position for one in asked]


async def test_a_kind_without_versions_needs_a_key_from_its_handler(connection):
    """The moment of our read is no version: another path would have another, and call twice."""
    stock = """
        [senders.shop.resources.stock]
        key = "sku"
        version = { kind = "observed" }
        first_seen = "fire"
        [senders.shop.resources.stock.get]
        path = "/v1/stock/{{ key }}"
        """

    @handler("shop", on_change="stock")
    async def reorder(event, tx):
        await tx.send("payments", "POST /v1/orders", effect="reorder", key=event.body["say"])

    read = change(version=1_700_000_000_000_000_000)
    seen = replace(read.event.observation, kind="stock")
    rules = rules_with(reorder, text=stock)

    def saying(key):
        return replace(read, event=replace(read.event, observation=seen, body={"say": key}))

    [[asked]] = await react(connection, rules, [saying("reorder:ord_42")])
    assert "reorder:ord_42" == asked.idempotency_key
    with pytest.raises(UserStepError, match="key="):
        await react(connection, rules, [saying(None)])


async def test_statements_come_before_handlers_and_handlers_in_file_order(connection):
    """The order of the file is the order of the transaction."""
    seen = []

    @handler("shop", on="refund.*")
    async def first(event, tx):
        found = await tx.execute("select count(*) from refunds")
        seen.append(("first", found.scalar()))

    @handler("sh*", on=["nothing", "refund.succeeded"])
    async def second(event, tx):
        seen.append(("second", event.sender))

    apply = """
        [[senders.shop.apply]]
        on = ["refund.*"]
        sql = "insert into refunds values ('a', 1)"
        """

    await react(connection, rules_with(first, second, text=apply), [fact()])

    assert [("first", 1), ("second", "shop")] == seen


def test_handlers_are_found_in_the_modules_that_are_named(tmp_path, monkeypatch):
    """Beside the configuration, in the order of the file, wrapped or stacked."""
    (tmp_path / "shop_rules_found.py").write_text(
        """
import functools
from reconciler import Event, Transaction, handler

def logged(function):
    @functools.wraps(function)
    async def wrapper(event, tx):
        return await function(event, tx)
    return wrapper

@handler("shop", on="refund.succeeded")
@handler("shop", on_change="order")
async def zebra(event: Event, tx: Transaction) -> None: ...

@logged
@handler("shop", on="refund.failed")
async def ant(event: Event, tx: Transaction) -> None: ...
"""
    )

    found = load(["shop_rules_found"], directory=tmp_path)

    assert [
        ("handlers.shop_rules_found.zebra", ("refund.succeeded",), ()),
        ("handlers.shop_rules_found.zebra", (), ("order",)),
        ("handlers.shop_rules_found.ant", ("refund.failed",), ()),
    ] == [(one.where, one.on, one.on_change) for one in found]
    assert sys.modules["shop_rules_found"].ant is found[2].function
    assert str(tmp_path) not in sys.path


def test_a_module_that_cannot_be_used_is_told_with_its_place(tmp_path):
    """A name that is not there, one that raises, one without handlers: all at once."""
    (tmp_path / "shop_rules_raises.py").write_text(
        "from reconciler import handler\n@handler('a')\nasync def f(e, t): ..."
    )
    (tmp_path / "shop_rules_empty.py").write_text("")

    with pytest.raises(ConfigError) as caught:
        load(["no_such_module_here", "shop_rules_raises", "shop_rules_empty"], directory=tmp_path)

    assert ["handlers[0]", "handlers[1]", "handlers[2]"] == [
        problem.key for problem in caught.value.problems
    ]
    assert "on_change" in caught.value.problems[1].message


def test_a_handler_is_async_and_takes_one_of_on_and_on_change():
    """Found when the module is imported, not at the first event."""
    with pytest.raises(TypeError, match="async def"):
        handler("shop", on="a")(print)
    with pytest.raises(TypeError, match="on_change"):
        handler("shop", on="a", on_change="b")


def test_a_handler_answers_the_same_questions():
    """An unknown sender or kind, a fact about a versioned resource, a name that is not there."""

    @handler("shp", on="refund.*")
    async def stranger(event, tx): ...

    @handler("shop", on="order.paid")
    async def silent(event, tx): ...

    @handler("shop", on_change="ordr")
    async def misspelt(event, tx): ...

    @handler("shop", on_change="order", when="efect")
    async def nameless(event, tx): ...

    functions = (stranger, silent, misspelt, nameless)
    problems = problems_of("", [one for function in functions for one in marks_of(function)])

    assert {"stranger.on[0]", "silent.if_stale", "misspelt.on_change[0]", "nameless.when"} == {
        key.rpartition("<locals>.")[2] for key in problems
    }


def test_a_handler_of_a_kind_without_list_needs_first_seen():
    """What was never seen before: is it news, or history? Only the configuration can say (P20)."""
    line = """
        [senders.shop.resources.line]
        on = ["line.*"]
        key = "id"
        version = "version"
        """

    @handler("shop", on_change="l*")
    async def tell(event, tx): ...

    problems = problems_of(line, marks_of(tell))

    assert ["senders.shop.resources.line.first_seen"] == list(problems)
    assert rules_for(line + 'first_seen = "skip"', marks_of(tell))
    assert rules_for(line)


def test_importing_the_package_is_cheap():
    """A handlers module and `reconciler --help` must not wait for SQLAlchemy."""
    import subprocess

    done = subprocess.run(
        [
            sys.executable, "-c",
            "import sys, reconciler; print('sqlalchemy' in sys.modules, reconciler.handler)",
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout.startswith("False")
