"""Running `apply` and handlers over states that are held already: no claims, no effects."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from reconciler.ledger import resources
from reconciler.ledger.causes import Cause, names_for
from reconciler.ledger.event import Change, Event, Observation, Origin
from reconciler.ledger.guard import Held
from reconciler.ledger.reactions import Explained, run_apply, run_handlers, sending_for
from reconciler.ledger.rules import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Reapplied:
    """One resource whose reactions ran again."""

    key: str
    version: int
    deleted: bool
    explained: Explained


async def reapply(
    connection: AsyncConnection, rules: Rules, sender: str, kind: str, keys: Sequence[str]
) -> dict[str, Reapplied | None]:
    """
    Run what reacts to changes of *kind* over what is held of *keys*; None: nothing is held.

    Under the rows' locks, so that what a webhook is just writing comes after it and not before.
    Calls that a handler asks for are not made: what a change asked for was asked for then. The
    caller owns the transaction. Raises UserStepError where a statement or a handler fails.
    """
    held = await resources.lock_held(connection, [(sender, kind, key) for key in keys])
    done: dict[str, Reapplied | None] = dict.fromkeys(keys)
    reactions = rules.senders[sender].changes_for(kind)
    for key in sorted(keys):
        row = held.get((sender, kind, key))
        if row is None or row.version is None:
            continue
        cause = cause_of(sender, kind, key, row)
        names = names_for(cause)
        told = Explained(cause=cause)
        await run_apply(connection, reactions.applies, cause, names, told=told)
        unsent = sending_for(rules, cause, set())
        await run_handlers(connection, reactions, cause, names, sending=unsent, told=told)
        done[key] = Reapplied(key=key, version=row.version, deleted=row.deleted, explained=told)
    return done


def cause_of(sender: str, kind: str, key: str, held: Held) -> Cause:
    """
    The change that a state stands for when it is applied again.

    What is deleted was deleted last; of everything else we only know that it is so now. What was
    held before is not known, so `previous` is null, and `becomes` acts where it is true now.
    """
    event = Event(
        sender=sender,
        event_id=f"reapply:{kind}:{key}:{held.version}",
        type=f"{kind}.reapplied",
        origin=Origin.REPLAY,
        by_person=True,
        observation=Observation(
            kind=kind, key=key, version=held.version, state=held.state, deleted=held.deleted
        ),
        change=Change.DELETED if held.deleted else Change.UPDATED,
    )
    return Cause(event=event, what="change", revision=held.revision)
