"""What one sender's configuration means to the receiver: compiled once, keys decoded once."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from reconciler.errors import ConfigError, Problem
from reconciler.expressions import (
    ENVELOPE_NAMES,
    HANDSHAKE_NAMES,
    Expression,
    ExpressionSyntaxError,
    compile_expression,
    compile_template,
)
from reconciler.ledger.projection import KindReader
from reconciler.receiver.handshake import Handshake
from reconciler.receiver.signature import SignatureContract, compile_signature
from reconciler.settings import Secrets
from reconciler.settings.models import HandshakeSettings, ResourceSettings, SenderSettings, TimeSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class KindContract:
    """Where an event about a kind describes the resource, and what reads it there."""

    from_: Expression | None  #: None: the whole event
    reader: KindReader


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderContract:
    """Everything that the receiver knows of one sender."""

    name: str
    signature: SignatureContract
    refused_status: int
    encodings: frozenset[str]
    max_body: int  #: bytes, on the wire and inflated
    answer_within: timedelta
    refuses_malformed: bool
    event_id: Expression
    event_type: Expression
    occurred_at: Expression | None
    occurred_spec: TimeSpec | None
    items: Expression | None
    kinds: tuple[KindContract, ...]
    handshakes: tuple[Handshake, ...]
    masked_headers: frozenset[str]  #: never stored as they came
    read_headers: frozenset[str]  #: what makes the event what it is: stored as they came
    masked_secrets: tuple[str, ...]

    def kind_for(self, event_type: str) -> KindContract | None:
        """Return the one kind that events of this type are about, if any."""
        for kind in self.kinds:
            if kind.reader.is_about(event_type):
                return kind
        return None


def compile_sender(
    name: str,
    settings: SenderSettings,
    secrets: Secrets,
    readers: Mapping[str, KindReader],
) -> SenderContract:
    """
    Compile what *settings* say about deliveries of the sender *name*.

    *readers* has one reader a kind. Raises ConfigError with every problem found.
    """
    work = _Compiling(key=f"senders.{name}")
    resolved = list(known(secrets, settings.secrets))
    spec = time_spec(settings.event.occurred_at)
    signature = work.tried(
        "signature",
        lambda: compile_signature(
            settings.signature, secrets=resolved, public_url=settings.public_url, key=work.key
        ),
    )
    event_id = work.needed("event.id", settings.event.id)
    event_type = work.needed("event.type", settings.event.type)
    occurred_at = work.expression("event.occurred_at", spec.value if spec else None)
    items = work.expression("event.items", settings.event.items)
    kinds = tuple(
        work.kind(kind, resource, readers[kind]) for kind, resource in settings.resources.items()
    )
    handshakes = tuple(work.handshake(place, each) for place, each in enumerate(settings.handshake))
    if work.problems:
        raise ConfigError(problems=work.problems)
    masked_headers = frozenset({settings.signature.header.lower()})
    assert signature is not None
    assert event_id is not None
    assert event_type is not None
    return SenderContract(
        name=name,
        signature=signature,
        refused_status=settings.signature.refused_status,
        encodings=frozenset(settings.signature.encodings),
        max_body=settings.max_body,
        answer_within=settings.answer_within,
        refuses_malformed=settings.on_malformed == "refuse",
        event_id=event_id,
        event_type=event_type,
        occurred_at=occurred_at,
        occurred_spec=spec,
        items=items,
        kinds=kinds,
        handshakes=tuple(each for each in handshakes if each is not None),
        masked_headers=masked_headers,
        read_headers=headers_read_by(
            event_id, event_type, occurred_at, items, *(kind.from_ for kind in kinds)
        )
        - masked_headers,
        masked_secrets=tuple(resolved),
    )


def headers_read_by(*expressions: Expression | None) -> frozenset[str]:
    """Return the headers that *expressions* name, in lower case."""
    paths = [path for each in expressions if each is not None for path in each.paths]
    return frozenset(
        str(path[1]).lower() for path in paths if len(path) > 1 and path[0] == "headers"
    )


def known(secrets: Secrets, references: Iterable[str]) -> Iterator[str]:
    """Resolve what could be read; of what could not, `settings` has said so already."""
    for reference in references:
        with contextlib.suppress(KeyError):
            yield secrets.resolve(reference)


def compile_handshake(settings: HandshakeSettings) -> Handshake:
    """Raise ExpressionSyntaxError for what is no expression, or uses other names."""
    when = compile_expression(settings.when, names=HANDSHAKE_NAMES)
    return Handshake(
        when=when,
        signed=settings.signed,
        status=settings.status,
        content_type=settings.content_type,
        text=compile_template(settings.text, names=HANDSHAKE_NAMES),
    )


def time_spec(value: str | TimeSpec | None) -> TimeSpec | None:
    return TimeSpec(value=value) if isinstance(value, str) else value


@dataclass(slots=True, kw_only=True)
class _Compiling:
    """Compiles part after part and remembers what was wrong with each."""

    key: str
    problems: list[Problem] = field(default_factory=list)

    def tried(self, where: str, build: Callable[[], T]) -> T | None:
        try:
            return build()
        except ExpressionSyntaxError as error:
            self.problems.append(Problem(key=f"{self.key}.{where}", message=str(error)))
        except ConfigError as error:
            self.problems.extend(error.problems)
        return None

    def expression(self, where: str, source: str | None) -> Expression | None:
        """None where there is none, and for "", which is all of it."""
        if not source:
            return None
        return self.tried(
            where, lambda: compile_expression(source, names=ENVELOPE_NAMES, root="body")
        )

    def needed(self, where: str, source: str) -> Expression | None:
        if not source:
            message = "must say where it stands, like `id`"
            self.problems.append(Problem(key=f"{self.key}.{where}", message=message))
        return self.expression(where, source)

    def handshake(self, place: int, settings: HandshakeSettings) -> Handshake | None:
        return self.tried(f"handshake[{place}]", lambda: compile_handshake(settings))

    def kind(self, kind: str, settings: ResourceSettings, reader: KindReader) -> KindContract:
        return KindContract(
            from_=self.expression(f"resources.{kind}.from", settings.from_),
            reader=reader,
        )
