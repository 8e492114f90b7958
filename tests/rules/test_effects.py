"""Effects become frozen calls: what they say, under which key, and when they are not made."""

import json
import re
from dataclasses import replace
from decimal import Decimal

import pytest
from sqlalchemy import text

from reconciler.expressions import EFFECT_NAMES
from reconciler.ledger.event import Change, Origin
from reconciler.ledger.reactions import react

from .shop import CAPTURE, PENDING, RECEIPT, SKIPPED, ago, change, fact, rows, rules_for

pytestmark = pytest.mark.anyio


@pytest.fixture
async def connection(engine):
    async with engine.connect() as connection, connection.begin():
        yield connection


async def test_a_change_becomes_one_frozen_call(connection):
    """
    An order becomes paid. The charge is in the outbox with its final bytes: exact numbers,
    compact JSON, and a key that names the order's version and not the event that told us.
    """
    rules = rules_for(CAPTURE)
    paid = {"status": "paid", "paid": True, "amount": Decimal("9007199254740993.10")}

    [[asked]] = await react(connection, rules, [change(state=paid)])

    assert "shop:order:ord_42:7:capture" == asked.idempotency_key
    assert (PENDING, None) == (asked.state, asked.reason)
    assert [
        (
            "shop", "evt_7", "capture", "order", "ord_42", 7, 0, True, "payments",
            "shop:order:ord_42:7:capture", "POST", "/v1/charges",
            {"content-type": "application/json"},
            b'{"amount":9007199254740993.10,"reference":"ord_42"}', True, "pending",
        )
    ] == await rows(
        connection,
        "select sender, event_id, effect, kind, key, revision, position, ordered, destination,"
        " idempotency_key, method, path, headers, body, idempotent, state"
        " from reconciler.outbox",
    )  # fmt: skip


async def test_webhook_and_correction_ask_under_one_key(connection):
    """
    Version 7 was lost and corrected; after a fall-back of the database its webhook finds the
    change once more. The second entry knows its key and is not called (C119, P6).
    """
    rules = rules_for(CAPTURE)
    corrected = change(origin=Origin.CORRECTION, event_id="correction:order:ord_42:7")

    [[first]] = await react(connection, rules, [corrected])
    [[second]] = await react(connection, rules, [change()])

    assert first.idempotency_key == second.idempotency_key
    assert (PENDING, SKIPPED) == (first.state, second.state)
    assert "key used" == second.reason


@pytest.mark.parametrize(
    ("previous", "state", "became", "fires"),
    [
        (None, {"paid": True}, Change.CREATED, True),
        ({"paid": False}, {"paid": True}, Change.UPDATED, True),
        ({}, {"paid": True}, Change.UPDATED, True),
        ({"paid": None}, {"paid": True}, Change.UPDATED, True),
        ({"paid": True}, {"paid": True}, Change.UPDATED, False),
        ({"paid": True}, {"paid": False}, Change.UPDATED, False),
        (None, {"paid": None}, Change.CREATED, False),
        ({"paid": False}, {"paid": True}, Change.DELETED, False),
        ({"paid": True}, {"paid": True}, Change.REVIVED, False),
        ({"paid": False}, {"paid": True}, Change.REVIVED, True),
    ],
)
async def test_becomes_follows_levels(connection, previous, state, became, fires):
    """
    It is true now and was not before: with nothing held before it was false, a deletion never
    makes anything true, and a revival compares with the last state.
    """
    rules = rules_for(CAPTURE)
    state = {"amount": 1, **state}

    [asked] = await react(
        connection, rules, [change(previous=previous, state=state, became=became)]
    )

    assert fires == bool(asked)


async def test_what_is_not_asked_for_says_why(connection):
    """`try` and a dry run show each effect with yes or no, and why."""
    rules = rules_for(CAPTURE + RECEIPT)
    explain = []

    await react(connection, rules, [change(previous={"paid": True}), fact()], explain=explain)

    assert [[("capture", "`becomes` was true before")], []] == [
        [(one.effect, one.reason) for one in told.not_asked] for told in explain
    ]


@pytest.mark.parametrize(
    ("became", "suffix"), [(Change.DELETED, ":deleted"), (Change.REVIVED, ":revived")]
)
async def test_deletion_and_revival_have_keys_of_their_own(connection, became, suffix):
    """A tombstone keeps its version, so its change must not meet that version's own key."""
    rules = rules_for(CAPTURE.replace('becomes = "state.paid"', ""))

    [[asked]] = await react(connection, rules, [change(became=became)])

    assert f"shop:order:ord_42:7:capture{suffix}" == asked.idempotency_key


async def test_an_overtaken_fact_counts_where_it_is_said(connection):
    """`if_stale` decides: "count" still asks for the call, "skip" does not."""
    told = RECEIPT.replace("refund.succeeded", "order.refunded")
    counting = rules_for(told + 'if_stale = "count"')
    skipping = rules_for(told + 'if_stale = "skip"')
    overtaken = fact(type="order.refunded", stale=True)

    assert [[]] == await react(connection, skipping, [overtaken])
    [[asked]] = await react(connection, counting, [overtaken])
    assert "evt_1" == asked.idempotency_key


async def test_history_is_recorded_and_not_called(connection):
    """
    Before the baseline a paid order is nothing new. Its charge is kept, whole, as skipped, and
    does not use up its key: it can be released later.
    """
    rules = rules_for(CAPTURE)
    old = replace(change(), suppressed="baseline")

    [[asked]] = await react(connection, rules, [old])
    released = await react(connection, rules, [change(event_id="evt_8")])

    assert (SKIPPED, "baseline") == (asked.state, asked.reason)
    assert b'{"amount":1250,"reference":"ord_42"}' == asked.entry.body
    assert PENDING == released[0][0].state


@pytest.mark.parametrize(
    ("happened", "changed", "state"),
    [
        (ago(hours=47), None, PENDING),
        (ago(hours=49), None, SKIPPED),
        (None, ago(hours=47), PENDING),
        (None, ago(hours=49), SKIPPED),
        (ago(hours=49), ago(hours=1), SKIPPED),
        (None, None, PENDING),
    ],
)
async def test_what_is_too_old_is_recorded_and_not_called(connection, happened, changed, state):
    """A correction that comes twenty days late must not mail a customer (`max_age`)."""
    rules = rules_for(CAPTURE + 'max_age = "48h"')
    nanoseconds = None if changed is None else int(changed.timestamp() * 10**9)
    cause = change(changed_at=nanoseconds)
    cause = replace(cause, event=replace(cause.event, occurred_at=happened))

    [[asked]] = await react(connection, rules, [cause])

    assert state == asked.state
    assert (None if state is PENDING else "max_age") == asked.reason


async def test_a_version_that_is_a_time_tells_the_age(connection):
    """Many senders have nothing but `updated_at`: it is version and time at once."""
    bill = """
        [senders.shop.resources.bill]
        on = ["bill.*"]
        key = "id"
        version = { value = "updated", kind = "timestamp" }
        [effects.remind]
        on_change = ["shop:bill"]
        max_age = "48h"
        destination = "payments"
        request = "POST /v1/reminders"
        """
    rules = rules_for(bill)

    def corrected(**age):
        cause = change(version=int(ago(**age).timestamp() * 10**9), event_id=f"correction:{age}")
        seen = replace(cause.event.observation, kind="bill")
        return replace(cause, event=replace(cause.event, observation=seen))

    asked = await react(connection, rules, [corrected(hours=47), corrected(hours=49)])

    assert [(PENDING, None), (SKIPPED, "max_age")] == [(one.state, one.reason) for [one] in asked]


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ('json = { to = "{{ state.email }} " }', "email"),
        ('when = "state.amount"', ""),
        ('becomes = "state.status"', ""),
        ('request = "POST /v1/orders/{{ state.status }}/x"', ""),
        ('headers = { X-Note = "{{ state.note }}" }', "X-Note"),
        ('idempotency_key = "{{ state.note }}"', ""),
    ],
)
async def test_an_effect_that_cannot_be_rendered_fails_alone(connection, broken, fault):
    """
    A null in a text, an odd answer of `when`, a line break in a header: that effect is kept as
    unrendered, with the reason, and the one beside it is asked for all the same (P15).
    """
    lines = [
        *(line for line in CAPTURE.splitlines() if line.split(" ")[0] != broken.split(" ")[0]),
        broken,
    ]
    note = RECEIPT.replace('on = ["shop:refund.succeeded"]', 'on_change = ["shop:order"]')
    note = note.replace("{{ body.data.order_id }}", "{{ key }}")
    undeclared = "\n".join(lines).replace("state.email", "state.status.email")
    rules = rules_for(note + undeclared.replace("state.note", "state.status"))
    status = "" if "key" in broken else ".." if "request" in broken else "a\nb"
    state = {"status": status, "paid": True, "amount": 3}

    [asked] = await react(connection, rules, [change(state=state, previous={"status": False})])

    good, bad = asked
    assert ("receipt", PENDING, None) == (good.effect, good.state, good.reason)
    assert ("capture", PENDING) == (bad.effect, bad.state)
    assert bad.reason.startswith("unrendered: ")
    assert fault.lower() in bad.reason.lower()
    assert [("capture", None), ("receipt", good.entry.body)] == await rows(
        connection,
        "select effect, case when method is not null then body end"
        " from reconciler.outbox order by effect",
    )


async def test_history_that_cannot_be_rendered_stays_history(connection):
    """Mending the template later must not bring a skipped effect of the past to life."""
    rules = rules_for(CAPTURE.replace("{{ state.amount }}", "a {{ state.amount }}"))
    old = replace(change(state={"paid": True, "amount": None}), suppressed="baseline")

    [[asked]] = await react(connection, rules, [old])

    assert SKIPPED == asked.state
    assert asked.reason.startswith("baseline (unrendered")


async def test_path_and_headers_are_frozen_with_the_call(connection):
    """Pieces of the path are percent-encoded; a header of the effect's own wins over ours."""
    rules = rules_for(
        """
        [effects.tell]
        on = ["shop:refund.succeeded"]
        destination = "mailer"
        request = "PUT /v1/orders/{{ body.data.order_id }}/note"
        headers = { Content-Type = "application/merge-patch+json", X-Sender = "{{ sender }}" }
        json = { at = "{{ occurred_at }}" }
        """
    )
    told = fact(
        body={"data": {"order_id": "a/b c%"}},
        occurred_at=ago(days=0).replace(
            year=2026, month=1, day=2, hour=3, minute=4, second=5, microsecond=0
        ),
    )

    [[asked]] = await react(connection, rules, [told])

    assert ("PUT", "/v1/orders/a%2Fb%20c%25/note") == (asked.entry.method, asked.entry.path)
    assert {
        "content-type": "application/merge-patch+json", "x-sender": "shop",
    } == asked.entry.headers  # fmt: skip
    assert b'{"at":"2026-01-02T03:04:05Z"}' == asked.entry.body
    assert not asked.entry.idempotent
    assert not asked.entry.ordered


async def test_every_name_of_the_documentation_can_be_used(connection):
    """All names, over a change and over a fact; headers whatever their case."""
    names = [*sorted(EFFECT_NAMES - {"headers"}), "headers['x-SHOP']"]
    told = ", ".join(f'"{name}" = "{{{{ {name} }}}}"' for name in names)
    rules = rules_for(
        re.sub("json = .*", f"json = {{ {told} }}", CAPTURE)
        + re.sub("json = .*", f"json = {{ {told} }}", RECEIPT)
    )
    happened = ago().replace(2026, 1, 2, 3, 4, 5, 0)
    causes = [change(previous={"paid": False}), fact()]
    causes = [
        replace(one, event=replace(one.event, headers={"x-shop": "a"}, occurred_at=happened))
        for one in causes
    ]

    asked = await react(connection, rules, causes)

    shared = {"sender": "shop", "occurred_at": "2026-01-02T03:04:05Z", "origin": "webhook"}
    assert [
        {
            **shared,
            "body": {"id": "evt_7"}, "event_id": "evt_7", "type": "order.updated",
            "kind": "order", "key": "ord_42", "version": 7,
            "state": {"status": "paid", "paid": True, "amount": 1250},
            "previous": {"paid": False}, "current": None, "change": "updated",
            "effect": "capture", "headers['x-SHOP']": "a",
        },
        {
            **shared,
            "body": {"id": "evt_1", "data": {"order_id": "ord_42"}}, "event_id": "evt_1",
            "type": "refund.succeeded", "kind": None, "key": None, "version": None,
            "state": None, "previous": None, "current": None, "change": None,
            "effect": "receipt", "headers['x-SHOP']": "a",
        },
    ] == [json.loads(one.entry.body) for [one] in asked]  # fmt: skip


async def test_a_key_that_names_neither_version_nor_event_lasts(connection):
    """What may happen once in a resource's life is remembered as long as the resource."""
    once = rules_for(CAPTURE + 'idempotency_key = "capture:{{ key }}"')

    [[first]] = await react(connection, once, [change()])
    [[again]] = await react(connection, once, [change(version=9, event_id="evt_9")])

    assert ("capture:ord_42", True) == (first.idempotency_key, first.entry.lasting)
    assert (SKIPPED, "key used") == (again.state, again.reason)
    [[usual]] = await react(connection, rules_for(CAPTURE), [change(event_id="evt_10")])
    assert not usual.entry.lasting


async def test_a_destination_says_how_keys_look(connection):
    """`key_max_length` hashes what is longer; `key_format` makes a UUID of it."""
    short = "\n[destinations.short]\nbase_url = 'https://a.example'\nkey_max_length = 40\n"
    uuid = "\n[destinations.uuid]\nbase_url = 'https://b.example'\nkey_format = 'uuid'\n"
    rules = rules_for(
        short + uuid
        + RECEIPT.replace("payments", "short")
        + RECEIPT.replace("payments", "uuid").replace("effects.receipt", "effects.second")
    )  # fmt: skip

    [[first, second]] = await react(connection, rules, [fact("evt_" + 40 * "x")])

    assert first.idempotency_key.startswith("h-")
    assert [8, 4, 4, 4, 12] == [len(part) for part in second.idempotency_key.split("-")]


async def test_effects_of_many_causes_are_written_in_the_same_few_statements(connection):
    """A batch of two hundred costs what a batch of one costs (scale)."""
    rules = rules_for(CAPTURE + RECEIPT + 'max_age = "1h"')
    counted = []

    async def statements(causes):
        counted.clear()
        return await react(connection, rules, causes)

    from sqlalchemy import event as hooks

    hooks.listen(
        connection.sync_connection, "before_cursor_execute", lambda *call: counted.append(call[2])
    )
    await statements([fact("evt_0")])
    of_one = len(counted)
    asked = await statements([fact(f"evt_{number}") for number in range(1, 200)])

    assert 199 == len(asked)
    assert all(len(one) == 1 for one in asked)
    assert of_one == len(counted)


async def test_equal_causes_give_equal_bytes(connection):
    """
    A retry, another process, another order of members: the body is the same bytes (P7, C78),
    because it is written once, in the order of the configuration.
    """
    rules = rules_for(CAPTURE)
    forth = {"status": "paid", "paid": True, "amount": 5}
    back = dict(reversed(forth.items()))

    [[one], [other]] = await react(
        connection, rules, [change(state=forth), change(state=back, event_id="evt_8", version=8)]
    )

    assert one.entry.body == other.entry.body
    stored = await connection.execute(text("select body from reconciler.outbox"))
    assert {one.entry.body} == {bytes(row.body) for row in stored}
    assert {"amount": 5, "reference": "ord_42"} == json.loads(one.entry.body)
