"""What a destination is known to mean by its answers, beyond their statuses: the whole table."""

from datetime import UTC, datetime, timedelta

import pytest

from outbox.entry import Verdict, outgoing_key
from outbox.verdict import Answer, AnswerRules, Before, Failure, Sent, verdict

NOW = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)
MARK = (("idempotent-replayed", "true"),)
DELIVERED, RETRY, DEAD, UNCERTAIN = Verdict


def says(word):
    return lambda _status, _headers, body: word in body["says"]


RULES = AnswerRules(
    done_when=says("done"),
    done_id=lambda _status, _headers, body: body.get("id"),
    not_done_when=says("nothing"),
    unclear_when=says("busy"),
    mismatch_when=says("other"),
    replayed_when=lambda _status, headers: headers["idempotent-replayed"] == "true",
    conflict="in_progress",
    not_done=frozenset({503}),
    retry_after_max=timedelta(hours=1),
)


def rule(status, body=b"{}", *, headers=(), complete=True, rules=RULES, **before):
    usual = {"idempotent": True, "maybe_sent": False, "last_attempt": False, "refusals": 0}
    result = Answer(status=status, body=body, headers=tuple(headers), complete=complete)
    return verdict(result, rules, Before(**usual | before), now=NOW)


@pytest.mark.parametrize("status", [400, 409, 422, 500])
@pytest.mark.parametrize("maybe_sent", [True, False])
@pytest.mark.parametrize(
    ("word", "first", "after_an_open_attempt"),
    [
        (b"done", DELIVERED, DELIVERED),
        (b"nothing", RETRY, RETRY),
        (b"busy", RETRY, RETRY),
        (b"other", DEAD, UNCERTAIN),
    ],
)
def test_a_meaning_counts_whatever_the_status(
    status, maybe_sent, word, first, after_an_open_attempt
):
    found = rule(status, b'{"says":"%s"}' % word, maybe_sent=maybe_sent)

    assert (after_an_open_attempt if maybe_sent else first) == found.verdict


def test_what_is_left_open_is_uncertain_where_the_key_is_not_honoured():
    """And what certainly was not done is tried again everywhere."""
    assert UNCERTAIN == rule(422, b'{"says":"busy"}', idempotent=False).verdict
    assert RETRY == rule(500, b'{"says":"nothing"}', idempotent=False).verdict


def test_a_conflict_that_means_done_carries_what_is_there():
    """GoCardless: 409, the resource exists, and this is its id. The id is kept."""
    found = rule(409, b'{"says":"done","id":"PM123"}')

    assert DELIVERED == found.verdict
    assert "PM123" in found.reason


@pytest.mark.parametrize(
    ("conflict", "expected"), [("in_progress", RETRY), ("done", DELIVERED), ("dead", DEAD)]
)
def test_409_means_what_is_said(conflict, expected):
    rules = AnswerRules(conflict=conflict, not_done=frozenset(), retry_after_max=timedelta(hours=1))
    assert expected == rule(409, rules=rules).verdict


def test_a_mismatch_is_told_as_one():
    assert "used for another request" in rule(409, b'{"says":"other"}').reason


@pytest.mark.parametrize("body", [b"not json", b"[]", b'{"says":7}', b'{"says":"done"}'])
def test_what_cannot_be_decided_is_judged_by_its_status(body):
    """An unforeseen body, or one that was cut: 500 stays open, 422 stays refused."""
    cut = {"complete": body != b'{"says":"done"}'}
    assert RETRY == rule(500, body, **cut).verdict
    assert DEAD == rule(422, body, **cut).verdict


@pytest.mark.parametrize("maybe_sent", [True, False])
@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"{}", DELIVERED),  # what was done is done
        (500, b"{}", UNCERTAIN),  # stored for good: trying again is no use, nor does it tell
        (408, b"{}", UNCERTAIN),
        (500, b'{"says":"nothing"}', DEAD),  # the stored error says that it had no effect
        (503, b"{}", DEAD),  # so does this status, by not_done
        (402, b"{}", DEAD),  # a refusal of every attempt under this key, the silent one too
        (400, b'{"says":"other"}', DEAD),
        (401, b"{}", RETRY),  # about who calls: not what is stored of this call
        (403, b"{}", RETRY),
        (429, b"{}", RETRY),  # said before anything was looked up
    ],
)
def test_a_replayed_answer_is_the_only_one_there_will_be(status, body, expected, maybe_sent):
    """
    The same key only brings the stored answer again. So an error that leaves it open is not
    repeated until the attempts are used up, and one that is final settles the earlier attempt
    that was never answered: it is that attempt's own answer.
    """
    found = rule(status, body, headers=MARK, maybe_sent=maybe_sent)

    assert expected == found.verdict
    if expected == UNCERTAIN:
        assert "only brings it again" in found.reason


def test_the_marker_counts_though_the_body_was_cut():
    assert UNCERTAIN == rule(500, b"x" * 100, headers=MARK, complete=False).verdict


def test_without_the_marker_the_same_answers_are_as_ever():
    assert RETRY == rule(500).verdict
    assert UNCERTAIN == rule(402, maybe_sent=True).verdict
    assert RETRY == rule(500, headers=(("idempotent-replayed", "false"),)).verdict


def test_a_blocked_connection_is_not_sent_and_not_hurried():
    before = Before(idempotent=False, maybe_sent=False, last_attempt=False, refusals=0)
    blocked = Failure(kind=Sent.NOT_SENT, reason="not sent: ...", blocked=True)

    found = verdict(blocked, RULES, before, now=NOW)

    assert (RETRY, True, False) == (found.verdict, found.slowly, found.maybe_sent)


@pytest.mark.parametrize("most", [25, 40, 45, 64, 66, 255])
def test_a_hashed_key_is_never_longer_than_the_destination_takes(most):
    """And different keys stay different, also where only a piece of the hash has room."""
    keys = {outgoing_key(f"evt_{number}" + "x" * 300, most) for number in range(500)}

    assert 500 == len(keys)
    assert all(len(key) <= most and key.startswith("h-") for key in keys)
