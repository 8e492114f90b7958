"""Forms, queries, and keys that go into the body: what a call brings besides JSON."""

from urllib.parse import parse_qsl

import pytest

from outbox.bodies import FORM, with_key
from reconciler import handler
from reconciler.ledger import handlers
from reconciler.ledger.reactions import react

from .shop import change, fact, problems_of, rows, rules_for

pytestmark = pytest.mark.anyio

CALLS = """
[destinations.cards]
base_url = "https://api.cards.example"

[destinations.squares]
base_url = "https://squares.example"
key_field = "idempotency_key"
key_max_length = 45

[destinations.graph]
base_url = "https://graph.example"
key_field = "variables.idempotencyKey"

[destinations.texts]
base_url = "https://texts.example"
key_field = "Payment.Key"
form_lists = "repeated"
"""

CHARGE = """
[effects.charge]
on_change = ["shop:order"]
"""


@pytest.fixture
async def connection(engine):
    async with engine.connect() as connection, connection.begin():
        yield connection


async def asked_by(connection, effect):
    await react(connection, rules_for(CALLS + CHARGE + effect), [change()])
    [row] = await rows(
        connection, "select path, headers, body, last_error, idempotency_key from reconciler.outbox"
    )
    return row


async def test_a_form_is_frozen_with_what_is_nested_in_brackets(connection):
    """As Stripe reads it: `a[b]=c`, lists by their places; numbers and booleans as their words."""
    path, headers, body, fault, _ = await asked_by(
        connection,
        """
        destination = "cards"
        request = "POST /v1/charges"
        [effects.charge.form]
        amount = "{{ state.amount }}"
        capture = true
        description = "Order {{ key }} & more"
        metadata = { order = "{{ key }}", paid = "{{ state.paid }}" }
        expand = ["customer", "invoice"]
        line_items = [{ price = "p_1", quantity = 2 }]
        """,
    )

    assert fault is None
    assert {"content-type": FORM} == headers
    assert [
        ("amount", "1250"),
        ("capture", "true"),
        ("description", "Order ord_42 & more"),
        ("metadata[order]", "ord_42"),
        ("metadata[paid]", "true"),
        ("expand[0]", "customer"),
        ("expand[1]", "invoice"),
        ("line_items[0][price]", "p_1"),
        ("line_items[0][quantity]", "2"),
    ] == parse_qsl(body.decode())
    assert "/v1/charges" == path


async def test_a_query_is_frozen_behind_the_path(connection):
    path, _, body, fault, _ = await asked_by(
        connection,
        """
        destination = "texts"
        request = "POST /v1/notes?kind=a"
        query = { q = "a b&c", ids = ["{{ key }}", "x"] }
        form = { To = "+49", Media = ["u1", "u2"] }
        """,
    )

    assert fault is None
    assert "/v1/notes?kind=a&q=a%20b%26c&ids=ord_42&ids=x" == path
    assert b"To=%2B49&Media=u1&Media=u2&Payment%5BKey%5D=shop%3Aorder%3Aord_42%3A7%3Acharge" == body


async def test_a_key_goes_into_the_body_where_the_destination_reads_it_there(connection):
    """Part of the frozen bytes (P7): every attempt carries the same one, and it is stored."""
    *_, body, fault, key = await asked_by(
        connection,
        """
        destination = "squares"
        request = "POST /v2/payments"
        json = { amount_money = { amount = "{{ state.amount }}" } }
        """,
    )

    assert fault is None
    assert "shop:order:ord_42:7:charge" == key
    expected = b'{"amount_money":{"amount":1250},"idempotency_key":"shop:order:ord_42:7:charge"}'
    assert expected == body


async def test_a_key_goes_inside_of_another_field(connection):
    """GraphQL: the key is a variable of the mutation."""
    *_, body, fault, _ = await asked_by(
        connection,
        """
        destination = "graph"
        request = "POST /graphql"
        json = { query = "mutation", variables = { id = "{{ key }}" } }
        """,
    )

    assert fault is None
    assert (
        b'{"query":"mutation","variables":'
        b'{"id":"ord_42","idempotencyKey":"shop:order:ord_42:7:charge"}}'
    ) == body


@pytest.mark.parametrize(
    ("effect", "says"),
    [
        ('destination = "cards"\nform = { a = "{{ state.status.x }}" }', "a is null"),
        ('destination = "squares"', "goes into idempotency_key: say json or form"),
        ('destination = "squares"\njson = [1]', "no object there"),
        ('destination = "graph"\njson = { variables = "text" }', "no object there"),
    ],
)
async def test_what_cannot_be_written_is_unrendered_and_says_why(connection, effect, says):
    *_, fault, _ = await asked_by(connection, f'request = "POST /v1"\n{effect}')

    assert says in fault


@pytest.mark.parametrize(
    ("effect", "says"),
    [
        ('destination = "cards"\njson = {}\nform = {}', "one body: json or form"),
        ('destination = "squares"\njson = { idempotency_key = "x" }', "set idempotency_key"),
        ('destination = "graph"\njson = { variables = { idempotencyKey = "x" } }', "carries the"),
    ],
)
def test_what_contradicts_itself_is_refused_at_the_start(effect, says):
    problems = problems_of(f'{CALLS}{CHARGE}request = "POST /v1"\n{effect}')

    assert ["effects.charge.request"] == list(problems)
    assert says in problems["effects.charge.request"]


async def test_a_handler_sends_forms_and_queries_too(connection):
    @handler("shop", on="refund.*")
    async def ask(event, tx):
        await tx.send(
            "cards",
            "POST /v1/refunds",
            form={"charge": "ch_1", "metadata": {"event": event.event_id}},
            query={"expand": ["charge"]},
            effect="refund",
        )

    rules = rules_for(CALLS, handlers.marks_of(ask))
    await react(connection, rules, [fact("evt_1")])

    assert [
        ("/v1/refunds?expand%5B0%5D=charge", b"charge=ch_1&metadata%5Bevent%5D=evt_1")
    ] == await rows(connection, "select path, body from reconciler.outbox")


@pytest.mark.parametrize(
    ("body", "kind", "becomes"),
    [
        (
            b'{"b":1e400,"key":"old","a":[12.30,null,true,{}],"t":"\xc3\xbc\\n"}',
            "application/json",
            b'{"b":1e400,"key":"new","a":[12.30,null,true,{}],"t":"\xc3\xbc\\n"}',
        ),
        (b"a=1&key=old&b=x+y&c=", f"{FORM}; charset=utf-8", b"a=1&key=new&b=x+y&c="),
    ],
)
def test_a_new_key_replaces_the_old_one_and_nothing_else(body, kind, becomes):
    """For a call that is repeated as a new one: the rest keeps its order and its digits."""
    assert becomes == with_key(body, kind, field="key", key="new")
