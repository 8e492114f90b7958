"""
kill -9 of real processes under load: at every point, and at any time.

    python -m tests.kills                   every point of a daemon and of a command, 20 at any time
    python -m tests.kills --rounds 100      a hundred at any time
    python -m tests.kills relay-half-sent   only at this point
    python -m tests.kills --seed 7          other moments

After each kill the next process is started and nothing else is done; the sender repeats what was
not answered. Ends with 1 where anything that was acknowledged is lost, anything is doubled, or a
start was not ready within five seconds. (On a machine where a start that follows no kill takes
longer than two, within three times that.)
"""

import argparse
import asyncio
import random
import secrets
import sys
import tempfile
import time
from pathlib import Path

from reconciler import faults, migrate
from tests.clusters import a_cluster, made_database
from tests.kills.judge import CURSES, faults_of, quiet
from tests.kills.load import Load
from tests.kills.rounds import COMMANDS, FIRST, READY_WITHIN, Kills, points
from tests.world import a_world

SLOWER = 3  #: times as long as a start that follows no kill, where that is slow already


def main(words: list[str]) -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.kills")
    asked.add_argument("points", nargs="*", choices=[*faults.POINTS, []], metavar="POINT")
    asked.add_argument("--rounds", type=int, default=20, help="kills at any time")
    asked.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    said = asked.parse_args(words)
    begun = time.monotonic()
    name = f"kills_{secrets.token_hex(3)}"
    with (
        a_cluster() as cluster,
        made_database(cluster, name) as url,
        tempfile.TemporaryDirectory(prefix="kills-") as place,
    ):
        found = asyncio.run(killed(Path(place), url, said))
    tell(f"seed {said.seed}, {time.monotonic() - begun:.0f} s")
    for fault in found:
        tell(f"WRONG: {fault}")
    return 1 if found else 0


async def killed(place: Path, url: str, said: argparse.Namespace) -> list[str]:
    """Do all that was *said*; everything that is wrong afterwards."""
    await migrate.upgrade(url)
    async with a_world(place, url) as world:
        await world.rows(CURSES)
        await world.dies_at(FIRST)
        tell(f"killed at {FIRST}")
        begun = time.monotonic()
        async with world.serving():  # what is there before it is history
            usual = time.monotonic() - begun
            await world.baseline_over()
        load = Load(world=world, random=random.Random(said.seed))
        kills = Kills(world=world, load=load)
        await all_rounds(kills, said)
        found = await made_good(kills, allowed=max(READY_WITHIN, SLOWER * usual))
    return [*found, *unreached(kills, said)]


async def all_rounds(kills: Kills, said: argparse.Namespace) -> None:
    for at in said.points or points():
        if at in points():
            await kills.at_point(at)
            tell(f"killed at {at}")
    for at, commands in COMMANDS.items():
        for words in commands if not said.points or at in said.points else ():
            await kills.command(at, *words)
            tell(f"killed {words[0]} at {at}")
    for number in range(0 if said.points else said.rounds):
        await kills.at_any_time()
        tell(f"killed at any time, {number + 1}")


async def made_good(kills: Kills, *, allowed: float) -> list[str]:
    """Start once more, let the sender repeat, wait; what is wrong then, and what came too late."""
    world, load = kills.world, kills.load
    await world.start()
    await load.drained()
    await quiet(world)
    found = [f"acknowledged and lost at once: {id_}" for id_ in kills.losses]
    found += await faults_of(world, load)
    await world.daemons[-1].stops()
    slow = [f"ready only after {took:.1f} s" for took in kills.ready if took > allowed]
    tell(
        f"{sum(kills.hits.values())} kills, {len(load.acknowledged)} events acknowledged,"
        f" {load.repeated} deliveries repeated, {len(world.destination.calls)} calls,"
        f" ready within {max(kills.ready):.1f} s at the latest, {allowed:.1f} s were allowed"
    )
    return found + slow


def unreached(kills: Kills, said: argparse.Namespace) -> list[str]:
    """What shows that the run met nothing, and so proved nothing."""
    wanted = [at for at in said.points or points() if at in points()]
    found = [f"never killed at {at}" for at in wanted if not kills.hits.get(at)]
    if not said.points:
        found += ["nothing had to be repeated"] if not kills.load.repeated else []
        found += ["nothing was applied"] if len(kills.load.acknowledged) < 50 else []
    return found


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
