"""What follows when entries come to rest: `delivered` statements, and effects that tell of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from outbox.entry import State, bounded
from outbox.resting import OverrunError, Rested
from outbox.store import outbox
from outbox.verdict import Answer, Reply, parsed
from reconciler import database, transactions
from reconciler.exact_json import Json, require_json
from reconciler.expressions import CaseInsensitive
from reconciler.ledger.alerts import hour_of, met, tell
from reconciler.ledger.calls import CallError
from reconciler.ledger.effects import UNUSABLE, Effect
from reconciler.ledger.event import Event
from reconciler.ledger.rules import Rules
from reconciler.ledger.triggers import OURSELVES
from reconciler.ledger.user_sql import ApplyStep

log = structlog.get_logger()

STATEMENT_WITHIN = timedelta(seconds=2)  #: marks of other entries wait behind it
TOGETHER_WITHIN = timedelta(seconds=1)  #: of one transaction; beyond it they go one at a time
NAMES = ("sender", "event_id", "effect", "part", "kind", "key", "destination", "idempotency_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """Writes what the configuration has follow, in the transaction of the relay or of a person."""

    rules: Rules
    together: timedelta | None = None  #: that the statements of one transaction may take

    def wants(self, effect: str, state: State) -> bool:
        if state is State.DELIVERED:
            return effect in self.rules.delivered
        alerts = self.rules.alerts
        # what tells of dead entries may die itself: nothing tells of that, or it would never end
        return all(one.name != effect for one in alerts) and any(
            one.gate.takes_fact(OURSELVES, state.value) for one in alerts
        )

    async def follow(self, connection: AsyncConnection, rested: Sequence[Rested]) -> None:
        delivered = [one for one in rested if one.state is State.DELIVERED]
        began = time.monotonic()
        for number, one in enumerate(delivered):
            taken = timedelta(seconds=time.monotonic() - began)
            late = self.together is not None and taken > self.together
            if number and late and not one.late:
                raise OverrunError
            await run_delivered(connection, self.rules, one)
        over = [one for one in rested if one.state is not State.DELIVERED]
        if over:
            await tell_of(connection, self.rules.alerts, over)


async def run_delivered(connection: AsyncConnection, rules: Rules, one: Rested) -> None:
    """
    Run the statement that keeps what a destination answered; its failure undoes only itself.

    The entry stays delivered, and its `last_error` says what failed: nothing is called again.
    Raises what the connection raises where it is lost: then nothing of this transaction happened.
    """
    step = rules.delivered[one.effect]
    try:
        if one.late:
            raise CallError("it was not run: those before it took too long")
        if needs_an_answer(step) and not has_an_answer(one):
            raise CallError("it wants the answer, and there is none that is whole")
        values = values_of(step, one)
        async with connection.begin_nested():
            await database.prepare_transaction(
                connection, statement_timeout=STATEMENT_WITHIN, search_path=rules.search_path
            )
            await step.run(connection, values)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        fault = f"{type(error.orig).__name__}: {transactions.told(error)}"
    except UNUSABLE as error:
        fault = str(error)
    else:
        return
    log.error("ledger.delivered_failed", where=step.where, entry=str(one.id), reason=fault)
    told = bounded(f"delivered, and {step.where} failed: {fault}")
    await connection.execute(update(outbox).where(outbox.c.id == one.id).values(last_error=told))


def values_of(step: ApplyStep, one: Rested) -> Mapping[str, str | None]:
    """
    What the parameters are for *one*.

    Raises one of UNUSABLE. An answer is a stranger's: whatever in it cannot be used must fail
    here, and neither at the database nor beyond the one statement that wanted it.
    """
    try:
        values = step.values(names_of(one))
        for value in values.values():
            require_json(value)
    except UNUSABLE:
        raise
    except Exception as error:  # noqa: BLE001  # the user's expression over a stranger's answer
        raise CallError(f"its values cannot be made: {type(error).__name__}") from None
    return values


def has_an_answer(one: Rested) -> bool:
    return one.answer is not None and getattr(one.answer, "complete", True)


def needs_an_answer(step: ApplyStep) -> bool:
    """Whether a statement wants what only an answer says."""
    return any(value.names & {"status", "headers", "body"} for value in step.params.values())


def names_of(one: Rested) -> dict[str, Any]:
    """What `delivered` may name: the answer, and what the entry is known by."""
    names: dict[str, Any] = {name: getattr(one, name) for name in NAMES}
    names["entry_id"] = str(one.id)
    body: Json = None
    match one.answer:
        case Answer(status=status, headers=headers, complete=complete):
            body = parsed(one.answer) if complete else None
            return {**names, "status": status, "headers": CaseInsensitive(headers), "body": body}
        case Reply(status=status, text=text):
            # bytes that are no UTF-8 stand in it as half characters
            words = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            return {**names, "status": status, "headers": CaseInsensitive(), "body": words}
        case None:
            return {**names, "status": None, "headers": CaseInsensitive(), "body": None}


async def tell_of(
    connection: AsyncConnection, alerts: Sequence[Effect], over: Sequence[Rested]
) -> None:
    """
    Ask for the effects that tell of entries that are over without success, once an hour.

    By destination and by what they are (dead, uncertain): the first of an hour is told of, the
    others are not.
    """
    now = await database.now(connection)
    firsts: dict[str, Event] = {}
    for one in over:
        event = event_of(one, now=now)
        firsts.setdefault(event.event_id, event)
    for _, event in sorted(firsts.items()):
        await tell(connection, alerts, event)


def event_of(one: Rested, *, now: datetime) -> Event:
    """That an entry is over, as an event of our own; its id is that of its hour."""
    facts: Mapping[str, Json] = {
        "entry_id": str(one.id),
        **{name: getattr(one, name) for name in NAMES},
        "state": one.state.value,
        "attempts": one.attempts,
        "reason": one.reason,
    }
    return met(one.state.value, (one.destination, hour_of(now)), facts, now=now)
