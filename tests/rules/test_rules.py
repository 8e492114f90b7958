"""What the configuration may not leave open, and what it may not misspell: all told at once."""

import pytest

from reconciler.errors import ConfigError

from .shop import CAPTURE, RECEIPT, SECOND_SHOP, problems_of, rules_for

ORDER_FACT = RECEIPT.replace("refund.succeeded", "order.paid")
SECOND_RECEIPT = RECEIPT.replace("effects.receipt", "effects.letter")


def effect(*lines, name="told"):
    given = {line.split(" = ")[0]: line for line in lines}
    usual = {
        "destination": 'destination = "payments"',
        "request": 'request = "POST /v1/told"',
    }
    return "\n".join([f"\n[effects.{name}]", *(usual | given).values()])


def test_the_designs_configuration_compiles():
    """Capture, receipt and both `apply` steps of the documentation."""
    rules = rules_for(  # the text is TOML: nothing is run
        CAPTURE  # noqa: S608
        + RECEIPT
        + """
        max_age = "48h"

        [[senders.shop.apply]]
        on_change = ["order"]
        sql = "INSERT INTO orders (id, status) VALUES (:order_id, :status)"
        params = { order_id = "key", status = "state.status" }
        expect_rows = 1

        [[senders.shop.apply]]
        on = ["refund.succeeded"]
        sql = "INSERT INTO refunds (source_event, order_id) VALUES (:event_id, :order_id)"
        params = { event_id = "event_id", order_id = "body.data.order_id" }
        """
    )
    shop = rules.senders["shop"]

    assert shop.known("order.paid")
    assert shop.known("refund.succeeded")
    assert not shop.known("customer.created")
    assert shop.type_rules("order.paid").kind is shop.kinds["order"]
    assert shop.type_rules("refund.succeeded").kind is None
    assert ["capture"] == [one.name for one in shop.changes_for("order").effects]
    assert ["receipt"] == [one.name for one in shop.facts_for("refund.succeeded").effects]
    assert 1 == len(shop.changes_for("order").applies)
    assert not shop.facts_for("order.paid")
    order = shop.kinds["order"]
    assert (True, True, False) == (order.has_get, order.has_list, order.observed)


def test_whether_an_overtaken_fact_counts_must_be_said():
    """
    A fact about a versioned resource may come after a newer one. Silence would lose a refund,
    or pay it twice; so every effect, statement and handler about such events must say.
    """
    asked = problems_of(
        ORDER_FACT
        + """
        [[senders.shop.apply]]
        on = ["*"]
        sql = "select 1"

        [[senders.shop.apply]]
        on = ["order.deleted"]
        sql = "select 1"

        [[senders.shop.apply]]
        on = ["orders.*"]
        sql = "select 1"
        """
    )

    assert {
        "effects.receipt.if_stale",
        "senders.shop.apply[0].if_stale",
        "senders.shop.apply[1].if_stale",
    } == set(asked)
    for message in asked.values():
        assert '"count"' in message
        assert '"skip"' in message
        assert "shop:order" in message


@pytest.mark.parametrize("answer", ["count", "skip"])
def test_either_answer_will_do(answer):
    """It is a question, not a rule."""
    assert rules_for(ORDER_FACT + f'if_stale = "{answer}"')


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        (CAPTURE.replace("shop:order", "shop:ordr"), "effects.capture.on_change[0]", "'order'"),
        (CAPTURE.replace("shop:order", "shp:order"), "effects.capture.on_change[0]", "'shop'"),
        (CAPTURE.replace("shop:order", "order"), "effects.capture.on_change[0]", "shop:order"),
        (RECEIPT.replace("shop:", ""), "effects.receipt.on[0]", '"sender:type"'),
        (RECEIPT.replace("shop:", "shop2:"), "effects.receipt.on[0]", "'shop'"),
        (
            RECEIPT.replace("shop:refund.succeeded", "reconciler:deed"),
            "effects.receipt.on[0]", "did you mean 'dead'",
        ),
        (CAPTURE.replace("payments", "payment"), "effects.capture.destination", "'payments'"),
        (
            CAPTURE.replace("state.paid", "previous.paid"),
            "effects.capture.becomes", "previous",
        ),
        (CAPTURE.replace("state.paid", "version > 3"), "effects.capture.becomes", "version"),
        (CAPTURE.replace("state.amount", "stat.amount"), "effects.capture.json", "stat"),
        (CAPTURE + 'when = "amuont > 3"', "effects.capture.when", "amuont"),
        (CAPTURE + 'when = "state.amount >"', "effects.capture.when", ""),
        (CAPTURE + 'if_stale = "skip"', "effects.capture.if_stale", "facts"),
        (RECEIPT + 'becomes = "state.paid"', "effects.receipt.becomes", "on_change"),
        (CAPTURE + 'on = ["shop:refund.*"]', "effects.capture", "not both"),
        (effect(), "effects.told", "on_change"),
        (RECEIPT.replace("POST /v1", "POST v1"), "", ""),
        (RECEIPT.replace("POST /v1/receipts", "POST //evil/x"), "effects.receipt.request", "one /"),
        (
            RECEIPT.replace("POST /v1/receipts", "POST /v1/{{ nme }}"),
            "effects.receipt.request", "nme",
        ),
        (
            RECEIPT + 'headers = { Idempotency-Key = "x" }',
            "effects.receipt.headers.Idempotency-Key", "idempotency_key",
        ),
        (
            RECEIPT + 'headers = { idempotency-key = "x" }',
            "effects.receipt.headers.idempotency-key", "idempotency_key",
        ),
        (RECEIPT + 'headers = { host = "x" }', "effects.receipt.headers.host", "send time"),
        (
            RECEIPT + 'headers = { Authorization = "Bearer x" }',
            "effects.receipt.headers.Authorization", "destination",
        ),
        (
            RECEIPT + 'headers = { Content-Length = "3" }',
            "effects.receipt.headers.Content-Length", "send time",
        ),
        (RECEIPT + 'headers = { X-A = " b" }', "effects.receipt.headers.X-A", "printable"),
        (RECEIPT + 'headers = { X-A = "{{ q }}" }', "effects.receipt.headers.X-A", "q"),
        (
            RECEIPT + 'idempotency_key = "{{ evnt_id }}"',
            "effects.receipt.idempotency_key", "evnt_id",
        ),
    ],
)  # fmt: skip
def test_a_mistake_names_its_key_and_what_would_be_right(text, key, says):
    """Unknown names, kinds, senders and destinations; words that belong elsewhere."""
    if not key:  # the settings' own business
        with pytest.raises(ValueError, match="request"):
            rules_for(text)
        return

    problems = problems_of(text)

    assert [key] == list(problems)
    assert says in problems[key]


@pytest.mark.parametrize(
    ("sql", "params", "key", "says"),
    [
        ("select :order_id", '{ order = "key" }', "params", ":order_id"),
        ("select :order_id", '{ order_id = "key", odd = "1" }', "params.odd", ":odd"),
        ("select :a", '{ a = "kye" }', "params.a", "kye"),
        ("select :a", '{ a = "effect" }', "params.a", "effect"),
        ("commit", "{}", "sql", "COMMIT"),
        ("select 1; select 2", "{}", "sql", "one statement"),
    ],
)
def test_a_statement_and_its_params_must_agree(sql, params, key, says):
    """A name without a value, a value without a place, and what is no statement."""
    problems = problems_of(
        f"\n[[senders.shop.apply]]\non_change = ['order']\nsql = '{sql}'\nparams = {params}\n"
    )

    assert f"senders.shop.apply[0].{key}" in problems
    assert says in problems[f"senders.shop.apply[0].{key}"]


def test_an_event_is_about_at_most_one_resource():
    """Two kinds that claim one type: which of them would it make newer?"""
    line = """
        [senders.shop.resources.line]
        on = ["*.line"]
        key = "id"
        version = "version"
        first_seen = "fire"
        """

    problems = problems_of(line)

    assert ["senders.shop.resources.line.on"] == list(problems)
    assert "also_read" in problems["senders.shop.resources.line.on"]
    assert rules_for(line.replace("*.line", "line.*"))


def test_two_effects_of_one_fact_need_keys_of_their_own():
    """
    A charge and a receipt for one event at one provider: under one key the second would be taken
    for a repetition of the first, and never happen (C81).
    """
    problems = problems_of(RECEIPT + SECOND_RECEIPT)

    assert ["effects.letter.idempotency_key"] == list(problems)
    assert '"{{ event_id }}:letter"' in problems["effects.letter.idempotency_key"]
    assert rules_for(RECEIPT + SECOND_RECEIPT + 'idempotency_key = "{{ event_id }}:letter"')
    assert rules_for(RECEIPT + SECOND_RECEIPT.replace("payments", "mailer"))
    assert rules_for(RECEIPT + SECOND_RECEIPT.replace("refund.s", "chargeback.s"))


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [
        ("{{ event_id }}:x", "{{event_id}}:x", True),
        ("{{ event_id }}:x", "{{ event_id }}:y", False),
        ("{{ event_id }}:{{ effect }}", "{{ event_id }}:{{ effect }}", False),
        ("{{ body.data.refund }}", "{{ body.data.refund }}", True),
        ("{{ type }}:{{ event_id }}", "{{ type }}:{{ event_id }}", True),
    ],
)
def test_keys_that_are_set_may_meet_as_well(first, second, meet):
    """Setting a key is no excuse: what two effects of one fact set must differ."""
    text = f"{RECEIPT}idempotency_key = '{first}'\n{SECOND_RECEIPT}idempotency_key = '{second}'\n"
    if meet:
        assert ["effects.letter.idempotency_key"] == list(problems_of(text))
    else:
        assert rules_for(text)


def test_facts_of_two_senders_need_keys_of_their_own():
    """`evt_1` of the shop and `evt_1` of the market are two events."""
    both = RECEIPT.replace('"shop:refund', '"*:refund')
    other = SECOND_RECEIPT.replace('"shop:refund', '"market:refund')

    assert ["effects.receipt.idempotency_key"] == list(problems_of(SECOND_SHOP + both))
    assert ["effects.letter.idempotency_key"] == list(problems_of(SECOND_SHOP + RECEIPT + other))
    assert ["effects.receipt.idempotency_key"] == list(
        problems_of(SECOND_SHOP + both + 'idempotency_key = "{{ event_id }}:receipt"')
    )
    assert rules_for(SECOND_SHOP + both + 'idempotency_key = "{{ sender }}:{{ event_id }}"')
    assert rules_for(SECOND_SHOP + RECEIPT + other + 'idempotency_key = "{{ event_id }}:letter"')


@pytest.mark.parametrize(
    "name",
    ["event_id", "type", "occurred_at", "origin", "body.id", "headers['x']", "previous.status"],
)
def test_the_key_of_a_change_is_the_same_on_every_path(name):
    """A webhook and a correction of one change have different ids; under two keys it is charged
    twice (C119)."""
    problems = problems_of(CAPTURE + f'idempotency_key = "{{{{ {name} }}}}:{{{{ key }}}}"')

    assert ["effects.capture.idempotency_key"] == list(problems)
    assert name.partition(".")[0].partition("[")[0] in problems["effects.capture.idempotency_key"]


@pytest.mark.parametrize(
    "key", ["capture:{{ key }}", "{{ kind }}/{{ key }}/{{ version }}", "{{ state.status }}"]
)
def test_a_change_may_name_what_every_path_knows(key):
    """Kind, key, version and state are the resource's own."""
    assert rules_for(CAPTURE + f'idempotency_key = "{key}"')


def test_one_key_for_two_kinds_would_swallow_calls():
    """Order 42 and customer 42 are two things: the second call would be `key used`."""
    customer = """
        [senders.shop.resources.customer]
        on = ["customer.*"]
        key = "id"
        version = "version"
        first_seen = "fire"
        """
    both = CAPTURE.replace("shop:order", "shop:*").replace("state.paid", "state.vip")
    once = both + 'idempotency_key = "once:{{ key }}"'

    assert ["effects.capture.idempotency_key"] == list(problems_of(once + customer))
    assert rules_for(once.replace("once:", "{{ kind }}:") + customer)
    assert rules_for(both + customer)


def test_an_observed_kind_has_no_usual_key():
    """Its version is the moment of our own read, which no other path shares."""
    observed = """
        [senders.shop.resources.stock]
        key = "sku"
        version = { kind = "observed" }
        fields = { empty = "empty" }
        [senders.shop.resources.stock.get]
        path = "/v1/stock/{{ key }}"
        """
    reorder = effect('on_change = ["shop:stock"]', 'becomes = "state.empty"', name="reorder")

    problems = problems_of(observed + reorder)

    assert ["effects.reorder.idempotency_key"] == list(problems)
    assert "observed" in problems["effects.reorder.idempotency_key"]
    assert rules_for(observed + reorder + '\nidempotency_key = "reorder:{{ key }}"')


def test_an_age_limit_needs_an_age():
    """`max_age` on a correction whose listing tells no time would be an empty promise."""
    undated = """
        [senders.shop.resources.bill]
        on = ["bill.*"]
        key = "id"
        version = "version"
        [senders.shop.resources.bill.list]
        path = "/v1/bills"
        items = "data"
        """
    late = effect('on_change = ["shop:bill"]', 'max_age = "48h"')

    assert ["effects.told.max_age"] == list(problems_of(undated + late))
    assert rules_for(undated + 'changed_at = "updated_at"\n' + late)
    assert rules_for(
        undated.replace('"version"', '{ value = "updated", kind = "timestamp" }') + late
    )
    fact = effect('on = ["market:refund.*"]', 'max_age = "48h"')
    assert ["effects.told.max_age"] == list(problems_of(SECOND_SHOP + fact))


def test_a_field_that_nobody_declares_is_a_mistake():
    """`fields` says what the state has; `state.payed` would be null for ever, and never true."""
    problems = problems_of(CAPTURE.replace("state.paid", "state.payed"))

    assert ["effects.capture.becomes"] == list(problems)
    assert "'paid'" in problems["effects.capture.becomes"]


def test_what_is_read_beside_the_event_is_named_over_the_event():
    """`also_read` uses the event's own names: any name is a member of the body."""
    read = """
        [[senders.shop.also_read]]
        on = ["refund.*"]
        kind = "order"
        key = "data.order_id"
        """
    shop = rules_for(read).senders["shop"]

    [one] = shop.also_read_for("refund.succeeded")
    assert "ord_42" == one.key.value({"body": {"data": {"order_id": "ord_42"}}, "headers": {}})
    assert shop.known("refund.failed")
    assert () == shop.also_read_for("order.paid")
    assert ["senders.shop.also_read[0].key"] == list(
        problems_of(read.replace("data.order_id", "data..order_id"))
    )


def test_types_without_end_take_no_memory():
    """A sender may make types up; the rules of a type are remembered for so many and no more."""
    from reconciler.ledger.rules import KEPT_TYPES

    shop = rules_for(RECEIPT).senders["shop"]

    for number in range(3 * KEPT_TYPES):
        assert shop.known(f"order.{number}")
    assert shop.known("order." + 1000 * "x")

    assert len(shop._by_type) <= KEPT_TYPES  # noqa: SLF001
    assert all(len(kept) < 1000 for kept in shop._by_type)  # noqa: SLF001
    assert shop.facts_for("refund.succeeded") is shop.facts_for("refund.succeeded")


def test_everything_wrong_is_told_at_once():
    """Nobody likes to be told one mistake per start."""
    with pytest.raises(ConfigError) as caught:
        rules_for(
            CAPTURE.replace("payments", "nowhere")
            + ORDER_FACT
            + effect('on_change = ["shop:nothing"]', 'when = "x"', name="third")
        )

    assert {
        "effects.capture.destination",
        "effects.receipt.if_stale",
        "effects.third.on_change[0]",
        "effects.third.when",
    } == {problem.key for problem in caught.value.problems}
