"""Pausing: nothing is sent to a destination, or of one effect, until somebody resumes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from outbox import pausing
from reconciler.errors import UsageError
from reconciler.operations import actions
from reconciler.operations.acting import Order
from reconciler.operations.naming import not_configured
from reconciler.operations.redriving import run_order
from reconciler.settings import Settings
from reconciler.transactions import taking_up_to

COUNTED_WITHIN = timedelta(seconds=50)  #: a pause may make a million entries wait

Item = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """What a person says: a destination, an effect, or an effect at a destination."""

    destination: str | None = None
    effect: str | None = None


async def pause(order: Order, meant: Meant) -> list[Item]:
    """
    Send no more of what is *meant*, from the next lease of every relay.

    Raises UsageError for names that nobody configured, and for an effect that goes elsewhere: a
    pause of them would stop nothing.
    """
    settings = order.assembly.loaded.settings
    places = to_pause(settings, meant)

    async def work(connection: AsyncConnection) -> list[Item]:
        items = []
        for destination, effect in places:
            new = await pausing.pause(
                connection, destination, effect=effect, actor=order.actor, reason=order.reason
            )
            if new:
                await _note(connection, order, "outbox.pause", destination, effect)
            standing = await pausing.standing(connection, destination, effect=effect)
            waiting = await _waiting(connection, destination, effect)
            elsewhere = settings.effects.get(effect)
            if new and not waiting and elsewhere and elsewhere.destination != destination:
                # One that once went there may have entries left; else it would stop nothing.
                raise UsageError(
                    f"{effect} goes to {elsewhere.destination}, and nothing of it waits for"
                    f" {destination}",
                    hint=f"`--effect {effect}` alone pauses it",
                )
            items.append(
                {
                    **_place(destination, effect),
                    "result": "paused" if new else "already_paused",
                    **{name: standing and standing[name] for name in TOLD},
                    "waiting": waiting,
                }
            )
        return items

    done: list[Item] = await run_order(order, work)
    return done


async def resume(order: Order, meant: Meant) -> list[Item]:
    """
    Send again what is *meant*. What is paused may be resumed whatever is configured now.

    Raises UsageError for names that are neither configured nor paused.
    """
    settings = order.assembly.loaded.settings

    async def work(connection: AsyncConnection) -> list[Item]:
        items = []
        found = [one for one in await pausing.paused(connection) if is_meant(one, meant)]
        for one in found:
            destination, effect = one["destination"], one["effect"]
            await pausing.resume(connection, destination, effect=effect)
            await _note(connection, order, "outbox.resume", destination, effect)
            items.append(
                {
                    **_place(destination, effect),
                    "result": "resumed",
                    **{name: one[name] for name in TOLD},
                    "waiting": await _waiting(connection, destination, effect),
                }
            )
        if not found:
            items = [
                {
                    **_place(destination, effect),
                    "result": "not_paused",
                    **dict.fromkeys(TOLD),
                    "waiting": await _waiting(connection, destination, effect),
                }
                for destination, effect in to_pause(settings, meant)
            ]
        return items

    done: list[Item] = await run_order(order, work)
    return done


def to_pause(settings: Settings, meant: Meant) -> Sequence[tuple[str, str]]:
    """The (destination, effect) that a pause of *meant* is kept under. Raises UsageError."""
    destination, effect = meant.destination, meant.effect
    if destination is not None and destination not in settings.destinations:
        raise UsageError(not_configured("destination", destination, settings.destinations))
    if effect is None:
        return [] if destination is None else [(destination, pausing.ALL)]
    if destination is not None:
        return [(destination, effect)]  # of a handler, perhaps: those are in no configuration
    if effect not in settings.effects:
        raise UsageError(
            not_configured("effect", effect, settings.effects),
            hint="what a handler sends needs --destination beside --effect",
        )
    return [(settings.effects[effect].destination, effect)]


def is_meant(standing: Any, meant: Meant) -> bool:
    """Whether *meant* is a pause; one of a destination is not one of its effects."""
    if meant.effect is None:
        return bool(standing["destination"] == meant.destination and not standing["effect"])
    at_it = meant.destination in (None, standing["destination"])
    return at_it and bool(standing["effect"] == meant.effect)


async def _waiting(connection: AsyncConnection, destination: str, effect: str) -> int:
    with taking_up_to(connection, COUNTED_WITHIN):
        return await pausing.waiting(connection, destination, effect=effect)


async def _note(
    connection: AsyncConnection, order: Order, action: str, destination: str, effect: str
) -> None:
    said = {name: value for name, value in _place(destination, effect).items() if value}
    await actions.record(
        connection, actor=order.actor, action=action, subject=said, reason=order.reason
    )


def _place(destination: str, effect: str) -> Item:
    return {"destination": destination, "effect": effect or None}


TOLD = ("paused_at", "actor", "reason")
