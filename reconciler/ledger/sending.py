"""What a handler's `tx` does: statements under savepoints, and calls frozen on the spot."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import CursorResult, Executable, TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import NewEntry
from reconciler.exact_json import require_json
from reconciler.ledger.calls import (
    NAME,
    CallError,
    Content,
    check_header_name,
    check_lane,
    freeze,
    split_request,
)
from reconciler.ledger.causes import Cause
from reconciler.ledger.effects import Target, happened_at
from reconciler.ledger.event import Origin
from reconciler.ledger.keys import sent_key
from reconciler.ledger.sql_text import read_statement
from reconciler.ledger.triggers import nearest

SEPARATORS = re.compile(r"[:/|,; ]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """`tx.execute` on the transaction's own connection."""

    connection: AsyncConnection

    async def __call__(self, statement: Executable | str, params: Any) -> CursorResult[Any]:
        if isinstance(statement, str):
            statement = text(read_statement(statement).for_sqlalchemy())
        elif isinstance(statement, TextClause):
            read_statement(statement.text)  # neither COMMIT nor SET
        # A handler may catch the error of a statement and go on; without the savepoint
        # PostgreSQL would then refuse everything else in this transaction, our commit included.
        async with self.connection.begin_nested():
            return await self.connection.execute(statement, params)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """`tx.send` for the handlers of one cause; *entries* are what they asked for."""

    cause: Cause
    targets: Mapping[str, Target]
    configured: frozenset[str]  #: names of effects that the configuration has
    observed: bool  #: whether the change's version is the moment of our own read
    asked: set[tuple[str, str, str]]  #: (sender, event id, effect) of the whole batch
    entries: list[NewEntry] = field(default_factory=list)

    def __call__(  # noqa: PLR0913 - what a call consists of
        self,
        *,
        destination: str,
        request: str,
        json: object,
        form: Mapping[str, object] | None,
        query: Mapping[str, object] | None,
        effect: str,
        headers: Mapping[str, str],
        key: str | None,
        idempotent: bool | None,
        lane: str | None,
    ) -> None:
        target = self.target(destination)
        if target.mail is not None:
            raise CallError(f"{destination} sends mails, which [effects] ask for")
        self.claim(effect)
        for name in headers:
            check_header_name(name, key_header=target.key_header)
        method, path = split_request(request)
        event = self.cause.event
        said = self.usual(effect) if key is None else key
        if not said.strip():
            raise CallError("the idempotency key is empty")
        outgoing = target.outgoing(said)
        call = freeze(
            method=method,
            path=path,
            headers=headers,
            content=Content(
                json=require_json(json),
                has_json=json is not None,
                form=require_json(form),
                query=require_json(query),
            ),
            keyed=target.keyed(outgoing),
        )
        self.entries.append(
            NewEntry(
                sender=event.sender,
                event_id=event.event_id,
                effect=effect,
                kind=event.kind,
                key=event.key,
                revision=self.cause.revision,
                position=len(self.configured) + len(self.entries),
                ordered=target.ordered and lane is None,
                lane=None if lane is None else check_lane(lane),
                hold_after_dead=None if lane is None else target.hold_after_dead,
                destination=target.name,
                idempotency_key=outgoing,
                # what else a key of the handler's own stands for is not ours to see
                lasting=key is not None and event.event_id not in SEPARATORS.split(key),
                idempotent=target.idempotent if idempotent is None else idempotent,
                method=call.method,
                path=call.path,
                headers=call.headers,
                body=call.body,
                happened_at=happened_at(event, dated=frozenset()),
                found=event.origin in {Origin.CORRECTION, Origin.READ},
                skip=self.cause.suppressed,
            )
        )

    def usual(self, effect: str) -> str:
        if self.observed:
            raise CallError(
                f"{self.cause.event.kind} has no version of its own: say key=, like"
                f' key=f"{effect}:{{event.key}}" for what happens once in a resource\'s life'
            )
        return sent_key(self.cause, effect)

    def target(self, destination: str) -> Target:
        if destination not in self.targets:
            raise CallError(
                f"there is no destination {destination!r}" + nearest(destination, self.targets)
            )
        return self.targets[destination]

    def claim(self, effect: str) -> None:
        """See that *effect* is a name, and this event's only call under it."""
        if not NAME.fullmatch(effect):
            raise CallError(f"effect={effect!r}: a name is {NAME.pattern}")
        if effect in self.configured:
            raise CallError(f"effect={effect!r}: effects.{effect} is configured; take another name")
        event = self.cause.event
        if (event.sender, event.event_id, effect) in self.asked:
            raise CallError(f"effect={effect!r} is asked for twice by one event: name each call")
        self.asked.add((event.sender, event.event_id, effect))
