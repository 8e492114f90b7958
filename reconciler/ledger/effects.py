"""Effects: a cause becomes one frozen call, with its key, now and not when it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from outbox.bodies import Lists
from outbox.entry import NewEntry, outgoing_key
from reconciler.exact_json import NotJsonError
from reconciler.expressions import ExpressionError, JsonTemplate, PathTemplate, Template
from reconciler.ledger.calls import Call, CallError, Content, Keyed, check_lane, freeze
from reconciler.ledger.causes import Cause
from reconciler.ledger.event import Event, Origin
from reconciler.ledger.gates import Gate
from reconciler.ledger.kept_causes import kept
from reconciler.ledger.keys import Source, usual_key
from reconciler.ledger.mailing import MailTemplate, Sender
from reconciler.ledger.user_sql import ApplyStep
from reconciler.ledger.versions import to_datetime

UNUSABLE = (ExpressionError, NotJsonError, CallError)  #: what makes an effect `unrendered`

MAX_AGE = "max_age"


def entries_for(
    effect: Effect, cause: Cause, names: Mapping[str, Any], *, now: datetime | None
) -> list[NewEntry] | str:
    """
    Make the outbox entries that *effect* owes *cause*, or say why it owes none.

    One, or one for each recipient of a mail. *now* is the database's, needed for effects that
    `need_time`. What cannot be judged or rendered comes back as one entry with a `fault`; nothing
    is raised for it.
    """
    own = {**names, "effect": effect.name}
    try:
        refusal = effect.gate.refusal(cause, own)
    except UNUSABLE as error:
        return [entry_of(effect, cause, fault=str(error))]
    if refusal is not None:
        return refusal
    skip = reason_to_skip(effect, cause, now=now)
    key = lane = None
    try:
        lane = None if effect.lane is None else check_lane(effect.lane.text(own))
        said = key_of(effect, cause, own)
        key = effect.destination.outgoing(said)
        calls = calls_of(effect, own, key=key, now=now)
    except UNUSABLE as error:
        if skip is None:
            return [entry_of(effect, cause, lane=lane, key=key, fault=str(error))]
        # what is skipped anyway stays so: history must not come alive
        skip = f"{skip} (unrendered: {error})"
        return [entry_of(effect, cause, lane=lane, key=key, skip=skip)]
    return [
        entry_of(
            effect,
            cause,
            part=part,
            lane=lane,
            key=effect.destination.outgoing(said, part=part),
            call=call,
            skip=skip,
        )
        for part, call in calls
    ]


def entry_of(  # noqa: PLR0913 - what may be missing of an entry
    effect: Effect,
    cause: Cause,
    *,
    part: str = "0",
    lane: str | None = None,
    key: str | None = None,
    call: Call | None = None,
    skip: str | None = None,
    fault: str | None = None,
) -> NewEntry:
    """The entry that *effect* owes *cause*, as far as it could be rendered."""
    event = cause.event
    rendered: dict[str, Any] = {}
    if call is not None:
        rendered = {name: getattr(call, name) for name in ("method", "path", "headers", "body")}
    elif fault is not None or skip is not None:
        rendered = {"body": kept(cause)}  # without a method: what it takes to render it later
    return NewEntry(
        sender=event.sender,
        event_id=event.event_id,
        effect=effect.name,
        part=part,
        kind=event.kind,
        key=event.key,
        revision=cause.revision,
        position=effect.position,
        ordered=effect.destination.ordered and effect.lane is None,
        lane=lane,
        hold_after_dead=effect.hold_after_dead,
        supersedes=effect.supersedes,
        destination=effect.destination.name,
        idempotency_key=key,
        lasting=effect.lasting,
        idempotent=effect.idempotent,
        happened_at=happened_at(event, dated=effect.dated),
        expires=effect.expires,
        found=event.origin in {Origin.CORRECTION, Origin.READ},
        skip=skip,
        fault=fault,
        **rendered,
    )


def reason_to_skip(effect: Effect, cause: Cause, *, now: datetime | None) -> str | None:
    if cause.suppressed is not None or effect.max_age is None:
        return cause.suppressed
    assert now is not None
    happened = happened_at(cause.event, dated=effect.dated)
    return MAX_AGE if happened is not None and now - happened > effect.max_age else None


def happened_at(event: Event, *, dated: frozenset[Source]) -> datetime | None:
    """When it happened by the sender's clock; None where the sender did not say."""
    if event.occurred_at is not None:
        return event.occurred_at
    seen = event.observation
    if seen is None:
        return None
    nanoseconds = seen.changed_at
    if nanoseconds is None and (event.sender, seen.kind) in dated:
        nanoseconds = seen.version
    return None if nanoseconds is None else to_datetime(nanoseconds)


def key_of(effect: Effect, cause: Cause, names: Mapping[str, Any]) -> str:
    """The key in full; CallError for an empty one, which every cause would share."""
    key = usual_key(cause, effect.name) if effect.key is None else effect.key.text(names)
    if not key.strip():
        raise CallError("the idempotency key is empty")
    return key


def calls_of(
    effect: Effect, names: Mapping[str, Any], *, key: str, now: datetime | None
) -> list[tuple[str, Call]]:
    """The calls that *effect* comes to, each with its `part`."""
    if effect.mail is not None:
        assert now is not None
        return effect.mail.calls(names, date=now)
    return [("0", call_of(effect, names, key=key))]


def call_of(effect: Effect, names: Mapping[str, Any], *, key: str) -> Call:
    assert effect.path is not None
    return freeze(
        method=effect.method,
        path=effect.path.text(names),
        headers={name: value.text(names) for name, value in effect.headers.items()},
        content=Content(
            json=None if effect.json is None else effect.json.value(names),
            has_json=effect.json is not None,
            form=None if effect.form is None else effect.form.value(names),
            query=None if effect.query is None else effect.query.value(names),
        ),
        keyed=effect.destination.keyed(key),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an effect must know of its destination to be frozen."""

    name: str
    ordered: bool
    hold_after_dead: bool
    idempotent: bool
    key_header: str | None  #: None: the key goes into the body, or into a mail
    key_max_length: int
    key_format: Literal["text", "uuid"]
    key_field: str | None = None  #: of the body
    lists: Lists = "indexed"
    mail: Sender | None = None  #: a mail server, and what is said of every mail to it

    def outgoing(self, key: str, *, part: str = "0", repetition: int = 0) -> str:
        return outgoing_key(
            key, self.key_max_length, self.key_format, part=part, repetition=repetition
        )

    def keyed(self, outgoing: str) -> Keyed:
        return Keyed(key=outgoing, field=self.key_field, lists=self.lists)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One `[effects.X]`, ready to render."""

    name: str
    position: int  #: in the configuration: the order within one revision of a resource
    gate: Gate
    destination: Target
    idempotent: bool
    method: str = ""
    path: PathTemplate | None = None  #: None: it asks for mails
    headers: Mapping[str, Template] = field(default_factory=dict)
    json: JsonTemplate | None = None
    form: JsonTemplate | None = None
    query: JsonTemplate | None = None
    mail: MailTemplate | None = None
    delivered: ApplyStep | None = None  #: keeps what was answered
    key: Template | None  #: None: the usual key
    lasting: bool  #: the key names neither version nor event
    lane: Template | None
    hold_after_dead: bool | None  #: None: as its destination says by then
    supersedes: bool
    max_age: timedelta | None
    expires: timedelta | None
    dated: frozenset[Source]  #: (sender, kind) whose versions are times

    @property
    def needs_time(self) -> bool:
        """Whether it takes the moment at which it is asked for: for its age, or a mail's Date."""
        return self.max_age is not None or self.mail is not None
