"""What a destination answers is another body than was expected: nothing is guessed from it."""

from datetime import UTC, datetime, timedelta

import pytest

from outbox.entry import Verdict
from outbox.looking_up import Finding, LookUp, conclude
from outbox.verdict import Answer, AnswerRules, Before, verdict
from reconciler.expressions import ANSWER_NAMES, compile_expression
from reconciler.operations.judging import Judging

NOW = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
PAGE = b"<html>We are upgrading. Be back soon!</html>"


def judge(source: str) -> Judging:
    return Judging(compile_expression(source, names=ANSWER_NAMES))


def ruled(success_when: str, status: int, body: bytes) -> Verdict:
    rules = AnswerRules(
        success_when=judge(success_when),
        conflict="in_progress",
        not_done=frozenset(),
        retry_after_max=HOUR,
    )
    before = Before(idempotent=False, maybe_sent=False, last_attempt=False, refusals=0)
    return verdict(Answer(status=status, body=body), rules, before, now=NOW).verdict


@pytest.mark.parametrize(
    "body",
    [PAGE, b"", b'{"ok": true, "fee": 1e999999999}', b"[" * 9999],
    ids=["a page", "nothing", "a monstrous number", "very deep"],
)
@pytest.mark.parametrize(
    "success_when",
    [
        "status == 200 and body.ok",
        "not body.error",
        "body.ok or body == 'fine'",
        "not body.errors and body.data is mapping and 'failed' not in body|tojson",
    ],
)
def test_a_2xx_that_is_not_the_apis_is_neither_a_success_nor_a_refusal(success_when, body):
    """
    Some proxy answered 200 with a page of its own, or the API with JSON that nobody can read.
    Called dead the call would be made again by hand, called delivered it would be lost: whether
    it was made is not known.
    """
    assert Verdict.UNCERTAIN == ruled(success_when, 200, body)


@pytest.mark.parametrize(
    ("success_when", "status", "body", "expected"),
    [
        ("status == 200 and body.ok", 200, b'{"ok": true}', Verdict.DELIVERED),
        ("status == 200 and body.ok", 200, b'\xef\xbb\xbf{"ok": true}', Verdict.DELIVERED),
        ("status == 200 and body.ok", 200, b'{"ok": false}', Verdict.DEAD),
        ("status == 200 and body.ok", 200, b"{}", Verdict.DEAD),
        ("status == 200 and body.ok", 422, PAGE, Verdict.DEAD),
        ("status == 204 or body.ok", 204, b"", Verdict.DELIVERED),
        ("body == 'ok'", 200, b"ok", Verdict.DELIVERED),
        ("body == 'ok'", 200, b"no_text", Verdict.DEAD),
        ("body.ok or body == 'ok'", 200, b"ok", Verdict.DELIVERED),
    ],
)
def test_what_does_not_rest_on_the_body_or_knows_texts_is_decided(
    success_when, status, body, expected
):
    assert expected == ruled(success_when, status, body)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"data": []}', Finding.ABSENT),
        (200, b'{"data": [{}]}', Finding.FOUND),
        (200, PAGE, Finding.UNDECIDED),
        (404, PAGE, Finding.ABSENT),
    ],
)
def test_a_page_does_not_prove_that_a_call_was_not_made(status, body, expected):
    asked = LookUp(
        path=lambda _: "/",
        found=judge("status == 200 and body.data[0] is defined"),
        not_found=judge("status == 404 or not body.data"),
        lag=HOUR,
        every=HOUR,
        at_most=HOUR,
        looks=3,
    )
    found = conclude(Answer(status=status, body=body), asked, looks=1, since=2 * HOUR)
    assert expected == found.finding
