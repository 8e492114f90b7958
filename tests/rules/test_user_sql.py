"""The user's own statements: names found, values exact, mistakes found at the start."""

from decimal import Decimal

import pytest
from sqlalchemy.exc import DBAPIError

from reconciler.errors import ReconcilerError
from reconciler.ledger.event import Change
from reconciler.ledger.reactions import UserStepError, react
from reconciler.ledger.sql_text import SqlTextError, read_statement
from reconciler.ledger.user_sql import as_sql, verify

from .shop import CAPTURE, change, fact, rows, rules_for

pytestmark = pytest.mark.anyio

#: Everything that may stand in SQL and looks like a parameter, or like a percent sign of Python's
STRANGE = r"""
    insert into strange (id, share, pattern, text_id, tail, span, quoted, noted)  -- :not_me, 100%
    select :key, '100%', 'a%sb%(c)s', :key::text, (array[1,2,3])[2:3], :amount::int,
            E'it\'s :x' || ':x' || $$ :x '$$ || $tag$ $$ :x $tag$, /* :x /* :x */ '*/ 'a' as "no:x"
"""


@pytest.fixture
async def connection(engine):
    async with engine.connect() as connection, connection.begin():
        yield connection


def step(sql, params, more="", on='on_change = ["order"]'):
    """One `[[senders.shop.apply]]`."""
    values = ", ".join(f"{name} = {value!r}" for name, value in params.items())
    return f"\n[[senders.shop.apply]]\n{on}\nsql = '''{sql}'''\nparams = {{ {values} }}\n{more}\n"


async def test_the_designs_own_statement_writes_the_users_table(connection):
    """An order changes; the statement from the file runs in the same transaction, guard and all."""
    await connection.exec_driver_sql(
        "create table orders (id text primary key, status text, status_version integer)"
    )
    rules = rules_for(
        step(
            """INSERT INTO orders (id, status, status_version) VALUES (:order_id, :status, :version)
               ON CONFLICT (id) DO UPDATE SET status = excluded.status,
                 status_version = excluded.status_version
               WHERE orders.status_version < excluded.status_version""",
            {"order_id": "key", "status": "state.status", "version": "version"},
            "expect_rows = 1",
        )
    )
    explain = []

    await react(connection, rules, [change(version=7)], explain=explain)
    await react(connection, rules, [change(version=6, event_id="evt_6")], explain=explain)

    assert [("ord_42", "paid", 7)] == await rows(connection, "select * from orders")
    assert [(1, 1), (0, 1)] == [(ran.rows, ran.expected) for told in explain for ran in told.ran]
    assert {"order_id": "ord_42", "status": "paid", "version": "7"} == explain[0].ran[0].values


async def test_fewer_rows_than_expected_are_told(connection, capsys):
    """The user's table and ours part ways: a warning, not a failure."""
    from structlog.testing import capture_logs

    await connection.exec_driver_sql("create table orders (id text primary key, status text)")
    rules = rules_for(
        step("update orders set status = 'x' where id = :key", {"key": "key"}, "expect_rows = 1")
    )

    with capture_logs() as logs:
        await react(connection, rules, [change()])

    [log] = [log for log in logs if log["event"] == "ledger.rows_expected"]
    assert ("senders.shop.apply[0]", 0, 1) == (log["where"], log["rows"], log["expected"])
    assert ("shop", "evt_7", "warning") == (log["sender"], log["event_id"], log["log_level"])


@pytest.mark.parametrize(
    ("column", "value", "held"),
    [
        ("integer", 1250, 1250),
        ("bigint", 9007199254740993, 9007199254740993),
        ("numeric", Decimal("12.30"), Decimal("12.30")),
        ("numeric", 10**40, Decimal(10**40)),
        ("integer", "12", 12),
        ("text", "paid", "paid"),
        ("text", 12, "12"),
        ("text", Decimal("12.30"), "12.30"),
        ("text", "100% :x 'quoted' \\", "100% :x 'quoted' \\"),
        ("boolean", True, True),
        ("boolean", False, False),
        ("jsonb", {"a": [1, Decimal("1.10"), None]}, {"a": [1, Decimal("1.10"), None]}),
        ("jsonb", [True], [True]),
        ("jsonb", 5, 5),
        ("text", None, None),
        ("integer", None, None),
        ("jsonb", None, None),
    ],
)
async def test_every_value_arrives_exactly(connection, column, value, held):
    """Whatever type the user's column has, nothing is rounded and nothing is guessed."""
    await connection.exec_driver_sql(f"create table kept (id text, value {column})")
    rules = rules_for(
        step("insert into kept values (:id, :value)", {"id": "key", "value": "state.amount"})
    )

    await react(connection, rules, [change(state={"amount": value})])

    [(found,)] = await rows(connection, "select value from kept")
    assert held == found
    assert type(held) is type(found)


async def test_times_arrive_as_times(connection):
    """`occurred_at` is RFC 3339 text, which a timestamptz column reads."""
    from .shop import ago

    happened = ago(hours=3)
    await connection.exec_driver_sql("create table kept (at timestamptz, month text)")
    rules = rules_for(
        step(
            "insert into kept values (:at, to_char(:at::timestamptz, 'YYYY-MM'))",
            {"at": "occurred_at"},
            on='on = ["refund.*"]',
        )
    )

    await react(connection, rules, [fact(occurred_at=happened)])

    [(at, month)] = await rows(connection, "select * from kept")
    assert (happened, happened.strftime("%Y-%m")) == (at, month)


async def test_half_a_cent_is_an_error_and_not_a_rounding(connection):
    """12.5 into an integer column would be 12 or 13 by PostgreSQL's own cast."""
    await connection.exec_driver_sql("create table kept (value integer)")
    rules = rules_for(step("insert into kept values (:value)", {"value": "state.amount"}))

    with pytest.raises(UserStepError, match="invalid input syntax"):
        await react(connection, rules, [change(state={"amount": Decimal("12.5")})])


async def test_one_name_may_stand_for_two_types(connection):
    """:key is a text here and a number there; each place finds its own type."""
    await connection.exec_driver_sql("create table kept (a text, b integer, c bigint, d jsonb)")
    rules = rules_for(
        step("insert into kept values (:v, :v, :v, :v)", {"v": "state.amount"}),
    )

    await react(connection, rules, [change(state={"amount": 7})])

    assert [("7", 7, 7, 7)] == await rows(connection, "select * from kept")


async def test_what_only_looks_like_a_parameter_is_left_alone(engine, connection):
    """Strings, dollar quotes, comments, casts, slices and percent signs go through as written."""
    await connection.exec_driver_sql(
        "create table strange (id text, share text, pattern text, text_id text, tail integer[],"
        " span integer, quoted text, noted text)"
    )
    rules = rules_for(step(STRANGE, {"key": "key", "amount": "state.amount"}))

    await react(connection, rules, [change()])

    assert [
        ("ord_42", "100%", "a%sb%(c)s", "ord_42", [2, 3], 1250, "it's :x:x :x ' $$ :x ", "a")
    ] == await rows(connection, "select * from strange")


@pytest.mark.parametrize(
    ("sql", "names", "numbered"),
    [
        ("select :a, :b, :a", ("a", "b", "a"), "select $1, $2, $3"),
        ("select xs[1:2], xs[:lo::int], xs[1:n]", ("lo",), "select xs[1:2], xs[$1::int], xs[1:n]"),
        ("select j ? :a and j ?| :b", ("a", "b"), "select j ? $1 and j ?| $2"),
        ("select a::text, :b::jsonb->>':c'", ("b",), "select a::text, $1::jsonb->>':c'"),
        ("select 'it''s :a', E'\\':b', \":c\"", (), "select 'it''s :a', E'\\':b', \":c\""),
        ("select $$:a$$, $q$ $$:b $q$, a$b", (), "select $$:a$$, $q$ $$:b $q$, a$b"),
        ("-- :a\nselect /* :b /* :c */ */ 1;", (), "select   1"),
        ("with x as (select 1) select :a", ("a",), "with x as (select 1) select $1"),
        ("(select :a)", ("a",), "(select $1)"),
        ("select f(x => :a, y := :b)", ("a", "b"), "select f(x => $1, y := $2)"),
        ("select :ä", (), "select :ä"),
    ],
)
def test_names_are_found_where_a_value_can_stand(sql, names, numbered):
    """A tokenizer that knows strings, dollar quotes, comments and `::casts`."""
    statement = read_statement(sql)

    assert names == statement.names
    assert numbered == statement.numbered()


@pytest.mark.parametrize(
    "sql",
    [
        "", "  -- nothing\n", ";", "commit", "BEGIN; select 1", "rollback", "set search_path = x",
        "insert into a values (1); delete from a", "copy a from stdin", "do $$ begin end $$",
        "savepoint a", "prepare transaction 'a'", "vacuum", "listen x", "/* open", "select 'open",
        'select "open', "select $1",
    ],
)  # fmt: skip
def test_what_does_not_belong_into_our_transaction_is_refused(sql):
    """One statement, and none that ends or reconfigures the transaction it runs in."""
    with pytest.raises(SqlTextError):
        read_statement(sql)


async def test_a_typo_stops_the_start_and_names_its_line(engine):
    """
    Each statement is planned, none is run. A misspelt table, a misspelt column and a type that
    cannot be found are told by key; the good ones leave no trace, nor does a failed one.
    """
    async with engine.begin() as connection:
        await connection.exec_driver_sql("create table orders (id text primary key, total integer)")
    good = "insert into orders values (:id, 100 % 7) on conflict (id) do nothing"
    rules = rules_for(
        step(good, {"id": "key"})
        + step("insert into ordres values (:id)", {"id": "key"})
        + step("update orders set totla = 1 where id = :id", {"id": "key"})
        + step("select jsonb_build_object('a', :value)", {"value": "state"})
        + step(good, {"id": "key"})
    )

    problems = await verify(engine, rules)

    assert [f"senders.shop.apply[{number}].sql" for number in (1, 2, 3)] == [
        problem.key for problem in problems
    ]
    assert 'relation "ordres" does not exist' in problems[0].message
    assert '"totla"' in problems[1].message
    assert ":value" in problems[2].message
    assert "::" in problems[2].message
    async with engine.connect() as connection:
        assert [(0,)] == await rows(connection, "select count(*) from orders")
        assert [(0,)] == await rows(connection, "select count(*) from pg_prepared_statements")


async def test_statements_are_checked_on_the_search_path_they_run_on(database_url):
    """`[database] search_path` decides which `orders` is meant, in the check as in the run."""
    from reconciler.database import engine_for, prepare_transaction

    engine = engine_for(database_url, search_path="app")
    sql = step("insert into orders values (:id)", {"id": "key"})
    rules = rules_for(sql + '\n[database]\nsearch_path = "app"\n')
    try:
        async with engine.begin() as connection:
            await connection.exec_driver_sql("create schema app")
            assert 1 == len(await verify(engine, rules))
        async with engine.begin() as connection:
            await connection.exec_driver_sql("create table app.orders (id text)")
        assert [] == await verify(engine, rules)
        async with engine.begin() as connection:
            await prepare_transaction(connection)
            await react(connection, rules, [change()])
            assert [("ord_42",)] == await rows(connection, "select id from app.orders")
    finally:
        await engine.dispose()


async def test_statements_obey_becomes_when_and_the_order_of_the_file(connection):
    """`apply` takes the same words as effects, and runs from top to bottom, deletions too."""
    await connection.exec_driver_sql("create table log (id serial, what text)")
    rules = rules_for(
        step("insert into log (what) values (:w)", {"w": "'becomes'"}, 'becomes = "state.paid"')
        + step("insert into log (what) values (:w)", {"w": "'when'"}, "when = \"key == 'ord_1'\"")
        + step("insert into log (what) values (:w)", {"w": "change"})
    )
    causes = [change(), change(previous={"paid": True}), change(became=Change.DELETED)]
    explain = []

    await react(connection, rules, causes, explain=explain)

    assert ["becomes", "updated", "updated", "deleted"] == [
        what for (what,) in await rows(connection, "select what from log order by id")
    ]
    assert [("senders.shop.apply[1]", "`when` is not true")] == [
        (passed.where, passed.reason) for passed in explain[0].passed
    ]


async def test_without_parameters_a_percent_sign_is_still_one(connection):
    """The driver reads percent signs only where it is given parameters, or so one might think."""
    await connection.exec_driver_sql("create table kept (text text)")
    rules = rules_for(
        step("insert into kept values ('100%'), ('%s'), ('%%'), ((7 % 4)::text)", {})
        + step("select text from kept where text like '%1%'", {}, "expect_rows = 1")
    )
    explain = []

    await react(connection, rules, [change()], explain=explain)

    assert ["%%", "%s", "100%", "3"] == sorted(
        text for (text,) in await rows(connection, "select text from kept")
    )
    assert [4, 1] == [ran.rows for ran in explain[0].ran]


async def test_a_failing_statement_blames_its_event(engine, connection):
    """The ledger learns which event of the batch, and the operator which statement."""
    await connection.exec_driver_sql("create table refunds (id text primary key)")
    rules = rules_for(
        step("insert into refunds values (:id)", {"id": "body.order"}, on='on = ["refund.*"]')
    )
    explain = []

    with pytest.raises(UserStepError) as caught:
        await react(
            connection,
            rules,
            [fact("evt_1", body={"order": "a"}), fact("evt_2", body={"order": "a"})],
            explain=explain,
        )

    assert "evt_2" == caught.value.event.event_id
    assert "senders.shop.apply[0]" == caught.value.where
    assert "duplicate key" in str(caught.value)
    assert "insert into" not in str(caught.value).lower()
    assert isinstance(caught.value.original, DBAPIError)
    assert [1, 0] == [len(told.ran) for told in explain]


async def test_an_expression_that_fails_blames_its_event_too(connection):
    """For an effect it would be `unrendered`; a statement cannot be left out in silence."""
    rules = rules_for(CAPTURE + step("select :v", {"v": "state.status + 1"}) + step("select 1", {}))

    with pytest.raises(UserStepError) as caught:
        await react(connection, rules, [change()])

    assert isinstance(caught.value.original, ReconcilerError)
    assert "evt_7" == caught.value.event.event_id


async def test_a_database_that_fails_is_not_the_users_fault(engine):
    """A deadlock or a lost server runs the whole transaction again: nobody is quarantined."""
    rules = rules_for(step("select pg_terminate_backend(pg_backend_pid())", {}))

    with pytest.raises(DBAPIError):
        async with engine.begin() as connection:
            await react(connection, rules, [change()])


def test_values_are_written_as_postgresql_reads_them():
    """Plain digits, lower-case booleans, JSON for what has members."""
    numbers = [7, Decimal("1E+3"), Decimal("1.50")]
    given = [None, True, False, *numbers, "1", [1], {"a": Decimal("2.0")}]

    assert [None, "true", "false", "7", "1000", "1.50", "1", "[1]", '{"a":2.0}'] == [
        as_sql(value) for value in given
    ]
