"""What an answer, or its absence, says about a call: the whole table, and nothing but it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from outbox.backoff import RetryAfter, read_retry_after
from outbox.entry import Verdict, bounded
from outbox.reading import read_body

Predicate = Callable[[int, Mapping[str, str], Any], bool]
"""Over status, headers (lower case) and body (JSON, else text); raising means "cannot say"."""

Marker = Callable[[int, Mapping[str, str]], bool]
"""Over status and headers; it can be decided however the body ended."""

Naming = Callable[[int, Mapping[str, str], Any], str | None]
"""What an answer calls the thing that is there already."""

REFUSALS_IN_A_ROW = 5  # from then on a 403 or 3xx is taken for a matter of configuration
NEVER_DONE = frozenset({425, 429})  # too early, too many: said before anything was done


class Sent(StrEnum):
    """How far a call that brought no answer had come."""

    NOT_SENT = "not_sent"  #: it certainly never reached the destination
    MAYBE_SENT = "maybe_sent"  #: the request had begun; nobody knows


class Answer(NamedTuple):
    """What a destination answered; *complete* is False where the body broke off or was cut."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()  #: names in lower case
    body: bytes = b""
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A call without an answer; *reason* holds no secret and nothing of any body."""

    kind: Sent
    reason: str
    blocked: bool = False  #: by us, because of where it would have led


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a mail server said of one mail (RFC 5321, 4.2): here 4xx may pass, and 5xx is final."""

    status: int
    step: str  #: what it was said to
    said: str  #: its numbers, without its words
    text: str  #: its words, for whoever keeps the name that it gave the mail; in no reason
    about_us: bool  #: not about this mail: who we are, or whether we may send at all


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRules:
    """How one destination's answers are to be read."""

    success_when: Predicate | None = None  #: None: any 2xx
    retry_when: Predicate | None = None  #: which failures inside a 2xx are tried again
    done_when: Predicate | None = None  #: an earlier attempt has taken effect
    done_id: Naming | None = None  #: what such an answer carries
    not_done_when: Predicate | None = None  #: it certainly had no effect, and may be tried again
    unclear_when: Predicate | None = None  #: nobody knows, or an earlier attempt is under way
    mismatch_when: Predicate | None = None  #: the key has been used for another request
    replayed_when: Marker | None = None  #: this is what was answered to an earlier attempt
    conflict: Literal["in_progress", "done", "dead"]  #: what 409 means
    not_done: frozenset[int]  #: further statuses that certainly had no effect
    retry_after_max: timedelta


class Before(NamedTuple):
    """What was known of the entry when the attempt began."""

    idempotent: bool
    maybe_sent: bool  #: an earlier attempt may have taken effect
    last_attempt: bool
    refusals: int  #: refused so often in a row


class Ruling(NamedTuple):
    """What one attempt came to."""

    verdict: Verdict
    reason: str | None = None
    status: int | None = None
    maybe_sent: bool = False  #: this attempt or an earlier one may have taken effect
    refused: bool = False  #: 401, 403 or 3xx: not wanted like this
    slowly: bool = False  #: probably not wanted before somebody changes the configuration
    retry_after: RetryAfter | None = None
    settles: bool = False  #: what it says holds for the attempts before it too


def verdict(
    result: Answer | Reply | Failure, rules: AnswerRules, before: Before, *, now: datetime
) -> Ruling:
    """
    Judge one attempt by what came of it, what the destination means, and what went before.

    *now* is only for dates in an answer that does not date itself.
    """
    match result:
        case Failure(kind=Sent.NOT_SENT, reason=reason, blocked=blocked):
            found = Ruling(verdict=Verdict.RETRY, reason=reason, slowly=blocked)
        case Failure(kind=Sent.MAYBE_SENT, reason=reason):
            found = _maybe_done(reason)
        case Reply():
            found = _judge_reply(result)._replace(status=result.status)
        case Answer():
            found = _judge_answer(result, rules, before)
            if rules.replayed_when is not None and _is_replay(result, rules.replayed_when):
                found = _judge_replay(found)
            asked = read_retry_after(result.headers, now=now, most=rules.retry_after_max)
            found = found._replace(status=result.status, retry_after=asked)
    return _in_the_light_of(before, found)


def _judge_answer(answer: Answer, rules: AnswerRules, before: Before) -> Ruling:
    """The answer by itself, as if it were the first of many attempts at an idempotent call."""
    status, said = answer.status, f"answered {answer.status}"
    success = _succeeded(answer, rules)

    meant = Ruling(verdict=Verdict.DELIVERED) if success else _judge_meaning(answer, rules)
    if meant is not None:
        return meant
    if 200 <= status < 300:
        return _judge_failure_inside_success(answer, rules, decided=success is not None)
    if status in NEVER_DONE or status in rules.not_done:
        return Ruling(verdict=Verdict.RETRY, reason=said)
    if status in {401, 403} or 300 <= status < 400:
        slowly = status == 401 or before.refusals + 1 >= REFUSALS_IN_A_ROW
        return Ruling(verdict=Verdict.RETRY, reason=said, refused=True, slowly=slowly)
    if _leaves_it_open(status, rules):
        return _maybe_done(said)
    return Ruling(verdict=Verdict.DEAD, reason=said)


def _judge_meaning(answer: Answer, rules: AnswerRules) -> Ruling | None:
    """What the destination is known to mean by such an answer, whatever its status."""
    said = f"answered {answer.status}"
    conflict = answer.status == 409 and rules.conflict == "done"
    if _says(rules.mismatch_when, answer):
        reason = f"{said}: the key was used for another request"
        return Ruling(verdict=Verdict.DEAD, reason=reason)
    if _says(rules.done_when, answer) or (conflict and rules.done_when is None):
        name = _named(answer, rules.done_id)
        reason = f"{said}: done by an earlier attempt" + (f", as {name}" if name else "")
        return Ruling(verdict=Verdict.DELIVERED, reason=bounded(reason))
    if _says(rules.not_done_when, answer):
        return Ruling(verdict=Verdict.RETRY, reason=f"{said}, and nothing was done")
    if _says(rules.unclear_when, answer):
        return _maybe_done(f"{said}, which leaves it open")
    return None


def _judge_replay(found: Ruling) -> Ruling:
    """
    The stored answer of an earlier attempt: under the same key no other will ever come.

    So an error that leaves it open stays open, and trying again is no use; and one that says
    that nothing was done says so of every attempt under this key.
    """
    replay = f"{found.reason}, as to an earlier attempt: the same key only brings it again"
    match found.verdict:
        case Verdict.RETRY if found.refused or found.slowly:
            return found  # about who calls, not about this call
        case Verdict.RETRY if found.maybe_sent:
            return found._replace(verdict=Verdict.UNCERTAIN, reason=replay)
        case Verdict.RETRY:
            return found._replace(verdict=Verdict.DEAD, reason=replay, settles=True)
        case Verdict.DEAD:
            return found._replace(settles=True)
        case Verdict.DELIVERED | Verdict.UNCERTAIN:
            return found


def _judge_reply(reply: Reply) -> Ruling:
    """No reply leaves it open whether the mail was taken over; only silence does."""
    said = f"{reply.step} was answered {reply.said}"
    if reply.status < 400:
        return Ruling(verdict=Verdict.DELIVERED)
    if reply.status < 500:
        return Ruling(verdict=Verdict.RETRY, reason=said)
    if reply.about_us:
        return Ruling(verdict=Verdict.RETRY, reason=said, refused=True, slowly=True)
    return Ruling(verdict=Verdict.DEAD, reason=said)


def _judge_failure_inside_success(answer: Answer, rules: AnswerRules, *, decided: bool) -> Ruling:
    said = f"answered {answer.status}"
    if not decided:
        return _maybe_done(f"{said}, but not so that success_when could be decided")
    if rules.retry_when is not None and holds(rules.retry_when, answer):
        return Ruling(verdict=Verdict.RETRY, reason=f"{said}, a failure to be tried again")
    return Ruling(verdict=Verdict.DEAD, reason=f"{said}, no success by success_when")


def _leaves_it_open(status: int, rules: AnswerRules) -> bool:
    """Whether the call may have taken effect all the same."""
    if status == 409:  # our own earlier attempt may still be under way over there
        return rules.conflict != "dead"
    return status == 408 or not 400 <= status < 500  # 5xx, and numbers that mean nothing


def _maybe_done(reason: str) -> Ruling:
    return Ruling(verdict=Verdict.RETRY, reason=reason, maybe_sent=True)


def _in_the_light_of(before: Before, found: Ruling) -> Ruling:
    """What *found* means for an entry with this past and this future."""
    if found.verdict is Verdict.DELIVERED:
        return found._replace(maybe_sent=True)
    maybe_sent = found.maybe_sent or before.maybe_sent
    reason = bounded(found.reason or "")
    judged = found._replace(maybe_sent=maybe_sent, reason=reason)

    match found.verdict:
        case Verdict.RETRY if found.maybe_sent and not before.idempotent:
            return judged._replace(verdict=Verdict.UNCERTAIN)
        case Verdict.RETRY if before.last_attempt:
            used_up = bounded(f"attempts used up: {reason}")
            final = Verdict.UNCERTAIN if maybe_sent else Verdict.DEAD
            return judged._replace(verdict=final, reason=used_up)
        case Verdict.DEAD if maybe_sent and not found.settles:
            # A refusal says nothing about the attempt before it that was never answered.
            after = bounded(f"{reason}, after an attempt that may have taken effect")
            return judged._replace(verdict=Verdict.UNCERTAIN, reason=after)
        case Verdict.RETRY | Verdict.DEAD | Verdict.UNCERTAIN:
            return judged


def _succeeded(answer: Answer, rules: AnswerRules) -> bool | None:
    """Whether the answer is a success; None where that cannot be decided."""
    if rules.success_when is None:
        return 200 <= answer.status < 300
    return holds(rules.success_when, answer) if answer.complete else None


def _says(predicate: Predicate | None, answer: Answer) -> bool:
    """Whether it certainly holds: not where the body, which it may look into, was cut."""
    return predicate is not None and answer.complete and holds(predicate, answer) is True


def holds(predicate: Predicate, answer: Answer) -> bool | None:
    try:
        return predicate(answer.status, _joined(answer.headers), read_body(answer.body))
    except Exception:  # noqa: BLE001  # the user's expression over a stranger's answer
        return None


def parsed(answer: Answer) -> Any:
    """The body of *answer* as JSON with exact numbers, or else as text."""
    return read_body(answer.body)


def _is_replay(answer: Answer, marker: Marker) -> bool:
    try:
        return answer.status != 429 and marker(answer.status, _joined(answer.headers))
    except Exception:  # noqa: BLE001  # the user's expression over a stranger's answer
        return False


def _named(answer: Answer, naming: Naming | None) -> str | None:
    if naming is None or not answer.complete:
        return None
    try:
        return naming(answer.status, _joined(answer.headers), read_body(answer.body))
    except Exception:  # noqa: BLE001  # the user's expression over a stranger's answer
        return None


def _joined(lines: Iterable[tuple[str, str]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in lines:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
