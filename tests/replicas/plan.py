"""What happens at the pretend sender, drawn from a seed: the same for one replica and for many."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LIFE = ("created", "addressed", "paid", "shipped", "closed")
ACTIVE = 6  #: orders that change at the same time, so that their events overtake each other
REFUNDS, LOST, LOST_OF_LAST, REPEATED = 0.2, 0.06, 0.25, 0.25
LONGEST_DELAY = 1.0  #: seconds that a delivery may come later than it was emitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happens, and the fate of the event that tells of it."""

    event_id: str
    order: str
    amount: int
    facts: Mapping[str, Any] | None  #: what the order becomes; None: it is a refund
    delays: tuple[float, ...]  #: one for each delivery, in seconds; none: the event is lost


def drawn(*, seed: int, events: int) -> list[Step]:
    """*events* steps in the lives of orders: shuffled, repeated, and some of them lost."""
    fate = random.Random(f"replicas {seed}")
    ages: dict[str, int] = {}  # of the orders that change now
    steps: list[Step] = []
    orders = 0
    for number in range(1, events + 1):
        if ages and fate.random() < REFUNDS:
            order, facts, lost = fate.choice(sorted(ages)), None, 0.0
        else:
            if len(ages) < ACTIVE:
                orders += 1
                order = f"ord_{orders}"
                ages[order] = 0
            else:
                order = fate.choice(sorted(ages))
            facts = {"status": LIFE[ages[order]], "paid": ages[order] >= LIFE.index("paid")}
            ages[order] += 1
            last = ages[order] == len(LIFE)
            lost = LOST_OF_LAST if last else LOST
            if last:
                del ages[order]
        times = fate.choice([2, 3, 5]) if fate.random() < REPEATED else 1
        times = 0 if fate.random() < lost else times
        delays = tuple(fate.random() ** 2 * LONGEST_DELAY for _ in range(times))
        steps.append(
            Step(
                event_id=f"evt_{number}",
                order=order,
                amount=fate.randrange(100, 10_000),
                facts=facts,
                delays=delays,
            )
        )
    return steps


def effects_of(steps: list[Step]) -> list[str]:
    """What must be performed, each once, by the reference that its call gives."""
    asked: set[str] = set()
    for step in steps:
        if step.facts is None:
            asked |= {f"receipt {step.event_id}", f"note {step.event_id}"}
        elif step.facts["paid"]:
            asked |= {f"capture {step.order}"}
            asked |= {f"close {step.order}"} if step.facts["status"] == "closed" else set()
    return sorted(asked)


def told(steps: list[Step]) -> set[str]:
    """The ids of the events that are delivered at all."""
    return {step.event_id for step in steps if step.delays}
