"""What must be shown, each as one run of relays against the provider."""

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.history.waiting import until
from tests.postgres_proxy import PostgresProxy
from tests.provider.behaviours import MAIL, every_name
from tests.provider.judge import Seen
from tests.provider.store import rows
from tests.provider.world import (
    IN_LANES,
    KEY_LIFE,
    LEASE,
    TIMEOUT,
    World,
    an_entry,
    key_at_the_provider,
)
from tests.replicas.scenarios import skewed

GROWTH = 40 * 1024  #: KiB that a relay may grow by: less than two of the bodies that come
TOLD_EVERY = 5.0  #: seconds
PACE = 0.25  #: seconds between two lanes, which is time for things to happen
SHARES = {
    "payments": 0.36,
    "lanes": 0.15,
    "named": 0.15,
    "letters": 0.18,
    "forgetful": 0.04,
    "strict": 0.12,
}
LEASING = "was_maybe_sent"  #: only the statement that leases asks for something of this name
ROUNDS = 3
REFUSE_MARKS = """
create function reconciler.full_disk() returns trigger language plpgsql as
$$ begin raise exception 'could not extend file' using errcode = '53100'; end $$;
create trigger full_disk before insert or update on reconciler.outbox_attempts
  for each statement execute function reconciler.full_disk();
"""
TAKE_MARKS = """
drop trigger full_disk on reconciler.outbox_attempts; drop function reconciler.full_disk();
"""


@dataclass(slots=True, kw_only=True)
class Ran:
    """What one run came to, beside what the judge finds."""

    faults: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)  #: beside what the judge finds in the store
    must: Sequence[str] = ()  #: what a long run has to meet
    undisturbed: bool = False
    punctual: bool = False


async def killed(world: World, *, entries: int, every: float, most: float) -> Ran:
    """
    Three relays, one killed with SIGKILL *every* so many seconds until all is over, or *most*
    times; sometimes the provider too.
    """
    ran = Ran()
    names = ("r1", "r2", "r3")
    for name in names:
        await world.start(name)
    await world.ready(*names)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(produced(world, mixed(entries), every=entries / 40))
        group.create_task(told(world, stop))
        group.create_task(kills(world, names, stop, seconds=every, most=most))
        await drained(world, entries=entries)
        stop.set()
    await world.stop()
    ran.figures["relays killed"] = len(world.deaths)
    ran.figures["provider killed"] = len(world.provider_deaths)
    ran.figures["grown by MiB"] = round(world.grown / 1024, 1)
    ran.met["the breaker opened"] = world.told("relay.breaker_opened")
    ran.must = [*every_name(), "the breaker opened"]
    if world.grown > GROWTH:
        ran.faults.append(f"other: a relay grew by {world.grown // 1024} MiB")
    return ran


def mixed(entries: int) -> list[tuple[str, int]]:
    """Which entries of which destinations, all lanes whole."""
    found = []
    for destination, share in SHARES.items():
        count = int(entries * share) // 3 * 3
        found += [(destination, number) for number in range(count)]
    return found


async def produced(world: World, wanted: Sequence[tuple[str, int]], *, every: float) -> None:
    """Ask for all that is *wanted*, lanes in their order and all else as it comes."""
    order = sorted(wanted, key=lambda one: (one[1] % 97, one[1] // 97, one[0]))
    lanes = {
        name: iter(sorted(number for what, number in wanted if what == name)) for name in IN_LANES
    }
    asked = [(what, next(lanes[what]) if what in lanes else number) for what, number in order]
    size = max(1, int(every))
    for start in range(0, len(asked), size):
        await world.enqueue(an_entry(*one) for one in asked[start : start + size])
        await asyncio.sleep(0.2)


async def kills(
    world: World,
    names: Sequence[str],
    stop: asyncio.Event,
    *,
    seconds: float,
    most: float,
    providers: bool = True,
) -> None:
    """One at random, every so many *seconds*; whoever was killed is started again at once."""
    dice = random.Random(world.seed)
    number = 0
    while number < most and not await waited(stop, seconds):
        world.look()
        alive = [name for name in names if world.relays[name].ready]
        if len(alive) < 2:
            continue  # on a busy machine they take their time to start: somebody has to work
        number += 1
        name = dice.choice(alive)
        await world.kill(name)
        await world.start(name)
        if providers and number % 8 == 5:
            await world.kill_provider()
            await world.provide()


async def waited(stop: asyncio.Event, seconds: float) -> bool:
    """Wait for so long; True where *stop* came first."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
    return stop.is_set()


async def told(world: World, stop: asyncio.Event) -> None:
    """Progress on stderr, and a look at everybody's memory."""
    began = said = time.monotonic()
    while not await waited(stop, 0.1):
        world.look()
        if time.monotonic() - said > TOLD_EVERY:
            said = time.monotonic()
            left = await world.waiting()
            sys.stderr.write(
                f"  {said - began:4.0f} s: {len(world.expected)} asked for, {left} waiting,"
                f" {len(world.deaths)} relays killed\n"
            )


async def drained(world: World, *, entries: int) -> None:
    """Wait until everything was asked for and nothing waits; else the judge says what is left."""
    await until_async(lambda: through(world, len(mixed(entries))), within=120 + entries / 20)


async def refused(world: World, *, entries: int, seconds: float) -> Ran:
    """
    The database takes no more writes right after calls have succeeded; first none at all, then
    only what calls have come to. Then it does again.
    """
    ran = Ran()
    names = ("r1", "r2")
    for name in names:
        await world.start(name)
    await world.ready(*names)
    for how in ("read only", "no marks"):
        asked, before = len(world.expected), came(world)
        await world.tell("gate", "shut")
        numbers = range(asked // 2, asked // 2 + entries // 4)
        await world.enqueue(an_entry("payments", number) for number in numbers)
        await world.enqueue(an_entry("letters", number) for number in numbers)
        full = 2 * min(world.concurrency, len(numbers))
        assert await until(lambda full=full, before=before: came(world) - before >= full, within=60)
        async with refusing(world, how):
            before, failed = came(world), world.tellers("relay.marks_failed")
            await world.tell("gate", "open")
            if how == "no marks":
                rash = await rash_calls(world, 4 * full, failed=failed, seconds=seconds)
            else:
                await asyncio.sleep(seconds)
                rash = came(world) - before
        ran.figures[f"calls while refused, {how}"] = rash
        # what is being leased in that moment may still be called
        if rash > full:
            ran.faults.append(f"other: {rash} calls while nothing could be written, {how}")
        await drained_of(world)
    await world.stop()
    repeats = came(world) - len(world.expected)
    ran.figures["repeats"] = repeats
    ran.met["leases that could not be taken"] = world.told("relay.database_away")
    ran.met["marks that could not be written"] = world.told("relay.marks_failed")
    ran.must = list(ran.met)
    if repeats > 2 * full * len(names):
        ran.faults.append(f"other: {repeats} repeats of {len(world.expected)}")
    return ran


async def rash_calls(world: World, more: int, *, failed: Counter[str], seconds: float) -> int:
    """
    How many of some entries *more* are called by whoever knows that no marks can be written.

    *failed*: how often each has found that out before.
    """

    def found_out() -> set[str]:
        now = world.tellers("relay.marks_failed")
        return {caller for caller in now if now[caller] > failed[caller]}

    assert await until(found_out, within=60)
    knowing = found_out()
    first = len(world.expected)
    await world.enqueue(an_entry("payments", number) for number in range(first, first + more))
    await asyncio.sleep(seconds)
    asked = {f"payments {number}" for number in range(first, first + more)}
    return sum(
        row["caller"] in knowing and row["reference"] in asked
        for row in rows(world.store, "select caller, reference from arrivals")
    )


def came(world: World) -> int:
    """How many calls have come so far."""
    return int(rows(world.store, "select count(*) from arrivals")[0][0])


@asynccontextmanager
async def refusing(world: World, how: str) -> AsyncIterator[None]:
    """The database refuses writes for as long as the block runs."""
    (row,) = await world.rows("select current_database() as name")
    database = row["name"]
    if how == "no marks":
        await world.rows(REFUSE_MARKS)
    else:
        await world.rows(f"alter database {database} set default_transaction_read_only = on")
        await thrown_out(world)
    try:
        yield
    finally:
        if how == "no marks":
            await world.rows(TAKE_MARKS)
        else:
            await world.rows(f"alter database {database} reset default_transaction_read_only")
            await thrown_out(world)


async def thrown_out(world: World) -> None:
    """End every connection to the database: the next ones go by what was said meanwhile."""
    await world.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )


async def drained_of(world: World, *, within: float = 120) -> None:
    await until_async(lambda: through(world, len(world.expected)), within=within)


async def replicas(world: World, *, entries: int) -> Ran:
    """Three relays, one of them with its clock two minutes ahead; nothing else happens."""
    ran = Ran(undisturbed=True)
    await started(world, "r1", "r2", ahead=("r3",))
    wanted = [(name, n) for name in ("payments", "letters") for n in range(entries // 2)]
    await produced(world, wanted, every=entries / 10)
    await drained_of(world, within=60 + entries / 10)
    await world.stop()
    for name, share in shares(world).items():
        ran.figures[f"calls of {name}"] = share
        if share < 0.05:
            ran.faults.append(f"other: {name} made {share:.0%} of the calls")
    return ran


def shares(world: World) -> dict[str, float]:
    """Which part of all calls each relay made."""
    found = rows(world.store, "select caller, count(*) as n from arrivals group by 1")
    calls = dict.fromkeys(world.relays, 0)
    for row in found:
        calls[row["caller"].partition(".")[0]] += row["n"]
    return {name: round(n / max(1, sum(calls.values())), 3) for name, n in calls.items()}


async def started(world: World, *names: str, ahead: Sequence[str] = ()) -> None:
    """Start relays, those that are *ahead* with a clock of their own."""
    clocks = {"+120s": ahead[:1], "-90s": ahead[1:]}
    for name in names:
        await world.start(name)
    for by, whose in clocks.items():
        for name in whose:
            clock = skewed(by)
            assert clock is not None, "skewed clocks need Debian's faketime"
            await world.start(name, environment=clock)
    await world.ready(*names, *ahead)


async def order(world: World, *, entries: int) -> Ran:
    """
    Lanes of three under failures: relays with wrong clocks, one that is killed again and again,
    one whose database is slow, one that stands still. The first entries of some lanes are
    refused until all other lanes are through.
    """
    ran = Ran()
    async with PostgresProxy(world.database_url) as proxy:
        await world.tell("blocked", "yes")
        await started(world, "r1", ahead=("r3", "r4"))
        await world.start("r2", database_url=proxy.url)
        await world.ready("r2")
        lanes = entries // 3
        stuck = {lane for lane in range(lanes) if lane % 30 in (3, 16)}  # one of each kind
        async with asyncio.TaskGroup() as group:
            disturbing = group.create_task(disturbed(world, proxy))
            for lane in range(lanes):
                what = IN_LANES[lane % 2]
                for place in range(3):  # each in a transaction of its own
                    blocked = lane in stuck and place == 0
                    await world.enqueue([an_entry(what, 3 * lane + place, blocked=blocked)])
                await asyncio.sleep(PACE)
            free = 3 * (lanes - len(stuck))
            flowed = await until_async(lambda: through(world, free), within=120 + entries / 5)
            disturbing.cancel()
        ran.figures["waiting behind refused heads"] = await world.waiting()
        if not flowed:
            ran.faults.append("other: lanes waited for the head of another")
        if await world.waiting() != 3 * len(stuck):
            ran.faults.append("other: an entry went before a head that was refused")
        await world.tell("blocked", "no")
        await drained_of(world, within=60 + entries / 5)
        await world.stop()
    ran.figures["relays killed"] = len(world.deaths)
    ran.met["relays killed"] = len(world.deaths)
    ran.met["heads that were refused"] = len(stuck)
    ran.met["leases that came too late"] = came_too_late(world)
    ran.met["a call was marked by nobody"] = sum(
        row["n"]
        for row in await world.rows(
            "select count(*) as n from reconciler.outbox_attempts where verdict is null"
        )
    )
    ran.must = list(ran.met)
    return ran


async def late(world: World, *, entries: int) -> Ran:
    """
    One relay hears from its database only when its leases are over: of what it has leased, and
    then of what it has to write down. Another one is there to take over.
    """
    ran = Ran(punctual=True)
    async with PostgresProxy(world.database_url) as proxy:
        await world.start("r1", database_url=proxy.url)
        await world.start("r2")
        await world.ready("r1", "r2")
        each = min(world.concurrency, entries // 2 // (2 * ROUNDS))
        for turn in range(ROUNDS):
            first = 2 * turn * each
            await leased_late(world, proxy, range(first, first + each))
            await marked_late(world, proxy, range(first + each, first + 2 * each))
        await world.stop()
    ran.met["leases that came too late"] = came_too_late(world)
    ran.met["marks that came too late"] = len(
        await world.rows(
            "select 1 from reconciler.outbox o join reconciler.outbox_attempts a"
            " on a.entry_id = o.id where a.verdict = 'delivered' and o.destination = 'letters'"
            " and a.finished_at > a.started_at + make_interval(secs => %s)",
            LEASE,
        )
    )
    ran.must = list(ran.met)
    return ran


async def leased_late(world: World, proxy: PostgresProxy, numbers: range) -> None:
    """r1 is told what it has leased when r2 has taken it over."""
    before = came_too_late(world)
    async with only_r1(world):
        proxy.late_after_commit(LEASE + 2.5, having=LEASING)
        await ask_for(world, numbers)
        assert await until(proxy.is_late, within=30)
    await drained_of(world)

    async def has_heard() -> bool:
        return came_too_late(world) >= before + 2 * len(numbers)

    await until_async(has_heard, within=2 * LEASE)


def came_too_late(world: World) -> int:
    return world.told("relay.released", '"late": true')


async def marked_late(world: World, proxy: PostgresProxy, numbers: range) -> None:
    """r1 is cut off from its database while its calls succeed, until its leases are over."""
    before = came(world)
    await world.tell("gate", "shut")
    async with only_r1(world):
        await ask_for(world, numbers)
        full = before + 2 * len(numbers)
        assert await until(lambda: came(world) == full, within=30)
        proxy.refuse()
        proxy.reset_all()
        await world.tell("gate", "open")
    await drained_of(world)
    proxy.accept()
    ids = [f"evt_letters_{number}" for number in numbers]

    async def are_settled() -> bool:
        held = await world.rows(
            "select 1 from reconciler.outbox where event_id = any(%s) and state = 'uncertain'", ids
        )
        return not held

    await until_async(are_settled, within=2 * LEASE)


async def ask_for(world: World, numbers: range) -> None:
    await world.enqueue(an_entry(name, n) for n in numbers for name in ("payments", "letters"))


@asynccontextmanager
async def only_r1(world: World) -> AsyncIterator[None]:
    """r2 is away."""
    await world.stop("r2")
    yield
    await world.start("r2")


async def mail(world: World, *, entries: int, every: float, most: float) -> Ran:
    """Mails through a mail server that loses its answers, by relays of which one is killed."""
    ran = Ran()
    names = ("r1", "r2", "r3")
    await world.serve_mail()
    for name in names:
        await world.start(name)
    await world.ready(*names)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(kills(world, names, stop, seconds=every, most=most, providers=False))
        for start in range(0, entries, 5):
            numbers = range(start, min(start + 5, entries))
            await world.enqueue(an_entry("mail", number) for number in numbers)
            await asyncio.sleep(PACE)
        await drained_of(world)
        stop.set()
    await world.stop()
    ran.figures["relays killed"] = len(world.deaths)
    ran.must = [*MAIL, "its caller was killed"]
    return ran


async def through(world: World, count: int) -> bool:
    asked = len(world.expected)
    return asked - await world.waiting() >= count


async def until_async(look: Callable[[], Awaitable[bool]], *, within: float) -> bool:
    limit = time.monotonic() + within
    while not await look():
        if time.monotonic() > limit:
            return False
        await asyncio.sleep(0.1)
    return True


async def disturbed(world: World, proxy: PostgresProxy) -> None:
    """Kill r1; slow down what r2 hears from its database; let r3 stand still past a lease."""
    r3 = world.relays["r3"]
    assert r3.child is not None
    try:
        while True:
            await world.kill("r1")
            await world.start("r1")
            proxy.trickle(1500)
            began = time.time()
            try:
                r3.child.send_signal(signal.SIGSTOP)
                await asyncio.sleep(LEASE + 1)
            finally:
                r3.child.send_signal(signal.SIGCONT)
                world.freezes.append((r3.caller, began, time.time()))
            proxy.trickle(None)
            await asyncio.sleep(1)
    finally:
        proxy.trickle(None)


async def seen(world: World, ran: Ran) -> Seen:
    """Everything that the judge looks at."""
    entries = await world.rows("select * from reconciler.outbox")
    attempts = await world.rows(
        "select * from reconciler.outbox_attempts order by entry_id, attempt"
    )
    return Seen(
        asked=[
            (
                one.destination,
                f"{one.destination} {one.event_id.rpartition('_')[2]}",
                key_at_the_provider(one),
            )
            for one in world.expected
        ],
        arrivals=[dict(row) for row in rows(world.store, "select * from arrivals order by number")],
        effects=[dict(row) for row in rows(world.store, "select * from effects order by number")],
        entries=entries,
        attempts=attempts,
        deaths=[(death.caller, death.at) for death in world.deaths],
        provider_deaths=world.provider_deaths,
        freezes=world.freezes,
        undisturbed=ran.undisturbed,
        punctual=ran.punctual,
        key_life=KEY_LIFE,
        lease=LEASE,
        patience=TIMEOUT * 0.9,
    )


SCENARIOS: Mapping[str, Callable[..., Awaitable[Ran]]] = {
    "killed": killed,
    "refused": refused,
    "replicas": replicas,
    "late": late,
    "order": order,
    "mail": mail,
}
