"""Profiles of destinations: each provider answers as it documents, and this is what follows."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

import pytest

from outbox.destinations import Request
from outbox.entry import Verdict
from outbox.verdict import Before, verdict
from reconciler.data import config_directory
from reconciler.errors import ConfigError
from reconciler.ledger.calls import Content, freeze
from reconciler.ledger.targets import targets_of
from reconciler.operations.assembly import assemble
from tests.outbox.pretend import Answers, in_turn

NOW = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)
DELIVERED, RETRY, DEAD, UNCERTAIN = Verdict
SHIPPED = sorted(config_directory().glob("destinations/*.toml"))
ENVIRONMENT = {"SHOP_SECRET": "a-shop-secret", "TOKEN": "a-token"}
LONG_KEY = "capture:shop:ord_42:" + "7" * 300
EXAMPLE = """
[senders.shop]
secrets = ["env:SHOP_SECRET"]

[destinations.there]
base_url = "{base_url}"
allow_private = ["127.0.0.0/8"]
profile = "{profile}"
{more}

[effects.capture]
on = ["shop:order.paid"]
destination = "there"
request = "POST /v1/things"
json = {{ reference = "{{{{ event_id }}}}" }}
"""


def an_answer(status, body="", **headers):
    lines = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answers(status=status, body=json.dumps(body).encode() if body else b"", headers=lines)


REPLAYED = {"Idempotent_Replayed": "true"}
STRIPE_MISMATCH = {"error": {"type": "idempotency_error"}}
STRIPE_BUSY = {"error": {"type": "invalid_request_error", "code": "idempotency_key_in_use"}}
ADYEN_BUSY = {"status": 422, "errorCode": "704", "message": "request already processed"}
SQUARE_REUSED = {
    "errors": [{"category": "INVALID_REQUEST_ERROR", "code": "IDEMPOTENCY_KEY_REUSED"}]
}
GOCARDLESS_CONFLICT = {
    "error": {
        "type": "invalid_state",
        "code": 409,
        "errors": [
            {
                "reason": "idempotent_creation_conflict",
                "links": {"conflicting_resource_id": "PM123"},
            }
        ],
    }
}
GOCARDLESS_OTHER = {"error": {"type": "invalid_state", "errors": [{"reason": "cancelled"}]}}


def user_error(code):
    return {"data": {"refundCreate": {"refund": None, "userErrors": [{"code": code}]}}}


def graphql_error(code):
    return {"data": None, "errors": [{"message": "...", "extensions": {"code": code}}]}


@dataclass(frozen=True, kw_only=True)
class Story:
    """A provider: where it finds the key, how long that may be, its answers and their meaning."""

    key_in: str = "idempotency-key"  #: a header, or with a slash in front a field of the body
    most: int = 255
    honours: bool = True  #: the key, if the effect does not say more
    answers: tuple[tuple[Answers, Verdict], ...]


#: no answer of the provider's own, but of something on the way: a login page, nothing at all
NOBODY_KNOWS_WHO = (an_answer(200), Answers(status=200, body=b"<html>Sign in</html>"))
NO_KEY = ((an_answer(500), UNCERTAIN), (an_answer(409), DEAD), (an_answer(429), RETRY))
STORIES = {
    "stripe": Story(
        answers=(
            (an_answer(409, STRIPE_BUSY), RETRY),
            (an_answer(400, STRIPE_MISMATCH), DEAD),
            (an_answer(500), RETRY),
            (an_answer(500, {"error": {"type": "api_error"}}, **REPLAYED), UNCERTAIN),
            (an_answer(402, {"error": {"type": "card_error"}}, **REPLAYED), DEAD),
            (an_answer(200, {"id": "ch_1"}, **REPLAYED), DELIVERED),
        )
    ),
    "stripe_v2": Story(answers=((an_answer(500), RETRY), (an_answer(200, {"id": "a"}), DELIVERED))),
    "adyen": Story(
        most=64,
        answers=(
            (an_answer(422, ADYEN_BUSY), RETRY),
            (an_answer(503, transient_error="true"), RETRY),
            (an_answer(422, transient_error="true"), RETRY),
            (an_answer(422, {"errorCode": "101"}), DEAD),
            (an_answer(200, {"pspReference": "x"}, idempotency_key="k"), DELIVERED),
        ),
    ),
    "square": Story(
        key_in="/idempotency_key",
        most=45,
        answers=(
            (an_answer(400, SQUARE_REUSED), DEAD),
            (an_answer(500), RETRY),
            (an_answer(200, {"payment": {"id": "p"}}), DELIVERED),
        ),
    ),
    "paypal": Story(
        key_in="paypal-request-id",
        most=108,
        answers=((an_answer(201), DELIVERED), (an_answer(200), DELIVERED), (an_answer(422), DEAD)),
    ),
    "mollie": Story(
        answers=(
            (an_answer(409), RETRY),
            (an_answer(400, {"status": 400}), DEAD),
            (an_answer(503, {"status": 503}, **REPLAYED), UNCERTAIN),
            (an_answer(201, {"id": "tr_1"}, **REPLAYED), DELIVERED),
        )
    ),
    "gocardless": Story(
        answers=(
            (an_answer(409, GOCARDLESS_CONFLICT), DELIVERED),
            (an_answer(422, GOCARDLESS_OTHER), DEAD),
            (an_answer(500), RETRY),
        )
    ),
    "checkout": Story(
        key_in="cko-idempotency-key",
        answers=((an_answer(409), RETRY), (an_answer(502), RETRY), (an_answer(201), DELIVERED)),
    ),
    "xero": Story(most=128, answers=((an_answer(500), RETRY), (an_answer(400), DEAD))),
    "zendesk": Story(
        answers=(
            (an_answer(400, {"error": "IdempotentRequestError"}), DEAD),
            (an_answer(500, x_idempotency_lookup="miss"), RETRY),
            (an_answer(500, x_idempotency_lookup="hit"), UNCERTAIN),
            (an_answer(201, {"ticket": {}}, x_idempotency_lookup="hit"), DELIVERED),
        )
    ),
    "shopify": Story(
        key_in="/variables.idempotencyKey",
        most=36,
        honours=False,
        answers=(
            (an_answer(200, {"data": {"refundCreate": {"userErrors": []}}}), DELIVERED),
            (an_answer(200, user_error("INVALID")), DEAD),
            (an_answer(200, user_error("IDEMPOTENCY_CONCURRENT_REQUEST")), UNCERTAIN),
            (an_answer(200, graphql_error("THROTTLED")), RETRY),
            (an_answer(200, graphql_error("INTERNAL_SERVER_ERROR")), UNCERTAIN),
            (an_answer(200, graphql_error("IDEMPOTENCY_KEY_PARAMETER_MISMATCH")), DEAD),
            (an_answer(200, graphql_error("ACCESS_DENIED")), DEAD),
            *((odd, UNCERTAIN) for odd in NOBODY_KNOWS_WHO),
        ),
    ),
    "resend": Story(
        answers=(
            (an_answer(409, {"name": "concurrent_idempotent_requests"}), RETRY),
            (an_answer(409, {"name": "invalid_idempotent_request"}), DEAD),
            (an_answer(200, {"id": "mail_1"}), DELIVERED),
        )
    ),
    "svix": Story(
        answers=((an_answer(500), RETRY), (an_answer(409), DEAD), (an_answer(202), DELIVERED))
    ),
    "discord": Story(
        key_in="/nonce",
        most=25,
        honours=False,
        answers=((an_answer(500), UNCERTAIN), (an_answer(429), RETRY), (an_answer(200), DELIVERED)),
    ),
    "postmark": Story(
        honours=False,
        answers=(
            *NO_KEY,
            (an_answer(422, {"ErrorCode": 406}), DEAD),
            (an_answer(200, {"ErrorCode": 300}), DEAD),
            (an_answer(200, {"ErrorCode": 0}), DELIVERED),
            (an_answer(200, [{"ErrorCode": 0}, {"ErrorCode": 0}]), DELIVERED),
            (an_answer(200, [{"ErrorCode": 406}, {"ErrorCode": 300}]), DEAD),
            (an_answer(200, [{"ErrorCode": 0}, {"ErrorCode": 406}]), UNCERTAIN),
            (an_answer(200, {"ID": 1234567}), DELIVERED),
            (an_answer(200, {"Message": '"ErrorCode":1', "ErrorCode": 0}), DELIVERED),
            *((odd, UNCERTAIN) for odd in NOBODY_KNOWS_WHO),
        ),
    ),
    "slack": Story(
        honours=False,
        answers=(
            (an_answer(200, {"ok": True, "ts": "1.2"}), DELIVERED),
            (an_answer(200, {"ok": False, "error": "channel_not_found"}), DEAD),
            (an_answer(200, {"ok": False, "error": "ratelimited"}), RETRY),
            (an_answer(200, {"ok": False, "error": "fatal_error"}), UNCERTAIN),
            *((odd, UNCERTAIN) for odd in NOBODY_KNOWS_WHO),
            (an_answer(500), UNCERTAIN),
        ),
    ),
    "github": Story(
        honours=False,
        answers=(*NO_KEY, (an_answer(403, retry_after="60"), RETRY), (an_answer(201), DELIVERED)),
    ),
    **{
        name: Story(honours=False, answers=(*NO_KEY, (an_answer(202), DELIVERED)))
        for name in ("sendgrid", "mailgun", "twilio", "gitlab", "paddle", "hubspot")
    },
}


def configured(directory, profile, *, base_url="http://127.0.0.1:1", more=""):
    file = directory / "reconciler.toml"
    file.write_text(EXAMPLE.format(profile=profile, base_url=base_url, more=more))
    return assemble(file, environ=ENVIRONMENT)


def problems_of(directory, profile, **how):
    with pytest.raises(ConfigError) as refused:
        configured(directory, profile, **how)
    return [(each.file, each.line, each.key, each.message) for each in refused.value.problems]


def test_every_profile_has_a_story_and_says_what_it_rests_on():
    assert sorted(STORIES) == [file.stem for file in SHIPPED]
    for file in SHIPPED:
        text = file.read_text(encoding="utf-8")
        assert text.startswith("# "), file
        assert "\n# https://" in text, file


@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(STORIES))
async def test_a_provider_answers_as_it_documents(name, tmp_path, pretend):
    """The key arrives where the provider looks for it, short enough; and this follows."""
    story = STORIES[name]
    assembly = configured(tmp_path, name, base_url=pretend.url)
    target = targets_of(assembly.loaded.settings)["there"]
    there = assembly.destinations["there"]
    pretend.behave = in_turn(*(answer for answer, _ in story.answers))
    key = target.outgoing(LONG_KEY)
    form = {"amount": 1} if name in {"stripe", "mailgun", "twilio"} else None
    call = freeze(
        method="POST",
        path="/v1/things",
        headers={},
        content=Content(json={"amount": 1, "variables": {}}, has_json=form is None, form=form),
        keyed=target.keyed(key),
    )
    request = Request(
        method=call.method,
        path=call.path,
        headers=call.headers,
        body=call.body,
        idempotency_key=key,
        idempotent=target.idempotent,
    )
    before = Before(idempotent=target.idempotent, maybe_sent=False, last_attempt=False, refusals=0)

    found = []
    for _ in story.answers:
        answer = await there.channel.send(request, timeout=timedelta(seconds=5))
        found.append(verdict(answer, there.rules, before, now=NOW))
    await there.channel.close()

    assert [expected for _, expected in story.answers] == [each.verdict for each in found]
    assert story.honours == target.idempotent
    assert key == key_of(pretend.calls[0], story.key_in)
    assert len(key) <= story.most
    if name == "gocardless":
        assert "PM123" in found[0].reason


def key_of(call, place):
    if not place.startswith("/"):
        return call.headers[place]
    if "form" in call.headers["content-type"]:
        return parse_qs(call.body.decode())[place[1:]][0]
    held = json.loads(call.body)
    for part in place[1:].split("."):
        held = held[part]
    return held


@pytest.mark.parametrize(
    ("name", "more", "key", "expected"),
    [
        ("paypal", 'key_ttl = "72h"', "key_ttl", timedelta(hours=72)),
        ("square", "key_max_length = 192", "key_max_length", 192),
        ("square", 'key_header = "X-Key"', "key_field", None),
        ("discord", "idempotent = true", "idempotent", True),
        ("gocardless", 'conflict = "dead"', "done_when", None),
        (
            "gocardless",
            'headers = { X-Mine = "1" }',
            "headers",
            {"GoCardless-Version": "2015-07-06", "X-Mine": "1"},
        ),
    ],
)
def test_what_the_destination_says_itself_wins(tmp_path, name, more, key, expected):
    """Table by table; and who says the other of two things does not inherit the one."""
    there = configured(tmp_path, name, more=more).loaded.settings.destinations["there"]
    assert expected == getattr(there, key)


def test_an_unknown_profile_is_one_mistake_with_the_nearest_name(tmp_path):
    file = tmp_path / "reconciler.toml"
    file.write_text(
        EXAMPLE.format(profile="stirpe", base_url="", more="").replace('base_url = ""', "")
    )

    with pytest.raises(ConfigError) as refused:
        assemble(file, environ=ENVIRONMENT)

    [problem] = refused.value.problems
    assert (file, "destinations.there.profile") == (problem.file, problem.key)
    assert 'Did you mean "stripe"?' in problem.message


def test_a_profile_brings_an_address_only_where_the_provider_has_one(tmp_path):
    """Stripe has one address; Adyen's live addresses are each customer's own."""
    text = EXAMPLE.format(profile="stripe", base_url="", more="").replace('base_url = ""', "")
    file = tmp_path / "reconciler.toml"
    file.write_text(text)
    there = assemble(file, environ=ENVIRONMENT).loaded.settings.destinations["there"]
    assert "https://api.stripe.com" == there.base_url

    file.write_text(text.replace("stripe", "adyen"))
    with pytest.raises(ConfigError, match=re.escape("destinations.there.base_url")):
        assemble(file, environ=ENVIRONMENT)


def test_a_file_beside_the_configuration_is_a_profile_and_comes_first(tmp_path):
    (tmp_path / "destinations").mkdir()
    (tmp_path / "destinations" / "stripe.toml").write_text("not_done = [503]\n")

    assembly = configured(tmp_path, "stripe")

    there = assembly.loaded.settings.destinations["there"]
    assert ((503,), None) == (there.not_done, there.replayed_when)
    assert tmp_path / "destinations" / "stripe.toml" in assembly.loaded.files


@pytest.mark.parametrize(
    ("line", "key", "words"),
    [
        ('conflct = "done"', "destinations.there.conflct", "conflict"),
        ('done_when = "stat == 409"', "destinations.there.done_when", "stat"),
        ('key_ttl = "1 day"', "destinations.there.key_ttl", "duration"),
        ('bearer = "env:TOKEN"', "bearer", "belongs to a destination"),
        ('allow_private = ["10.0.0.0/8"]', "allow_private", "belongs to a destination"),
        ('headers = { X-Key = "env:TOKEN" }', "headers.X-Key", "belongs to a destination"),
    ],
)
def test_a_mistake_in_a_profile_is_named_in_its_own_file(tmp_path, line, key, words):
    """Who calls, and which private addresses may be reached, is never a profile's to say."""
    (tmp_path / "destinations").mkdir()
    mine = tmp_path / "destinations" / "mine.toml"
    mine.write_text(f"# Mine.\n{line}\n")

    [problem] = problems_of(tmp_path, "mine")

    assert (mine, 2, key) == problem[:3]
    assert words in problem[3]
