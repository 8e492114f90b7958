"""The private PostgreSQL: started, watched and stopped by us, one owner at a time."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import structlog

from reconciler import embedded_leftovers as leftovers
from reconciler.embedded_lock import Lock
from reconciler.embedded_server import STARTED_WITHIN, Server, url_of
from reconciler.errors import BusyError, ConfigError

if TYPE_CHECKING:
    from reconciler.settings.models import Settings

log = structlog.get_logger()

COMMAND_WAIT: Final = timedelta(seconds=15)
"""How long a daemon that wants to start waits for a command that runs the server."""

JOINED_WAIT: Final = timedelta(hours=1)
"""How long a command keeps the server that it started for commands that joined it."""

LOOK_EVERY: Final = 0.02
WATCH_EVERY: Final = 0.2
RESTART_PAUSE_MAX: Final = 5.0


def start(state: Path, *, fast: bool = False) -> "Embedded":
    """
    Start the private PostgreSQL under *state*, as the one daemon that owns it.

    Waits a little for a command that runs the server for its own duration. Must be called from
    the main thread: the kernel stops the server when the thread that started it ends. With
    *fast* nothing is flushed to disk, which is for tests.

    Raises BusyError, naming the process, where another daemon owns it; ConfigError where it
    cannot run here; DatabaseAwayError where it does not start.
    """
    lock = Lock.on(made(state) / "lock")
    try:
        lock.take(role="daemon", patience=COMMAND_WAIT)
        return started(state, lock, joined=None, fast=fast)
    except BaseException:
        lock.close()
        raise


def attach(state: Path) -> "Embedded":
    """
    Reach the private PostgreSQL from a command: join it where it runs, else start it.

    What was started ends with `stop()`, after the commands that joined it have finished.
    Raises as `start` does.
    """
    lock = Lock.on(made(state) / "lock")
    joined = Lock.on(state / "joined")
    try:
        server = joined_or_started(state, lock=lock, joined=joined)
    except BaseException:
        lock.close()
        joined.close()
        raise
    return server


def joined_or_started(state: Path, *, lock: Lock, joined: Lock) -> "Embedded":
    deadline = time.monotonic() + STARTED_WITHIN.total_seconds()
    while time.monotonic() < deadline:
        if joined.share() and (url := join(state)) is not None:
            lock.close()
            return Embedded(url=url, server=None, lock=None, joined=joined)
        joined.release()
        if lock.try_take(role="command"):
            return started(state, lock, joined=joined, fast=False)
        time.sleep(LOOK_EVERY)  # it is being started, or stopped
    raise BusyError(f"the private PostgreSQL is neither up nor free: {lock.told()} has it")


def join(state: Path) -> str | None:
    """The URL of the private PostgreSQL under *state* where it runs and is ready, else None."""
    for data in sorted(state.glob("pg[0-9]*")):
        lines = leftovers.postmaster_lines(data)
        if lines[7:] == ["ready"] and answers(url := url_of(Path(lines[4]))):
            return url
    return None


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False  # its file outlived it, or it is just going
    return True


def started(state: Path, lock: Lock, *, joined: Lock | None, fast: bool) -> "Embedded":
    """The server under *state*, started by whoever holds *lock*."""
    server = Server.under(state, fast=fast)
    try:
        server.start()
    except BaseException:
        server.stop()
        raise
    log.info("embedded.started", data=str(server.data), account=server.account.argument)
    return Embedded(url=server.url, server=server, lock=lock, joined=joined)


def made(state: Path) -> Path:
    """*state*, made if need be."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the state directory {state} cannot be made: {error.strerror}",
            hint="set [server] state_directory or database.url",
        ) from error
    return state


def state_directory(settings: "Settings", environ: Mapping[str, str] = os.environ) -> Path:
    """
    Where the private PostgreSQL and its lock live.

    `[server] state_directory`, else $STATE_DIRECTORY (systemd's), else /var/lib/reconciler for
    root, else $XDG_STATE_HOME/reconciler, else ~/.local/state/reconciler.
    """
    if configured := settings.server.state_directory:
        return configured.expanduser().absolute()
    if given := environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0]).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/reconciler")
    home = Path(environ.get("XDG_STATE_HOME") or "")
    if home.is_absolute():  # the XDG specification: a relative one is to be ignored
        return home / "reconciler"
    try:
        return Path.home() / ".local/state/reconciler"
    except RuntimeError:
        raise ConfigError(
            "there is no home directory to keep the private PostgreSQL in",
            hint="set [server] state_directory",
        ) from None


class Embedded:
    """A private PostgreSQL within reach: ours to stop, or joined."""

    def __init__(
        self, *, url: str, server: Server | None, lock: Lock | None, joined: Lock | None
    ) -> None:
        self.url = url
        self._server = server
        self._lock = lock
        self._joined = joined

    async def supervise(self, stop: asyncio.Event, beat: Callable[[], None] = lambda: None) -> None:
        """Start the server again whenever it ends by itself, until *stop* is set."""
        server = self._server
        pause = WATCH_EVERY
        while not await is_set_within(stop, pause):
            beat()
            if server is None or not server.has_ended():
                pause = WATCH_EVERY
                continue
            log.error("embedded.server_ended", said=server.complaint())
            await asyncio.to_thread(leftovers.stop_orphan, server.data)
            try:
                server.launch()  # in this thread: the kernel ends the server with its thread
            except OSError as error:
                log.error("embedded.start_failed", error=str(error))  # noqa: TRY400
            pause = min(2 * pause, RESTART_PAUSE_MAX)

    def stop(self) -> None:
        """Leave a joined server as it is; stop one that we started. Again: does nothing."""
        if self._server is not None:
            if self._joined is not None:
                wait_for_joined(self._joined)
            self._server.stop()
            self._server = None
        for lock in (self._joined, self._lock):
            if lock is not None:
                lock.close()


def wait_for_joined(joined: Lock) -> None:
    """Keep the server up for the commands that joined it, and let no more of them join."""
    deadline = time.monotonic() + JOINED_WAIT.total_seconds()
    waiting = False
    while not joined.try_take(role="leaving") and time.monotonic() < deadline:
        if not waiting:
            log.info("embedded.waiting", reason="other commands use this server")
            waiting = True
        time.sleep(LOOK_EVERY)


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
