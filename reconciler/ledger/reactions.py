"""What follows from facts and changes: your SQL, your handlers, then every effect at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.enqueue import enqueue
from outbox.entry import Enqueued, NewEntry, State, bounded
from outbox.resting import Rested
from reconciler import database, faults, transactions
from reconciler.errors import ReconcilerError
from reconciler.ledger.causes import Cause, names_for
from reconciler.ledger.effects import entries_for
from reconciler.ledger.event import Event
from reconciler.ledger.following import Following
from reconciler.ledger.handlers import Transaction
from reconciler.ledger.rules import Reactions, Rules
from reconciler.ledger.sending import Execution, Sending
from reconciler.ledger.user_sql import ApplyStep
from reconciler.transactions import STATEMENT_TOO_LONG, sqlstate_of

__all__ = ["Asked", "Cause", "Explained", "UserStepError", "react", "run_apply"]

log = structlog.get_logger()


async def react(
    connection: AsyncConnection,
    rules: Rules,
    causes: Sequence[Cause],
    *,
    explain: list[Explained] | None = None,
) -> list[list[Asked]]:
    """
    Do what *causes* ask for, in their order, and say which calls each now has in the outbox.

    For each cause the `apply` statements run, then the handlers, in file order; all effects are
    written together at the end. The caller owns the transaction. *explain* collects, a cause at a
    time, what ran and what was not asked for and why; what came before an error too.

    Raises UserStepError where a statement or a handler of the user's fails.
    """
    reactions = [reactions_to(rules, cause) for cause in causes]
    dated = any(effect.needs_time for one in reactions for effect in one.effects)
    now = await database.now(connection) if dated else None
    asked: set[tuple[str, str, str]] = set()
    entries: list[list[NewEntry]] = []
    for cause, reaction in zip(causes, reactions, strict=True):
        told = Explained(cause=cause)
        if explain is not None:
            explain.append(told)
        if not reaction:
            entries.append([])
            continue
        names = names_for(cause)
        await run_apply(connection, reaction.applies, cause, names, told=told)
        sending = sending_for(rules, cause, asked)
        await run_handlers(connection, reaction, cause, names, sending=sending, told=told)
        owed: list[NewEntry] = []
        for effect in reaction.effects:
            made = entries_for(effect, cause, names, now=now)
            if isinstance(made, str):
                told.not_asked.append(NotAsked(effect=effect.name, reason=made))
            else:
                owed += made
        entries.append([*owed, *sending.entries])
    faults.point("before-enqueue")
    return await write(connection, rules, entries)


def reactions_to(rules: Rules, cause: Cause) -> Reactions:
    event = cause.event
    sender = rules.senders[event.sender]
    if cause.what == "fact":
        return sender.facts_for(event.type)
    assert event.kind is not None
    return sender.changes_for(event.kind)


def sending_for(rules: Rules, cause: Cause, asked: set[tuple[str, str, str]]) -> Sending:
    event = cause.event
    observed = cause.what == "change" and rules.senders[event.sender].observed(event.kind or "")
    return Sending(
        cause=cause,
        targets=rules.targets,
        configured=rules.effects,
        observed=observed,
        asked=asked,
    )


async def run_apply(
    connection: AsyncConnection,
    steps: Sequence[ApplyStep],
    cause: Cause,
    names: Mapping[str, Any],
    *,
    told: Explained,
) -> None:
    """Run the user's statements for one cause, in file order."""
    for step in steps:
        try:
            if refusal := step.gate.refusal(cause, names):
                told.passed.append(Passed(where=step.where, reason=refusal))
                continue
            values = step.values(names)
            rows = await step.run(connection, values)
        except Exception as error:  # noqa: BLE001 - the user's step may raise anything
            raise_unless_passing(error, where=step.where, event=cause.event)
        told.ran.append(Ran(where=step.where, values=values, rows=rows, expected=step.expect_rows))
        if step.expect_rows is not None and rows < step.expect_rows:
            log.warning(
                "ledger.rows_expected",
                where=step.where,
                sender=cause.event.sender,
                event_id=cause.event.event_id,
                rows=rows,
                expected=step.expect_rows,
            )


async def run_handlers(  # noqa: PLR0913 - the transaction's whole surroundings
    connection: AsyncConnection,
    reactions: Reactions,
    cause: Cause,
    names: Mapping[str, Any],
    *,
    sending: Sending,
    told: Explained,
) -> None:
    for step in reactions.handlers:
        transaction = Transaction(execute=Execution(connection=connection), send=sending)
        try:
            if refusal := step.gate.refusal(cause, names):
                told.passed.append(Passed(where=step.where, reason=refusal))
                continue
            await step.function(cause.event, transaction)
        except Exception as error:  # noqa: BLE001 - the user's step may raise anything
            raise_unless_passing(error, where=step.where, event=cause.event)
        finally:
            transaction.close()
        told.ran.append(Ran(where=step.where))


async def write(
    connection: AsyncConnection, rules: Rules, entries: Sequence[Sequence[NewEntry]]
) -> list[list[Asked]]:
    """Put all entries into the outbox at once and hand the answers back cause by cause."""
    flat = [entry for one in entries for entry in one]
    answers = await enqueue(connection, flat)
    follow = Following(rules=rules)
    held = [
        held_back(entry, answer)
        for entry, answer in zip(flat, answers, strict=True)
        if answer.state is State.UNCERTAIN and follow.wants(entry.effect, answer.state)
    ]
    if held:
        await follow.follow(connection, held)
    written = iter(answers)
    return [[asked_for(entry, next(written)) for entry in one] for one in entries]


def held_back(entry: NewEntry, answer: Enqueued) -> Rested:
    """What a future that was lost may have sent: it rests before its first call."""
    return Rested(
        id=answer.id,
        sender=entry.sender,
        event_id=entry.event_id,
        effect=entry.effect,
        part=entry.part,
        kind=entry.kind,
        key=entry.key,
        destination=entry.destination,
        idempotency_key=entry.idempotency_key,
        attempts=0,
        state=answer.state,
        reason=answer.reason,
    )


def asked_for(entry: NewEntry, answer: Enqueued) -> Asked:
    if answer.state is State.PENDING and answer.reason is not None:
        log.error(
            "ledger.effect_unrendered",
            effect=entry.effect,
            sender=entry.sender,
            event_id=entry.event_id,
            reason=answer.reason,
        )
    return Asked(
        effect=entry.effect,
        destination=entry.destination,
        idempotency_key=answer.idempotency_key,
        state=answer.state,
        reason=answer.reason,
        entry=entry,
    )


def raise_unless_passing(error: Exception, *, where: str, event: Event) -> NoReturn:
    """
    Blame the user's step, unless it was the database that failed and may not fail again.

    (A step that takes too long will do so again; a statement of ours would not.)
    """
    if transactions.is_transient(error) and sqlstate_of(error) != STATEMENT_TOO_LONG:
        raise error
    raise UserStepError(where=where, event=event, original=error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call that a cause now has in the outbox."""

    effect: str
    destination: str
    idempotency_key: str | None
    state: State  #: pending, or skipped
    reason: str | None  #: why it is skipped, or `unrendered: ...`
    entry: NewEntry  #: the call itself


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAsked:
    """One effect about this type or kind that this cause does not ask for."""

    effect: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One statement or handler of the user's that ran."""

    where: str  #: `senders.shop.apply[0]`, `handlers.shop_rules.record_refund`
    values: Mapping[str, str | None] = field(default_factory=dict)  #: of a statement's parameters
    rows: int | None = None  #: touched, or found
    expected: int | None = None  #: at the least


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """One statement or handler that did not run."""

    where: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What one cause set off besides its calls, and what it did not and why."""

    cause: Cause
    ran: list[Ran] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)
    not_asked: list[NotAsked] = field(default_factory=list)


class UserStepError(ReconcilerError):
    """A statement or a handler of the user's failed: this event cannot be applied."""

    def __init__(self, *, where: str, event: Event, original: Exception) -> None:
        reason = f"{type(original).__name__}: {transactions.told(original)}"
        super().__init__(bounded(f"{where} failed: {reason}"))
        self.where = where
        self.event = event
        self.original = original
