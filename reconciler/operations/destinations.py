"""From the settings of a destination to what the relay calls."""

from collections.abc import Callable
from datetime import timedelta

from outbox.destinations import Channel, Destination
from outbox.destinations.http import WITHIN, HttpDestination
from outbox.destinations.smtp import SmtpDestination
from outbox.verdict import AnswerRules
from reconciler import faults
from reconciler.errors import ConfigError, Problem
from reconciler.expressions import (
    ANSWER_NAMES,
    Expression,
    ExpressionSyntaxError,
    compile_expression,
)
from reconciler.operations.judging import Judging
from reconciler.operations.look_ups import look_ups
from reconciler.settings import Secrets, Settings
from reconciler.settings.destinations import port_of
from reconciler.settings.models import (
    HttpDestinationSettings,
    SmtpDestinationSettings,
)


def compile_destination(name: str, settings: Settings, secrets: Secrets) -> Destination:
    """Raises ConfigError where an expression over its answers is wrong."""
    given = settings.destinations[name]
    if isinstance(given, SmtpDestinationSettings):
        channel: Channel = mail_channel(given, secrets)
        rules = AnswerRules(
            conflict="dead", not_done=frozenset(), retry_after_max=timedelta(0)
        )  # of HTTP: a mail server's replies have rules of their own
    else:
        looks_up = any(look_ups(name, settings).values()) or any(
            effect.delivered for effect in settings.effects.values() if effect.destination == name
        )
        channel, rules = web_channel(name, given, secrets, looks_up=looks_up)
    return Destination(
        channel=channel,
        rules=rules,
        concurrency=given.concurrency,
        timeout=given.timeout,
        max_attempts=given.max_attempts,
        key_ttl=given.key_ttl,
        key_margin=given.key_margin,
        after_dead=given.after_dead,
        **look_ups(name, settings),
    )


def mail_channel(given: SmtpDestinationSettings, secrets: Secrets) -> SmtpDestination:
    return SmtpDestination(
        host=given.host,
        port=port_of(given),
        tls=given.tls,
        user=given.user,
        password=secrets.resolve(given.password) if given.password else None,
        ehlo_name=given.ehlo_name,
        point=points_within(),
    )


def web_channel(
    name: str, given: HttpDestinationSettings, secrets: Secrets, *, looks_up: bool
) -> tuple[HttpDestination, AnswerRules]:
    problems: list[Problem] = []

    def compiled(key: str, source: str | None) -> Expression | None:
        if source is None:
            return None
        try:
            return compile_expression(source, names=ANSWER_NAMES)
        except ExpressionSyntaxError as error:
            problems.append(Problem(key=f"destinations.{name}.{key}", message=str(error)))
            return None

    success = compiled("success_when", given.success_when)
    retry = compiled("retry_when", given.retry_when)
    if problems:
        raise ConfigError(problems=problems)
    channel = HttpDestination(
        base_url=given.base_url,
        key_header=given.key_header,
        bearer=secrets.resolve(given.bearer) if given.bearer else None,
        headers={header: secrets.header(value) for header, value in given.headers.items()},
        concurrency=given.concurrency,
        judges_bodies=success is not None or looks_up,
        point=points_within(),
    )
    rules = AnswerRules(
        success_when=Judging(success) if success else None,
        retry_when=Judging(retry) if retry else None,
        conflict=given.conflict,
        not_done=frozenset(given.not_done),
        retry_after_max=given.retry_after_max,
    )
    return channel, rules


def points_within() -> Callable[[str], None] | None:
    """The crash points inside a call, where one of them is armed."""
    return faults.point if any(map(faults.armed, WITHIN)) else None
