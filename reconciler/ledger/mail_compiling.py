"""From the settings of an effect to the templates of its mail."""

from __future__ import annotations

from ipaddress import ip_address

from outbox.mail import MailError, check_header, read_address
from reconciler.expressions import EFFECT_NAMES, Template, compile_json, compile_template
from reconciler.ledger.calls import CallError
from reconciler.ledger.compiler import Compiler
from reconciler.ledger.mailing import LISTS, MailTemplate, Sender
from reconciler.settings.documents import dotted
from reconciler.settings.models import EffectSettings, SmtpDestinationSettings


def compile_mail(compiler: Compiler, effect: EffectSettings, sender: Sender) -> MailTemplate | None:
    """Compile the mail of *effect*; None where something is missing or wrong."""
    lists = {
        what: [
            compiler.attempt(f"{what}[{number}]", compile_json, text, names=EFFECT_NAMES)
            for number, text in enumerate(getattr(effect, what))
        ]
        for what in LISTS
    }
    said = {"from": effect.from_, "subject": effect.subject}
    said |= {"text": effect.text, "html": effect.html}
    single = {
        key: compiler.attempt(key, compile_template, text, names=EFFECT_NAMES)
        for key, text in said.items()
        if text is not None
    }
    headers = compiler.templates("headers", effect.headers)
    for header in effect.headers:
        compiler.attempt(dotted(("headers", header)), _check_header, header)
    if single.get("from") is not None:
        compiler.attempt("from", _check_static, single["from"])
    subject = single.get("subject")
    if subject is None or None in single.values():
        return None
    return MailTemplate(
        sender=sender,
        lists={what: tuple(one for one in some if one) for what, some in lists.items()},
        from_=single.get("from"),
        subject=subject,
        text=single.get("text"),
        html=single.get("html"),
        headers=headers,
    )


def mail_sender(destination: SmtpDestinationSettings) -> Sender:
    """What a destination says of all of its mails."""
    return Sender(
        address=destination.from_ or f"reconciler@{_as_domain(destination.host)}",
        reply_to=destination.reply_to,
        max_size=destination.max_size,
    )


def _as_domain(host: str) -> str:
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return f"[IPv6:{address}]" if address.version == 6 else f"[{address}]"


def _check_header(name: str) -> None:
    try:
        check_header(name)
    except MailError as error:
        raise CallError(str(error)) from error


def _check_static(template: Template | None) -> None:
    """Refuse at the start what no event could make right."""
    if template is not None and not template.names:
        try:
            read_address(template.source, what="from")
        except MailError as error:
            raise CallError(str(error)) from error
