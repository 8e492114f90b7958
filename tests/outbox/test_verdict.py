"""The verdict table, cell by cell (P9)."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from outbox.entry import Verdict
from outbox.verdict import Answer, AnswerRules, Before, Failure, Ruling, Sent, verdict

NOW = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)
PLAIN = AnswerRules(
    conflict="in_progress", not_done=frozenset(), retry_after_max=timedelta(hours=1)
)
JUDGED = AnswerRules(
    success_when=lambda _status, _headers, body: body["ok"],
    retry_when=lambda _status, _headers, body: body.get("error") == "busy",
    conflict="in_progress",
    not_done=frozenset(),
    retry_after_max=timedelta(hours=1),
)

DELIVERED, RETRY, DEAD, UNCERTAIN = Verdict


def rule(
    result: Answer | Failure,
    rules: AnswerRules = PLAIN,
    *,
    idempotent: bool = True,
    maybe_sent: bool = False,
    last_attempt: bool = False,
    refusals: int = 0,
) -> Ruling:
    before = Before(
        idempotent=idempotent,
        maybe_sent=maybe_sent,
        last_attempt=last_attempt,
        refusals=refusals,
    )
    return verdict(result, rules, before, now=NOW)


def answer(status: int, body: bytes = b"{}", *, complete: bool = True) -> Answer:
    return Answer(status=status, body=body, complete=complete)


NOT_SENT = Failure(kind=Sent.NOT_SENT, reason="not sent: ConnectError")
MAYBE_SENT = Failure(kind=Sent.MAYBE_SENT, reason="no answer: ReadError")

CERTAIN_NOT = [NOT_SENT, answer(425), answer(429)]
OPEN = [MAYBE_SENT, *(answer(s) for s in (408, 409, 500, 501, 502, 503, 504, 507, 520, 599, 999))]
REFUSED = [answer(status) for status in (401, 403, 300, 301, 302, 303, 304, 307, 308, 399)]
FINAL = [answer(status) for status in (400, 402, 404, 405, 410, 411, 413, 415, 418, 422, 451, 499)]


def told(value: object) -> str:
    match value:
        case Answer():
            return str(value.status)
        case Failure():
            return value.kind.value
        case _:
            return str(value)


@pytest.mark.parametrize("result", [answer(s) for s in (200, 201, 202, 204, 226, 299)], ids=told)
@pytest.mark.parametrize(
    ("idempotent", "maybe_sent", "last_attempt"), list(itertools.product([True, False], repeat=3))
)
def test_a_2xx_is_delivered_whatever_went_before(result, idempotent, maybe_sent, last_attempt):
    found = rule(result, idempotent=idempotent, maybe_sent=maybe_sent, last_attempt=last_attempt)
    assert (DELIVERED, None) == (found.verdict, found.reason)


@pytest.mark.parametrize("complete", [True, False])
def test_without_success_when_a_broken_body_does_not_undo_a_2xx(complete):
    assert DELIVERED == rule(answer(200, b'{"ok":', complete=complete)).verdict


@pytest.mark.parametrize("result", CERTAIN_NOT, ids=told)
@pytest.mark.parametrize("idempotent", [True, False])
def test_what_was_certainly_not_done_is_tried_again(result, idempotent):
    """Connect, TLS and DNS failures, 425 and 429: also where the destination is not idempotent."""
    found = rule(result, idempotent=idempotent)
    assert (RETRY, False) == (found.verdict, found.maybe_sent)
    assert DEAD == rule(result, idempotent=idempotent, last_attempt=True).verdict
    assert UNCERTAIN == rule(result, maybe_sent=True, last_attempt=True).verdict
    assert rule(result, maybe_sent=True).maybe_sent


@pytest.mark.parametrize("result", OPEN, ids=told)
def test_what_may_have_taken_effect_is_repeated_only_under_a_key_that_counts(result):
    found = rule(result)
    assert (RETRY, True) == (found.verdict, found.maybe_sent)
    assert UNCERTAIN == rule(result, idempotent=False).verdict
    assert UNCERTAIN == rule(result, idempotent=False, last_attempt=True).verdict
    assert UNCERTAIN == rule(result, last_attempt=True).verdict


@pytest.mark.parametrize("result", REFUSED, ids=told)
@pytest.mark.parametrize("idempotent", [True, False])
def test_a_refusal_is_tried_again_and_attempts_count(result, idempotent):
    found = rule(result, idempotent=idempotent)
    assert (RETRY, True, False) == (found.verdict, found.refused, found.maybe_sent)
    assert (result.status == 401) == found.slowly
    assert rule(result, idempotent=idempotent, refusals=4).slowly
    assert DEAD == rule(result, idempotent=idempotent, last_attempt=True).verdict
    assert UNCERTAIN == rule(result, maybe_sent=True, last_attempt=True).verdict


@pytest.mark.parametrize("result", FINAL, ids=told)
@pytest.mark.parametrize("idempotent", [True, False])
def test_other_4xx_are_final_but_say_nothing_about_the_attempt_before(result, idempotent):
    """A mismatch (422) among them: it is never answered by a fresh key (C78)."""
    found = rule(result, idempotent=idempotent)
    assert (DEAD, f"answered {result.status}") == (found.verdict, found.reason)
    assert UNCERTAIN == rule(result, idempotent=idempotent, maybe_sent=True).verdict


def test_a_conflict_can_be_declared_final():
    rules = AnswerRules(conflict="dead", not_done=frozenset(), retry_after_max=timedelta(hours=1))
    assert DEAD == rule(answer(409), rules).verdict
    assert DEAD == rule(answer(409), rules, idempotent=False).verdict
    assert UNCERTAIN == rule(answer(409), rules, maybe_sent=True).verdict


def test_statuses_declared_not_done_are_tried_again_where_nothing_else_would_be():
    rules = AnswerRules(
        conflict="in_progress",
        not_done=frozenset({503, 409, 403}),
        retry_after_max=timedelta(hours=1),
    )
    for status in (503, 409, 403):
        found = rule(answer(status), rules, idempotent=False)
        assert (RETRY, False, False) == (found.verdict, found.maybe_sent, found.refused)
    assert UNCERTAIN == rule(answer(500), rules, idempotent=False).verdict


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_failure_inside_a_2xx_is_final_unless_it_is_declared_passing(idempotent):
    assert DELIVERED == rule(answer(200, b'{"ok": true}'), JUDGED, idempotent=idempotent).verdict
    failed = answer(200, b'{"ok": false}')
    assert DEAD == rule(failed, JUDGED, idempotent=idempotent).verdict
    assert UNCERTAIN == rule(failed, JUDGED, idempotent=idempotent, maybe_sent=True).verdict
    busy = answer(200, b'{"ok": false, "error": "busy"}')
    assert RETRY == rule(busy, JUDGED, idempotent=idempotent).verdict
    assert DEAD == rule(busy, JUDGED, idempotent=idempotent, last_attempt=True).verdict


@pytest.mark.parametrize(
    "result",
    [
        answer(200, b'{"ok": true}', complete=False),
        answer(200, b"<html>"),
        answer(200, b""),
        answer(200, b"[" * 100_000),
        answer(200, b'{"ok": NaN}'),
        answer(200, b"\xff\xfe\x00"),
        answer(200, b"1" * 5000),
        answer(200, b"{}"),
    ],
    ids=["broken off", "html", "nothing", "deep", "nan", "no text", "digits", "no ok"],
)
def test_a_2xx_whose_success_cannot_be_decided_may_have_taken_effect(result):
    """Nothing that a destination says raises."""
    found = rule(result, JUDGED)
    assert (RETRY, True) == (found.verdict, found.maybe_sent)
    assert UNCERTAIN == rule(result, JUDGED, idempotent=False).verdict
    assert UNCERTAIN == rule(result, JUDGED, last_attempt=True).verdict


def test_success_when_is_the_whole_definition_of_success():
    rules = AnswerRules(
        success_when=lambda status, headers, body: (
            status == 409 and headers["x-had"] == "a, b" and body == "done"
        ),
        conflict="dead",
        not_done=frozenset(),
        retry_after_max=timedelta(hours=1),
    )
    had = (("x-had", "a"), ("x-had", "b"))
    assert DELIVERED == rule(Answer(status=409, headers=had, body=b"done"), rules).verdict
    assert DEAD == rule(Answer(status=200, headers=had, body=b"done"), rules).verdict
    assert DEAD == rule(Answer(status=409, headers=(), body=b"done"), rules).verdict


def test_a_byte_order_mark_hides_no_success():
    """As some servers write JSON; read as text it would be a failure, and the call `dead`."""
    marked = b"\xef\xbb\xbf"
    assert DELIVERED == rule(answer(200, marked + b'{"ok": true}'), JUDGED).verdict
    assert DEAD == rule(answer(200, marked + b'{"ok": false}'), JUDGED).verdict


def test_numbers_in_an_answer_are_exact():
    rules = AnswerRules(
        success_when=lambda _status, _headers, body: (
            str(body["amount"]) == "0.10000000000000000001" and body["id"] == 2**63
        ),
        conflict="dead",
        not_done=frozenset(),
        retry_after_max=timedelta(hours=1),
    )
    body = b'{"amount": 0.10000000000000000001, "id": 9223372036854775808}'
    assert DELIVERED == rule(answer(200, body), rules).verdict


def test_a_wait_that_the_destination_asks_for_is_part_of_the_ruling():
    for status in (429, 503, 409, 403):
        found = rule(Answer(status=status, headers=(("retry-after", "20"),)))
        assert found.retry_after is not None
        assert timedelta(seconds=20) == found.retry_after.wait


def test_reasons_are_bounded_and_storable():
    failure = Failure(kind=Sent.MAYBE_SENT, reason="x\x00\ud800" + "y" * 10_000)
    reason = rule(failure).reason
    assert reason is not None
    assert 500 == len(reason)
    assert reason.startswith("x\ufffd?y")
