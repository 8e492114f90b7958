"""Talking to the service manager: sd_notify(3), without a library and without effect elsewhere."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import structlog

log = structlog.get_logger()

LOOK_EVERY = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How we are: a sentence for `systemctl status`, and whether we should go on like that."""

    told: str
    alive: bool = True


async def report(
    condition: Callable[[], Condition],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """
    Until cancelled, tell systemd of every change of our *condition*, and that we are alive.

    We live as long as the event loop turns and *condition* says so. Somebody else has to look at
    whether we do: a watchdog that is late kills, so it hears from us three times in its interval.
    """
    interval = watchdog_interval(os.environ)
    every = min(LOOK_EVERY, interval / 3) if interval else LOOK_EVERY
    before: Condition | None = None
    while True:
        now = condition()
        if before is not None and now.alive != before.alive:
            say = log.info if now.alive else log.error
            say("daemon.moves" if now.alive else "daemon.stalled", condition=now.told)
        changed = [f"STATUS={now.told}"] if now != before else []
        notify(*changed, *(["WATCHDOG=1"] if now.alive else []))
        before = now
        await sleep(every.total_seconds())


def watchdog_interval(environ: Mapping[str, str]) -> timedelta | None:
    """
    How often at least the service manager wants to hear from us; None where it does not.

    The protocol: sd_watchdog_enabled(3), microseconds that may be meant for another process.

    >>> watchdog_interval({"WATCHDOG_USEC": "30000000"})
    datetime.timedelta(seconds=30)
    >>> watchdog_interval({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}), watchdog_interval({})
    (None, None)
    """
    told, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID")
    if not (told.isascii() and told.isdigit()) or pid not in (None, str(os.getpid())):
        return None
    microseconds = min(int(told), 10**15)
    return timedelta(microseconds=microseconds) if microseconds else None


def notify(*facts: str) -> bool:
    """
    Tell systemd *facts* such as `READY=1`; False where nobody listens.

    The protocol: sd_notify(3), a datagram to $NOTIFY_SOCKET; a leading `@` names an
    abstract socket.
    """
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or not facts:
        return False
    target = "\0" + address[1:] if address.startswith("@") else address
    told = "\n".join(" ".join(fact.splitlines()) for fact in facts)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.setblocking(False)  # it may be full, and our loops have other things to do
        try:
            channel.sendto(told.encode(), target)
        except OSError:
            return False
    return True
