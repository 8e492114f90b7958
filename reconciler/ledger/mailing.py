"""Mails that effects ask for: their templates, and the calls that they are frozen to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from outbox.mail import Mail, MailError, compose
from reconciler.exact_json import Json
from reconciler.expressions import JsonTemplate, Template
from reconciler.ledger.calls import Call, CallError

LISTS = ("to", "cc", "bcc", "reply_to")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """What a destination says about all of its mails."""

    address: str  #: From
    reply_to: str | None
    max_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MailTemplate:
    """The mail of one effect, ready to render."""

    sender: Sender
    lists: Mapping[str, tuple[JsonTemplate, ...]]  #: by to, cc, bcc, reply_to
    from_: Template | None
    subject: Template
    text: Template | None
    html: Template | None
    headers: Mapping[str, Template]

    def calls(self, names: Mapping[str, Any], *, date: datetime) -> list[tuple[str, Call]]:
        """
        The part and the call of each recipient; *date* is when it was asked for.

        Raises ExpressionError, NotJsonError, and CallError for what makes no mail.
        """
        named = {
            what: [one for each in lists for one in addresses(each.value(names), what=what)]
            for what, lists in self.lists.items()
        }
        reply_to = named["reply_to"] or [one for one in [self.sender.reply_to] if one]
        mail = Mail(
            sender=self.sender.address if self.from_ is None else self.from_.text(names),
            to=named["to"],
            cc=named["cc"],
            bcc=named["bcc"],
            reply_to=reply_to,
            subject=self.subject.text(names),
            text=None if self.text is None else self.text.text(names),
            html=None if self.html is None else self.html.text(names),
            headers={name: value.text(names) for name, value in self.headers.items()},
            size_limit=self.sender.max_size,
        )
        try:
            letters = compose(mail, date=date)
        except MailError as error:
            raise CallError(str(error)) from error
        return [
            (
                one.part,
                Call(method=one.method, path=one.path, headers=one.headers, body=one.body),
            )
            for one in letters
        ]

    def readings(self) -> Iterator[tuple[str, Any]]:
        """Key and paths of every expression, for whoever looks for misspelt fields."""
        for what, lists in self.lists.items():
            for each in lists:
                yield what, each.paths
        single = {"from": self.from_, "subject": self.subject, "text": self.text, "html": self.html}
        for key, template in single.items():
            if template is not None:
                yield key, template.paths


def addresses(value: Json, *, what: str) -> list[str]:
    """The addresses that one item of `to` came to: a text, or a list of texts."""
    found = value if isinstance(value, list | tuple) else [value]
    for one in found:
        if not isinstance(one, str):
            raise CallError(f"{what}: not an address, and not a list of addresses")
    return [str(one) for one in found]
