"""Rules between the settings of destinations, of the effects that go there, and of clients."""

import re
from collections.abc import Iterator

from outbox.mail import MailError, read_address
from reconciler.settings.addresses import refuse_range, refuse_web_url
from reconciler.settings.documents import Finding
from reconciler.settings.explain import spell_duration
from reconciler.settings.models import (
    AnyDestination,
    ApiSettings,
    EffectSettings,
    HttpDestinationSettings,
    LookUpSettings,
    Settings,
    SmtpDestinationSettings,
)
from reconciler.settings.positions import KeyPath
from reconciler.settings.values import is_reference

#: headers that carry credentials: their literal value would be a secret in the file
CREDENTIALS = re.compile(
    r"(proxy-)?authorization|cookie|(.*-)?(api-?key|access-key|secret|password|auth-token)",
    re.IGNORECASE,
)
SECRET_PARAMETERS = re.compile(
    r"(.*[_.-])?(api[_-]?key|key|token|secret|password|access[_-]token|sig(nature)?)", re.IGNORECASE
)
#: what an effect can say at destinations of one kind only, and which
OF_ONE_KIND = {
    **dict.fromkeys(("request", "json_", "form", "query", "look_up"), "http"),
    **dict.fromkeys(
        ("to", "cc", "bcc", "from_", "reply_to", "subject", "text", "html"),
        "smtp",
    ),
}
#: what it must say there
NEEDED = {"http": ("request",), "smtp": ("to", "subject")}
#: headers that the client makes itself
MADE_BY_US = frozenset({"host", "content-length", "transfer-encoding", "connection", "te"})


def check_destinations(settings: Settings) -> Iterator[Finding]:
    """Find what contradicts itself in a destination, or between an effect and its destination."""
    for name, destination in settings.destinations.items():
        yield from _destination(("destinations", name), destination)
    for name, effect in settings.effects.items():
        yield from _effect(("effects", name), effect, settings)


def _destination(path: KeyPath, destination: AnyDestination) -> Iterator[Finding]:
    match destination:
        case HttpDestinationSettings():
            yield from _http(path, destination)
        case SmtpDestinationSettings():
            yield from _smtp(path, destination)
    if destination.key_margin is not None and destination.key_margin >= destination.key_ttl:
        yield Finding(
            path=(*path, "key_margin"),
            message="as long as key_ttl"
            f" ({spell_duration(destination.key_ttl)}): nothing could ever be sent again",
            about=((*path, "key_ttl"),),
        )


def _http(path: KeyPath, destination: HttpDestinationSettings) -> Iterator[Finding]:
    yield from check_caller(path, destination)
    yield from _looks_up(path, destination.on_uncertain, destination.look_up)
    if destination.basic is not None:
        others = {"bearer"} if destination.bearer else set()
        others |= {name for name in destination.headers if name.lower() == "authorization"}
        for other in sorted(others):
            yield Finding(
                path=(*path, "basic"), message=f"{other} says who calls already: keep one of them"
            )
        if not is_reference(destination.basic.user) and ":" in destination.basic.user:
            yield Finding(path=(*path, "basic", "user"), message="a user has no colon (RFC 7617)")
    for name, value in destination.query.items():
        if SECRET_PARAMETERS.fullmatch(name) and not is_reference(value):
            yield Finding(
                path=(*path, "query", name),
                message="a secret does not belong here: write a reference,"
                ' "env:NAME", "file:/path" or "credential:name"',
            )
    if destination.key_header.lower() in {name.lower() for name in destination.headers}:
        yield Finding(
            path=(*path, "headers"), message="the key_header carries the idempotency key: remove it"
        )


def _looks_up(path: KeyPath, said: str | None, look_up: LookUpSettings | None) -> Iterator[Finding]:
    """Looking up is asked for, and how; the one without the other is a mistake."""
    if said == "look_up" and look_up is None:
        yield Finding(
            path=(*path, "look_up"),
            message='missing: how to ask, like { request = "GET /v1/charges?reference={{ key }}",'
            ' found = "...", not_found = "..." }',
            about=((*path, "on_uncertain"),),
        )
    if look_up is not None and said != "look_up":
        yield Finding(
            path=(*path, "look_up"), message='nothing is looked up without on_uncertain = "look_up"'
        )


def _smtp(path: KeyPath, destination: SmtpDestinationSettings) -> Iterator[Finding]:
    if (destination.user is None) != (destination.password is None):
        missing = "user" if destination.user is None else "password"
        yield Finding(path=(*path, missing), message="missing: user and password go together")
    yield from _asks_no_mail_server(path, destination.on_uncertain)
    if destination.idempotent:
        yield Finding(
            path=(*path, "idempotent"),
            message="no mail server knows a mail that it has had: each would be a second mail",
        )
    for key, address in (("from", destination.from_), ("reply_to", destination.reply_to)):
        try:
            if address is not None:
                read_address(address, what=key)
        except MailError as error:
            yield Finding(path=(*path, key), message=str(error))
    for number, text in enumerate(destination.allow_private):
        if wrong := refuse_range(text):
            yield Finding(path=(*path, "allow_private", number), message=wrong)


def _effect(path: KeyPath, effect: EffectSettings, settings: Settings) -> Iterator[Finding]:
    """What an effect must say, and may not, rests on the kind of its destination."""
    destination = settings.destinations.get(effect.destination)
    if destination is None:
        return  # a mistake of its own
    about = (*path, "destination")
    for key in sorted(effect.model_fields_set & OF_ONE_KIND.keys()):
        if destination.kind != OF_ONE_KIND[key]:
            yield Finding(
                path=(*path, EffectSettings.model_fields[key].alias or key),
                message=f'for destinations of kind = "{OF_ONE_KIND[key]}"; '
                f'{effect.destination} is of kind = "{destination.kind}"',
                about=(about,),
            )
    yield from _uncertain_effect(path, effect, destination)
    said = {name for name in NEEDED[destination.kind] if getattr(effect, name)}
    for key in NEEDED[destination.kind]:
        if key not in said:
            field = EffectSettings.model_fields[key]
            yield Finding(
                path=(*path, key), message=f"missing: {field.description}", about=(about,)
            )
    if destination.kind == "smtp" and effect.text is None and effect.html is None:
        yield Finding(path=(*path, "text"), message="missing: say text, html or both")


def _uncertain_effect(
    path: KeyPath, effect: EffectSettings, destination: AnyDestination
) -> Iterator[Finding]:
    if effect.on_uncertain is None and effect.look_up is None:
        return
    said = effect.on_uncertain or destination.on_uncertain
    if not isinstance(destination, HttpDestinationSettings):
        yield from _asks_no_mail_server(path, said)
        return
    usual = destination.look_up if said == "look_up" else None
    yield from _looks_up(path, said, effect.look_up or usual)


def _asks_no_mail_server(path: KeyPath, said: str | None) -> Iterator[Finding]:
    if said == "look_up":
        message = "a mail server cannot be asked about a mail"
        yield Finding(path=(*path, "on_uncertain"), message=message)


def check_caller(path: KeyPath, caller: ApiSettings | HttpDestinationSettings) -> Iterator[Finding]:
    if wrong := refuse_web_url(caller.base_url):
        yield Finding(path=(*path, "base_url"), message=wrong)
    for number, text in enumerate(caller.allow_private):
        if wrong := refuse_range(text):
            yield Finding(path=(*path, "allow_private", number), message=wrong)
    for name, value in caller.headers.items():
        where = (*path, "headers", name)
        if CREDENTIALS.fullmatch(name) and not is_reference(value):
            yield Finding(
                path=where,
                message="a secret does not belong here: write a reference,"
                ' "env:NAME", "file:/path" or "credential:name"',
            )
        if name.lower() in MADE_BY_US:
            yield Finding(path=where, message="the client sets this header itself: remove it")
        if name.lower() == "authorization" and caller.bearer is not None:
            yield Finding(path=where, message="bearer sets this header already: keep one of them")
