"""From the settings of a destination to what the relay calls."""

import math
from collections.abc import Callable
from datetime import timedelta

from outbox.breaker import Breaker
from outbox.destinations import Channel, Destination
from outbox.destinations.connecting import opener
from outbox.destinations.http import WITHIN, HttpDestination
from outbox.destinations.smtp import SmtpDestination
from outbox.egress import Egress
from outbox.flow import Rate
from outbox.verdict import AnswerRules
from reconciler import faults
from reconciler.egress import egress_of, listeners_of
from reconciler.errors import ConfigError, Problem
from reconciler.expressions import (
    ANSWER_NAMES,
    Expression,
    ExpressionSyntaxError,
    compile_expression,
)
from reconciler.operations.judging import Judging, marking, naming
from reconciler.operations.look_ups import look_ups
from reconciler.polling.rate import parse_rate
from reconciler.settings import Secrets, Settings
from reconciler.settings.destinations import DestinationSettings, port_of
from reconciler.settings.models import (
    HttpDestinationSettings,
    SmtpDestinationSettings,
)

#: what is decided over an answer, and what is read from it
PREDICATES = (
    *("success_when", "retry_when", "done_when"),
    *("not_done_when", "unclear_when", "mismatch_when"),
)
OTHERS = {"replayed_when": frozenset({"status", "headers"}), "done_id": ANSWER_NAMES}


def compile_destination(name: str, settings: Settings, secrets: Secrets) -> Destination:
    """Raises ConfigError where an expression over its answers is wrong."""
    given = settings.destinations[name]
    egress = egress_of(given.allow_private, listeners_of(settings))
    if isinstance(given, SmtpDestinationSettings):
        channel: Channel = mail_channel(given, secrets, egress)
        rules = AnswerRules(
            conflict="dead", not_done=frozenset(), retry_after_max=timedelta(0)
        )  # of HTTP: a mail server's replies have rules of their own
    else:
        looks_up = any(look_ups(name, settings).values()) or any(
            effect.delivered for effect in settings.effects.values() if effect.destination == name
        )
        channel, rules = web_channel(name, given, secrets, egress, looks_up=looks_up)
    return Destination(
        channel=channel,
        rules=rules,
        concurrency=given.concurrency,
        timeout=given.timeout,
        max_attempts=given.max_attempts,
        key_ttl=given.key_ttl,
        key_margin=given.key_margin,
        after_dead=given.after_dead,
        rate=rate_of(given),
        breaker=breaker_of(given),
        **look_ups(name, settings),
    )


def mail_channel(
    given: SmtpDestinationSettings, secrets: Secrets, egress: Egress
) -> SmtpDestination:
    return SmtpDestination(
        host=given.host,
        port=port_of(given),
        tls=given.tls,
        user=given.user,
        password=secrets.resolve(given.password) if given.password else None,
        ehlo_name=given.ehlo_name,
        open=opener(egress),
        point=points_within(),
    )


def web_channel(
    name: str,
    given: HttpDestinationSettings,
    secrets: Secrets,
    egress: Egress,
    *,
    looks_up: bool,
) -> tuple[HttpDestination, AnswerRules]:
    rules, reads_bodies = compile_rules(name, given)
    channel = HttpDestination(
        base_url=given.base_url,
        key_header=given.key_header if given.key_field is None else None,
        bearer=secrets.resolve(given.bearer) if given.bearer else None,
        basic=_basic(given, secrets),
        headers={header: secrets.header(value) for header, value in given.headers.items()},
        query={name: secrets.header(value) for name, value in given.query.items()},
        egress=egress,
        proxy=secrets.header(given.proxy) if given.proxy else None,
        concurrency=given.concurrency,
        judges_bodies=reads_bodies or looks_up,
        point=points_within(),
    )
    return channel, rules


def compile_rules(name: str, given: HttpDestinationSettings) -> tuple[AnswerRules, bool]:
    """How its answers are read, and whether that takes more than the beginning of a body."""
    problems: list[Problem] = []
    found: dict[str, Expression] = {}
    for key in (*PREDICATES, *OTHERS):
        if (source := getattr(given, key)) is None:
            continue
        try:
            names = OTHERS.get(key, ANSWER_NAMES)
            found[key] = compile_expression(source, names=names)
        except ExpressionSyntaxError as error:
            problems.append(Problem(key=f"destinations.{name}.{key}", message=str(error)))
    if problems:
        raise ConfigError(problems=problems)
    rules = AnswerRules(
        **{key: Judging(found[key]) for key in PREDICATES if key in found},
        replayed_when=marking(found["replayed_when"]) if "replayed_when" in found else None,
        done_id=naming(found["done_id"]) if "done_id" in found else None,
        conflict=given.conflict,
        not_done=frozenset(given.not_done),
        retry_after_max=given.retry_after_max,
    )
    return rules, any("body" in each.names for each in found.values())


def points_within() -> Callable[[str], None] | None:
    """The crash points inside a call, where one of them is armed."""
    return faults.point if any(map(faults.armed, WITHIN)) else None


def _basic(given: HttpDestinationSettings, secrets: Secrets) -> tuple[str, str] | None:
    if given.basic is None:
        return None
    return secrets.header(given.basic.user), secrets.header(given.basic.password)


def rate_of(given: DestinationSettings) -> Rate | None:
    """
    As many calls as may be made.

    At once no more than a tenth of a second's: what was not used is not owed.
    """
    if given.rate is None:
        return None
    count, period = parse_rate(given.rate)
    per_second = count / period
    return Rate(per_second=per_second, burst=given.burst or math.ceil(per_second / 10))


def breaker_of(given: DestinationSettings) -> Breaker | None:
    said = given.breaker
    if not said.after:
        return None
    return Breaker(after=said.after, pause=said.pause, pause_max=said.pause_max)
