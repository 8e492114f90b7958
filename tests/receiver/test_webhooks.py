"""Stories of deliveries over HTTP, into a real ledger: what is answered and what is stored."""

import asyncio
import gzip
import json
import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
import standardwebhooks
import stripe
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from .receiving import receiving
from .senders import NOW, SECRET, SHOP, body_of, order, signed

pytestmark = pytest.mark.anyio

APPLIED = {"processed_events": 1, "event_bodies": 1, "resources": 1}


def with_sender(line: str) -> str:
    """Return the shop's configuration with *line* in its sender."""
    return SHOP.replace("[senders.shop]\n", f"[senders.shop]\n{line}\n", 1)


def with_signature(line: str) -> str:
    return f"{SHOP}\n[senders.shop.signature]\n{line}\n"


async def test_three_deliveries_of_one_event_are_one_row(engine: AsyncEngine, tmp_path: Path):
    """
    The guide's own proof: the same delivery three times, over HTTP. The first is applied, the
    others hear that it was, and all hear 200. With one sender, `/webhooks` is address enough.
    """
    async with receiving(engine, tmp_path) as shop:
        answers = [await shop.deliver(order(), "/webhooks") for _ in range(3)]

        assert [200, 200, 200] == [answer.status_code for answer in answers]
        assert [
            {"outcome": outcome, "event_id": "evt_1"}
            for outcome in ("applied", "duplicate", "duplicate")
        ] == [answer.json() for answer in answers]
        assert APPLIED == await shop.counts()


async def test_concurrent_deliveries_of_one_event_are_one_row(engine: AsyncEngine, tmp_path: Path):
    """Forty at once, over as many connections: one is applied, each gets its answer."""
    async with receiving(engine, tmp_path) as shop, asyncio.TaskGroup() as group:
        tasks = [group.create_task(shop.deliver(order())) for _ in range(40)]
    outcomes = sorted(task.result().json()["outcome"] for task in tasks)

    assert ["applied"] + ["duplicate"] * 39 == outcomes


async def test_an_older_version_is_claimed_and_changes_nothing(engine: AsyncEngine, tmp_path: Path):
    async with receiving(engine, tmp_path) as shop:
        newer = await shop.deliver(order("evt_2", version=2, amount=20))
        older = await shop.deliver(order("evt_1", version=1, amount=10))

        assert ("applied", "stale") == (newer.json()["outcome"], older.json()["outcome"])
        assert [("2", {"amount": 20, "status": "paid"})] == await shop.rows(
            "select version::text, state from reconciler.resources"
        )


async def test_one_altered_byte_is_refused_and_leaves_no_row(engine: AsyncEngine, tmp_path: Path):
    """The same answer whichever check failed; why is for the metrics."""
    body = body_of(order())
    stale = signed(body, now=NOW - 301)
    async with receiving(engine, tmp_path) as shop:
        answers = [
            await shop.post(body.replace(b"paid", b"paie"), headers=signed(body)),
            await shop.post(body, headers={}),
            await shop.post(body, headers=stale),
            await shop.post(body, headers=signed(body) | {"X-Signature": "rubbish"}),
            await shop.post(bytes.fromhex("7B226E223A22FFFE227D"), headers=signed(body)),
        ]

        assert {(401, b'{"error": "signature"}')} == {(a.status_code, a.content) for a in answers}
        assert ["wrong", "missing", "too_old", "malformed", "wrong"] == [
            told.reason for told in shop.told
        ]
        assert {} == await shop.counts()


async def test_the_status_of_a_refusal_is_the_senders_convention(
    engine: AsyncEngine, tmp_path: Path
):
    async with receiving(engine, tmp_path, with_signature("refused_status = 498")) as shop:
        assert 498 == (await shop.post(b"{}")).status_code


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"Hello, World!", id="not JSON"),
        pytest.param(b"", id="empty"),
        pytest.param(bytes.fromhex("7B226E223A22FFFE227D"), id="not UTF-8"),
        pytest.param(b'{"id":"evt_n","type":"t","data":{"x":NaN}}', id="NaN"),
        pytest.param(
            b'{"id":"e","type":"t","data":%b1%b}' % (b"[" * 20000, b"]" * 20000), id="deep"
        ),
        pytest.param(b'{"id":"evt_0","type":"t","data":{"note":"a\\u0000b"}}', id="NUL"),
        pytest.param(body_of(order("e" * 3000)), id="long id"),
        pytest.param(body_of(order("correction:order:ord_42:1")), id="our id"),
        pytest.param(body_of({"id": "evt_1", "data": {}}), id="no type"),
        pytest.param(body_of(order(version="seven")), id="bad version"),
        pytest.param(body_of(order(version=2**63)), id="large version"),
    ],
)
async def test_what_is_beyond_use_is_kept_once_and_acknowledged(
    engine: AsyncEngine, tmp_path: Path, body: bytes
):
    """
    It will never become better, so no sender is asked to repeat it; one that does finds it
    kept. Its neighbour is served as if nothing were (C16 C18 C20 C31, P17).
    """
    async with receiving(engine, tmp_path) as shop:
        answers = [await shop.deliver(body) for _ in range(2)]
        neighbour = await shop.deliver(order("evt_good"))

        assert [200, 200] == [answer.status_code for answer in answers]
        assert {"quarantined"} == {answer.json()["outcome"] for answer in answers}
        assert "applied" == neighbour.json()["outcome"]
        ((kept, failures, state),) = await shop.rows(
            "select body, failures, state from reconciler.quarantine"
        )
        assert (body, 2, "open") == (bytes(kept), failures, state)
        assert {**APPLIED, "quarantine": 1} == await shop.counts()


async def test_a_sender_may_want_to_hear_of_it(engine: AsyncEngine, tmp_path: Path):
    """With `on_malformed = "refuse"` it is 422, and nothing is kept."""
    async with receiving(engine, tmp_path, with_sender('on_malformed = "refuse"')) as shop:
        answer = await shop.deliver({"id": "evt_1"})

        assert (422, {"outcome": "refused", "event_id": "evt_1"}) == (
            answer.status_code,
            answer.json(),
        )
        assert {} == await shop.counts()


async def test_unknown_types_are_acknowledged(engine: AsyncEngine, tmp_path: Path):
    """Ten of a type that nobody named: a sender must not disable the endpoint for it (C29)."""
    async with receiving(engine, tmp_path) as shop:
        answers = [
            await shop.deliver({"id": f"evt_k{n}", "type": "invoice.some_new_thing"})
            for n in range(10)
        ]
        known = await shop.deliver(order())

        assert {(200, "ignored")} == {(a.status_code, a.json()["outcome"]) for a in answers}
        assert "applied" == known.json()["outcome"]


async def test_secrets_in_headers_are_not_stored(engine: AsyncEngine, tmp_path: Path):
    """Names are kept, values that would let somebody in are not (P18)."""
    async with receiving(engine, tmp_path) as shop:
        await shop.deliver(
            order(),
            **{
                "Authorization": "Bearer abc",
                "Cookie": "a=b",
                "X-Note": f"<{SECRET}>",
                "X-Id": "7",
            },
        )
        ((headers,),) = await shop.rows("select headers from reconciler.event_bodies")

        for name in ("authorization", "cookie", "x-signature", "x-note"):
            assert "***" == headers[name]
        assert ("7", str(NOW)) == (headers["x-id"], headers["x-signature-timestamp"])


async def test_what_an_event_is_read_from_is_stored_as_it_came(engine: AsyncEngine, tmp_path: Path):
    """
    An id in a header that sounds secret, or that holds a short secret by chance, is an id all
    the same: masked, all events of this sender would be one.
    """
    configuration = (
        SHOP
        + """
[senders.shop.event]
id = "headers['X-Event-Token']"
type = "headers['x-kind'] ~ '.' ~ type"
"""
    )
    async with receiving(engine, tmp_path, configuration, secret="evt") as shop:  # noqa: S106
        for number in (1, 2):
            body = body_of({"type": "paid"})
            headers = {"X-Event-Token": f"evt_{number}", "X-Kind": "evt", "X-Other": "evt"}
            answer = await shop.post(body, headers=signed(body, secret="evt") | headers)  # noqa: S106
            assert {"outcome": "ignored", "event_id": f"evt_{number}"} == answer.json()
        rows = await shop.rows(
            "select headers->>'x-event-token', headers->>'x-other' from reconciler.event_bodies"
        )
        assert [("evt_1", "***"), ("evt_2", "***")] == sorted(rows)


async def test_where_nothing_is_received(engine: AsyncEngine, tmp_path: Path):
    """An unknown sender is 404, never 410; another method is told which one would do."""
    two = SHOP + '\n[senders.market]\nsecrets = ["env:SHOP_SECRET"]\n'
    async with receiving(engine, tmp_path, two) as shop:
        for path in ("/webhooks/nobody", "/webhooks", "/", "/webhooks/shop/", "/shop"):
            assert 404 == (await shop.deliver(order(), path)).status_code
        for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS"):
            answer = await shop.http.request(method, "/webhooks/shop")
            assert (405, "POST") == (answer.status_code, answer.headers["allow"])
        assert {} == await shop.counts()


async def test_ids_belong_to_their_sender(engine: AsyncEngine, tmp_path: Path):
    """`evt_1` of one is not `evt_1` of the other (C34)."""
    two = SHOP + '\n[senders.market]\nsecrets = ["env:SHOP_SECRET"]\n'
    async with receiving(engine, tmp_path, two) as shop:
        one = await shop.deliver(order())
        other = await shop.deliver(order(), "/webhooks/market")

        assert ("applied", "ignored") == (one.json()["outcome"], other.json()["outcome"])
        assert 2 == (await shop.counts())["processed_events"]


async def test_a_batch_is_answered_item_by_item(engine: AsyncEngine, tmp_path: Path):
    """
    Four events in one delivery, one beyond use and one twice: each has its outcome, in order,
    and the one that is beyond use is kept alone.
    """
    batch = SHOP + '\n[senders.shop.event]\nitems = "events"\n'
    bad = {"id": "evt_2", "type": "order.paid", "data": {"order_id": "a", "version": "x"}}
    async with receiving(engine, tmp_path, batch) as shop:
        answer = await shop.deliver(
            {"events": [order("evt_1"), bad, order("evt_3", version=3), order("evt_1")]}
        )

        assert (
            200,
            {
                "results": [
                    {"outcome": "applied", "event_id": "evt_1"},
                    {"outcome": "quarantined", "event_id": "evt_2"},
                    {"outcome": "applied", "event_id": "evt_3"},
                    {"outcome": "duplicate", "event_id": "evt_1"},
                ]
            },
        ) == (answer.status_code, answer.json())
        ((kept,),) = await shop.rows("select body from reconciler.quarantine")
        assert bad == json.loads(bytes(kept))
        assert {"results": []} == (await shop.deliver({"events": []})).json()


async def test_the_users_own_failure_is_an_error_until_it_is_too_many(
    engine: AsyncEngine, tmp_path: Path
):
    """
    The user's statement breaks a constraint of theirs: 500, so that the sender tries again, and
    a copy is kept. The fifth time it is acknowledged, or the sender would give up on us. Another
    order goes through all the time (P15).
    """
    apply = """
[[senders.shop.apply]]
on_change = ["order"]
sql = "INSERT INTO orders (id, amount) VALUES (:id, :amount)"
params = { id = "key", amount = "state.amount" }
"""
    async with engine.begin() as connection:
        await connection.execute(
            text("create table public.orders (id text primary key, amount int check (amount > 0))")
        )
    configuration = '[database]\nsearch_path = "public"\n' + SHOP + apply
    async with receiving(engine, tmp_path, configuration) as shop:
        bad = [await shop.deliver(order(amount=-1)) for _ in range(5)]
        good = await shop.deliver(order("evt_2", amount=1, order_id="ord_2"))

        assert [500, 500, 500, 500, 200] == [answer.status_code for answer in bad]
        assert {("quarantined", "evt_1")} == {
            (a.json()["outcome"], a.json()["event_id"]) for a in bad
        }
        assert "applied" == good.json()["outcome"]
        assert [("ord_2", 1)] == await shop.rows("select * from public.orders")
        assert [(5,)] == await shop.rows("select failures from reconciler.quarantine")


@pytest.mark.parametrize(
    "compressed",
    [gzip.compress, lambda b: gzip.compress(b[:9]) + gzip.compress(b[9:])],
    ids=["one", "two members"],
)
async def test_a_compressed_body_is_signed_as_it_travels(
    engine: AsyncEngine, tmp_path: Path, compressed
):
    """Where `encodings` says so it is inflated after the check; elsewhere it is 415 (C13)."""
    wire, header = compressed(body_of(order())), {"Content-Encoding": "gzip"}
    async with receiving(engine, tmp_path, with_signature('encodings = ["gzip"]')) as shop:
        forged = await shop.post(wire, headers=signed(body_of(order())) | header)
        accepted = await shop.post(wire, headers=signed(wire) | header)

        assert (401, 200) == (forged.status_code, accepted.status_code)
        ((kept, headers),) = await shop.rows("select body, headers from reconciler.event_bodies")
        assert body_of(order()) == bytes(kept)
        assert "content-encoding" not in headers
        for encoding in ("br", "gzip, gzip", "deflate"):
            other = await shop.post(wire, headers=signed(wire) | {"Content-Encoding": encoding})
            assert 415 == other.status_code


async def test_without_encodings_no_encoding_is_taken(engine: AsyncEngine, tmp_path: Path):
    wire = gzip.compress(body_of(order()))
    async with receiving(engine, tmp_path) as shop:
        answer = await shop.deliver(wire, **{"Content-Encoding": "gzip"})
        plain = await shop.deliver(order(), **{"Content-Encoding": "identity"})

        assert (415, 200) == (answer.status_code, plain.status_code)


async def test_what_inflates_without_end_is_cut_off(engine: AsyncEngine, tmp_path: Path):
    """Two hundred kilobytes of gzip that would be two hundred megabytes: 413, no memory taken."""
    press = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(press.compress(bytes(1024**2)) for _ in range(200)) + press.flush()
    async with receiving(engine, tmp_path, with_signature('encodings = ["gzip"]')) as shop:
        answer = await shop.deliver(bomb, **{"Content-Encoding": "gzip"})
        broken = await shop.deliver(bomb[:1000], **{"Content-Encoding": "gzip"})
        rubbish = await shop.deliver(gzip.compress(b"{}") + b"x", **{"Content-Encoding": "gzip"})

        assert 413 == answer.status_code
        assert ["quarantined"] * 2 == [a.json()["outcome"] for a in (broken, rubbish)]
        assert {"quarantine": 2} == await shop.counts()


GREETING = """
[[senders.shop.handshake]]
when = "body.type == 'url_verification'"
text = "{{ body.challenge }}"

[[senders.shop.handshake]]
when = "method == 'GET' and query['hub.verify_token'] == 'tok'"
signed = false
text = "{{ query['hub.challenge'] }}"

[[senders.shop.handshake]]
when = "query.validation is not none"
signed = false
text = "{{ query.validation }}"

[[senders.shop.handshake]]
when = "body.type == 'ping'"
status = 204
"""


async def test_handshakes_are_answered_as_the_sender_asks(engine: AsyncEngine, tmp_path: Path):
    """
    A signed challenge in the body, one on GET with a token, one in the query of a POST, an empty
    ping. None of them is an event, and none answers what it was not declared for.
    """
    async with receiving(engine, tmp_path, SHOP + GREETING) as shop:
        challenge = {"type": "url_verification", "challenge": "abc<b>"}
        body = await shop.deliver(challenge)
        forged = await shop.post(body_of(challenge))
        query = "/webhooks/shop?hub.challenge=42&hub.verify_token="
        get, head = await shop.http.get(query + "tok"), await shop.http.head(query + "tok")
        wrong = await shop.http.get(query + "other")
        echo = await shop.post(b"", "/webhooks/shop?validation=a%20b")
        ping = await shop.deliver({"type": "ping"})
        broken = await shop.deliver({"type": "url_verification", "challenge": ["a", "list"]})

        assert (200, "abc<b>") == (body.status_code, body.text)
        assert body.headers["content-type"].startswith("text/plain")
        assert (401, 401) == (forged.status_code, 401)
        assert (200, "42") == (get.status_code, get.text)
        assert (405, 405) == (head.status_code, wrong.status_code)
        assert "GET" in wrong.headers["allow"]
        assert (200, "a b") == (echo.status_code, echo.text)
        assert (204, "") == (ping.status_code, ping.text)
        assert "quarantined" == broken.json()["outcome"]
        assert {"quarantine": 1} == await shop.counts()


async def test_stripe_signs_for_the_shipped_preset(engine: AsyncEngine, tmp_path: Path):
    """Stripe's own library signs, the preset as shipped accepts; an altered byte is 401."""
    configuration = '[senders.stripe]\npreset = "stripe"\nsecrets = ["env:SHOP_SECRET"]\n'
    event = {"id": "evt_1", "object": "event", "type": "charge.succeeded", "created": NOW}
    body = body_of(event)
    signature = stripe.WebhookSignature._compute_signature(f"{NOW}.{body.decode()}", SECRET)  # noqa: SLF001
    headers = {"Stripe-Signature": f"t={NOW},v1={signature},v0=6ffbb59b2300aae63f272406069a9788"}
    assert stripe.Webhook.construct_event(body, headers["Stripe-Signature"], SECRET, 10**10)
    async with receiving(engine, tmp_path, configuration) as receiver:
        accepted = await receiver.post(body, "/webhooks/stripe", headers)
        altered = await receiver.post(body.replace(b"evt_1", b"evt_2"), "/webhooks/stripe", headers)

        assert (200, 401) == (accepted.status_code, altered.status_code)
        assert {"outcome": "ignored", "event_id": "evt_1"} == accepted.json()
        assert 1 == (await receiver.counts())["processed_events"]


async def test_standard_webhooks_signs_for_the_shipped_preset(engine: AsyncEngine, tmp_path: Path):
    """The specification's own library, and the vector that it is published with."""
    key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    configuration = '[senders.std]\npreset = "standard-webhooks"\nsecrets = ["env:SHOP_SECRET"]\n'
    body = body_of({"type": "contact.created", "data": {"id": "c_1"}})
    now = 1_614_265_330
    signature = standardwebhooks.Webhook(key).sign(
        "msg_1", datetime.fromtimestamp(now, tz=UTC), body.decode()
    )
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": signature}
    published = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": str(now),
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    async with receiving(engine, tmp_path, configuration, now=now, secret=key) as receiver:
        accepted = await receiver.post(body, headers=headers, path="/webhooks")
        altered = await receiver.post(body + b" ", headers=headers, path="/webhooks")
        vector = await receiver.post(b'{"test": 2432232314}', "/webhooks", published)

        assert {"outcome": "ignored", "event_id": "msg_1"} == accepted.json()
        assert (401, 200) == (altered.status_code, vector.status_code)
        assert "quarantined" == vector.json()["outcome"]  # right, but it has no type
        assert 1 == (await receiver.counts())["processed_events"]


async def test_githubs_published_vector_is_right(engine: AsyncEngine, tmp_path: Path):
    """ "Hello, World!" is authentic, and no event: kept. With a comma less it is refused."""
    configuration = '[senders.github]\npreset = "github"\nsecrets = ["env:SHOP_SECRET"]\n'
    headers = {
        "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "X-GitHub-Event": "issues",
        "X-Hub-Signature-256": "sha256="
        "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
    }
    async with receiving(engine, tmp_path, configuration) as receiver:
        accepted = await receiver.post(b"Hello, World!", "/webhooks/github", headers)
        altered = await receiver.post(b"Hello World!", "/webhooks/github", headers)

        assert (200, "quarantined") == (accepted.status_code, accepted.json()["outcome"])
        assert 401 == altered.status_code
        assert {"quarantine": 1} == await receiver.counts()
