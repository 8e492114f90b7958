"""One scenario: undisturbed, and then with its Nth call going wrong, for every N."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from tests.sweep.sabotage import How
from tests.sweep.scenarios import SAID, Scenario
from tests.sweep.scene import Scene

MOST = 400  #: calls of one scenario; more is a loop that never ends
WITHIN = 60.0  #: seconds for one run


@dataclass(kw_only=True)
class Swept:
    """How many calls went wrong, and what was not as it should be then."""

    name: str
    runs: int = 0
    faults: list[str] = field(default_factory=list)
    struck: set[str] = field(default_factory=set)


async def sweep(
    scene: Scene,
    scenario: Scenario,
    *,
    hows: Iterable[How] = tuple(How),
    every: int = 1,
    tell: Callable[[str], None] = lambda _: None,
) -> Swept:
    """Let each *every*-th call of *scenario* go wrong once, in each of these ways."""
    swept = Swept(name=scenario.name)
    undisturbed = await run(scene, scenario, at=None, how=How.BEFORE, swept=swept)
    for how in hows:
        at = 1
        while at <= MOST:
            found = await run(scene, scenario, at=at, how=how, swept=swept)
            if scene.sabotage.struck is None:
                break  # it has passed untouched: that was the last call
            swept.runs += 1
            swept.struck.add(scene.sabotage.struck)
            where = f"{scenario.name}, call {at} ({scene.sabotage.struck}) {how}"
            swept.faults += [f"{where}: {fault}" for fault in differences(undisturbed, found)]
            at += every
        tell(f"{scenario.name}, {how}: {at - 1} calls")
    return swept


async def run(
    scene: Scene, scenario: Scenario, *, at: int | None, how: How, swept: Swept
) -> dict[str, Any]:
    """One run of *scenario*, and what is held at its end."""
    sabotage = scene.sabotage
    sabotage.acting, sabotage.struck = None, None
    await scene.clear()
    await scenario.begin(scene)
    sabotage.at, sabotage.how, sabotage.calls = at, how, 0
    where = f"{scenario.name}, call {at} {how}"

    async def act() -> None:
        sabotage.acting = asyncio.current_task()
        await scenario.act(scene)

    try:
        async with asyncio.timeout(WITHIN):
            acting = asyncio.create_task(act())
            await asyncio.wait([acting])
        error = None if acting.cancelled() else acting.exception()
        if error is not None and not is_said(error):
            swept.faults.append(f"{where}: it raised {error!r}"[:600])
    finally:
        sabotage.acting = None
    async with asyncio.timeout(WITHIN):
        await scenario.again(scene)
        await scene.bounded()
    return await scene.state()


def is_said(error: BaseException) -> bool:
    """Whether *error* is one of those that an operation documents."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_said(one) for one in error.exceptions)
    return isinstance(error, (*SAID, SQLAlchemyError))


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [
        f"{name} is {found[name]}, should be {expected[name]}"[:900]
        for name in expected
        if expected[name] != found[name]
    ]
