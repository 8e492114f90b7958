"""Carries out what a plan breaks, and writes down what has been broken indeed."""

import asyncio
from collections.abc import Sequence

from reconciler.proving.history import History
from tests.history.plan import CUTS, Fault
from tests.history.replicas import Replica
from tests.history.sender import Sender
from tests.history.server import Cluster
from tests.history.waiting import until

FROZEN = 0.4  #: seconds
AWAY = 2.0  #: seconds; more than a transaction is tried again for, so that senders hear of it
OCCASION = 3.0  #: seconds in which a COMMIT that can be cut must come


async def break_things(
    faults: Sequence[Fault],
    *,
    sender: Sender,
    replicas: Sequence[Replica],
    cluster: Cluster,
    history: History,
) -> None:
    """One fault after the other, each when so many events have been emitted."""
    for fault in sorted(faults, key=lambda fault: fault.after):
        await until(lambda after=fault.after: sender.emitted >= after, within=60)  # type: ignore[misc]
        replica = replicas[fault.replica]
        await until(lambda one=replica: one.address is not None, within=20)  # type: ignore[misc]
        if await break_one(fault.what, replica, cluster):
            history.write(fault.what, replica=fault.replica)
        else:
            history.write("no occasion", fault=fault.what, replica=fault.replica)


async def break_one(what: str, replica: Replica, cluster: Cluster) -> bool:
    """Break one thing; False where there was no occasion."""
    proxy = replica.proxy
    match what:
        case "kill":
            await replica.kill()
        case "cut_claim" | "cut_mark":
            proxy.cut_after_commit(having=CUTS[what])
            made = await until(lambda: not proxy.cuts_left(), within=OCCASION)
            proxy.spare()
            return made
        case "reset":
            proxy.reset_all()
        case "restart_database":
            await cluster.restart()
        case "freeze":
            proxy.freeze()
            await asyncio.sleep(FROZEN)
            proxy.thaw()
            proxy.reset_all()
        case "refuse":
            proxy.refuse()
            proxy.reset_all()
            await asyncio.sleep(AWAY)
            proxy.accept()
    return True
