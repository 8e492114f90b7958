"""What will happen in one seed: decided here, from the seed alone, before anything runs."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: Where a daemon that receives and relays kills itself; each seed takes the next of them.
POINTS = (
    "after-verify",
    "after-begin",
    "after-claim",
    "after-guard",
    "before-enqueue",
    "after-react",
    "before-commit",
    "commit-sent",
    "after-commit",
    "after-commit-before-ack",
    "ack-half-sent",
    "in-quarantine",
    "relay-in-lease",
    "relay-after-lease",
    "relay-before-send",
    "relay-half-sent",
    "relay-sent",
    "relay-after-send",
    "relay-before-mark",
    "relay-in-mark",
    "relay-after-mark",
    "database-prepared",
)
#: Where one that reconciles does.
SCAN_POINTS = (
    "scan-after-take",
    "scan-after-page",
    "scan-before-checkpoint",
    "scan-after-checkpoint",
    "scan-before-complete",
    "read-between-fetch-and-apply",
)
#: Where only a page that takes long brings one: a story of its own does.
ELSEWHERE = ("scan-after-renewal",)
AT_ONCE = ("in-quarantine", "database-prepared")  #: come too seldom to wait for a third time

CRASHES = 2  #: at points of POINTS, in each seed
LIFE = ("created", "addressed", "paid", "shipped", "delivered")
ENCORES = 60
CUTS = {"cut_claim": "processed_events", "cut_mark": "outbox_attempts"}
FAULTS = ("kill", *CUTS, "reset", "restart_database", "freeze", "refuse")
TROUBLES = ("lost_before", "lost_after", "busy", "failed_after", "slow", "limited", "in_progress")
PATIENCE = 30.0  #: seconds that a sender who is in no hurry waits for an answer
CALLS_IN_TROUBLE = 4  #: afterwards a call meets none, so that everything ends
POISON = 666  #: the amount that the user's table refuses

Kind = Literal["order", "muddled", "refund", "poison", "malformed"]
Fate = Literal["sent", "lost", "held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One event, and what the wire does with it."""

    id: str
    type: str
    kind: Kind
    data: Mapping[str, Any]
    fate: Fate
    """`lost`: nobody is ever told; `held`: told after the reconciler has found out by itself."""
    delays: tuple[float, ...]
    """When each copy sets out, in seconds; the first is repeated until it is acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that breaks once so many events have been emitted."""

    what: str
    after: int
    replica: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Some events, where the first daemon dies while they come, and what else breaks."""

    events: tuple[Planned, ...]
    crash_at: tuple[str, ...]
    faults: tuple[Fault, ...]
    encores: tuple[Planned, ...] = ()
    """Further events, for as long as a point is still to be met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How bad this seed's world is; each seed draws its own, and some are zero."""

    lost: float
    repeated: float
    delayed: float
    longest_delay: float
    impatient: float
    troubled: float
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """To whom one delivery goes, and how long its answer is waited for."""

    replica: int
    patience: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    replicas: int
    rates: Rates
    before: Round
    """With the reconciler off."""
    aftermath: Round
    """With the reconciler on."""
    ordered: bool
    """Whether the destination that knows keys is called in order."""
    batch_max: int
    lanes: bool
    """Whether what is asked for about one order is called in one lane, over two destinations."""
    rate: int | None
    """How many calls a second the destination that knows keys gets."""
    breaker_after: int
    """After how many failures in a row a destination is left alone for a moment."""

    def attempt(self, event_id: str, number: int) -> Attempt:
        """What the *number*-th delivery of an event meets."""
        fate = random.Random(f"{self.seed} attempt {event_id} {number}")
        impatient = number < CALLS_IN_TROUBLE and fate.random() < self.rates.impatient
        return Attempt(
            replica=fate.randrange(self.replicas),
            patience=fate.uniform(0.002, 0.06) if impatient else PATIENCE,
        )

    def trouble(self, key: str, number: int) -> str | None:
        """What the *number*-th call under an idempotency key meets at the destination."""
        fate = random.Random(f"{self.seed} call {key} {number}")
        if number > CALLS_IN_TROUBLE or fate.random() >= self.rates.troubled:
            return None
        return fate.choice(self.rates.troubles)


def plan(seed: int) -> Plan:
    """
    The plan of *seed*: the same one, whenever and wherever it is asked for.

    >>> plan(7) == plan(7)
    True
    """
    fate = random.Random(f"plan {seed}")
    rates = draw_rates(fate)
    shop = Shop(fate=fate, rates=rates)
    replicas = fate.choice((1, 1, 2))
    flow = random.Random(f"flow {seed}")
    turns = [seed * CRASHES + number for number in range(CRASHES)]
    events = shop.all_events(fate.randrange(32, 48))
    before = Round(
        events=events,
        crash_at=tuple(draw_time(fate, POINTS[turn % len(POINTS)]) for turn in turns),
        faults=draw_faults(fate, turns, replicas=replicas, events=len(events)),
        encores=Shop(fate=fate, rates=rates, prefix="encore_").all_events(ENCORES),
    )
    aftermath = Round(
        events=shop.last_events(fate.randrange(8, 14)),
        crash_at=(SCAN_POINTS[seed // 2 % len(SCAN_POINTS)],) if seed % 2 == 0 else (),
        faults=(),
    )
    return Plan(
        seed=seed,
        replicas=replicas,
        rates=rates,
        before=before,
        aftermath=aftermath,
        ordered=fate.random() < 0.5,
        batch_max=fate.choice((1, 4, 64)),
        lanes=flow.random() < 0.5,
        rate=flow.choice((None, 40, 100)),
        breaker_after=flow.choice((0, 2, 10)),
    )


def draw_time(fate: random.Random, point: str) -> str:
    """A point, and at which time of coming there the daemon dies."""
    return point if point in AT_ONCE else f"{point}:{fate.randrange(1, 4)}"


def draw_rates(fate: random.Random) -> Rates:
    troubles = fate.sample(TROUBLES, fate.randrange(3, len(TROUBLES) + 1))
    return Rates(
        lost=fate.choice((0.0, 0.1, 0.25)),
        repeated=fate.choice((0.0, 0.2, 0.5)),
        delayed=fate.choice((0.0, 0.3, 0.6)),
        longest_delay=fate.choice((0.2, 0.8)),
        impatient=fate.choice((0.0, 0.1, 0.3)),
        troubled=fate.choice((0.1, 0.3, 0.6)),
        troubles=tuple(sorted(troubles)),
    )


def draw_faults(
    fate: random.Random, turns: Sequence[int], *, replicas: int, events: int
) -> tuple[Fault, ...]:
    """Faults in turn, so that a batch meets all of them, and sometimes another by chance."""
    names = [FAULTS[turn % len(FAULTS)] for turn in turns]
    if fate.random() < 0.5:
        names.append(fate.choice(FAULTS))
    return tuple(
        Fault(what=name, after=fate.randrange(2, events), replica=fate.randrange(replicas))
        for name in names
    )


class Shop:
    """Orders that live, and what the sender tells of them."""

    def __init__(self, *, fate: random.Random, rates: Rates, prefix: str = "") -> None:
        self.fate = fate
        self.rates = rates
        self.prefix = prefix
        self.orders: dict[str, dict[str, Any]] = {}
        self.told = 0

    def all_events(self, number: int) -> tuple[Planned, ...]:
        """Events of every kind: two that cannot be applied are always among them."""
        events = [self.event() for _ in range(number)]
        events.insert(self.fate.randrange(2, number), self.refund(POISON))
        events.insert(self.fate.randrange(2, number), self.malformed())
        return tuple(events)

    def last_events(self, number: int) -> tuple[Planned, ...]:
        """The last ones about some orders are held back until the reconciler knows."""
        events = [self.event() for _ in range(number)]
        events += [self.muddled(order) for order in list(self.orders.values())[-3:]]
        seen: set[str] = set()
        for place in reversed(range(len(events))):
            event = events[place]
            order = str(event.data["order_id"])
            first, _ = order not in seen, seen.add(order)
            if event.kind == "order" and first and self.fate.random() < 0.4:
                events[place] = self.planned(event.kind, event.type, event.data, fate="held")
        return tuple(events)

    def event(self) -> Planned:
        draw = self.fate.random()
        if self.orders and draw < 0.25:
            return self.refund(POISON if draw < 0.02 else self.fate.randrange(1, 100))
        if self.orders and draw < 0.29:
            return self.malformed()
        moved = [order for order in self.orders.values() if order["version"] < len(LIFE)]
        if len(moved) < 4:
            order_id = f"{self.prefix}ord_{len(self.orders) + 1}"
            self.orders[order_id] = order = {
                "order_id": order_id,
                "version": 0,
                "amount": self.fate.randrange(100, 100_000),
            }
        else:
            order = self.fate.choice(moved)
        if order["version"] and draw < 0.34:
            return self.muddled(order)
        order["version"] += 1
        order["status"] = LIFE[order["version"] - 1]
        order["paid"] = order["version"] > LIFE.index("paid")
        return self.planned("order", f"order.{order['status']}", dict(order))

    def muddled(self, order: Mapping[str, Any]) -> Planned:
        """Another state under the version that the order has: a read has to tell which is right."""
        return self.planned("muddled", "order.muddled", {**order, "status": "muddled"})

    def refund(self, amount: int) -> Planned:
        data = {"order_id": self.fate.choice(list(self.orders)), "amount": amount}
        kind: Kind = "poison" if amount == POISON else "refund"
        return self.planned(kind, "refund.succeeded", data)

    def malformed(self) -> Planned:
        data = {"order_id": self.fate.choice(list(self.orders)), "version": "the fifth"}
        return self.planned("malformed", "order.updated", data)

    def planned(
        self, kind: Kind, type_: str, data: Mapping[str, Any], *, fate: Fate | None = None
    ) -> Planned:
        self.told += 1
        rates = self.rates
        lost = kind == "order" and self.fate.random() < rates.lost
        copies = 1 + (self.fate.randrange(1, 4) if self.fate.random() < rates.repeated else 0)
        delays = tuple(
            self.fate.uniform(0, rates.longest_delay) if self.fate.random() < rates.delayed else 0.0
            for _ in range(copies)
        )
        return Planned(
            id=f"{self.prefix}evt_{self.told}",
            type=type_,
            kind=kind,
            data=data,
            fate=fate or ("lost" if lost else "sent"),
            delays=delays,
        )
