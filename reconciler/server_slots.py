"""How many connections the server holds for us: each counts until the server has let go of it."""

import asyncio
import contextlib
import os
import socket
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import psycopg
import structlog
from sqlalchemy import text
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from reconciler.server_connection import ServerConnection

log = structlog.get_logger()

DOUBTFUL_AFTER: Final = timedelta(seconds=3)
"""A server that has not let go of what we closed for so long may not hold it any more."""

CONNECTS_WITHIN: Final = timedelta(milliseconds=250)
"""How long connecting takes, more or less, where somebody answers."""


def slots_of(engine: AsyncEngine) -> "ServerSlots":
    """The slots that the connections of *engine* take."""
    found = engine.sync_engine.get_execution_options()["server_slots"]
    assert isinstance(found, ServerSlots)
    return found


class ServerSlots:
    """
    At most *size* connections of ours on the server, those included that we have closed.

    One that is closed in the middle of a statement lives on at the server until that notices: a
    storm of cancelled requests could otherwise hold many times the pool. So a slot is free again
    when the server has closed its end too, or says that it does not know the connection.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[ServerConnection]], *, size: int, wait: timedelta
    ) -> None:
        self.size = size
        self._connect = connect
        self._wait = wait
        self._free = size
        self._changed = asyncio.Event()  # replaced whenever it is set
        self._live: weakref.WeakSet[ServerConnection] = weakref.WeakSet()
        self._leaving: dict[_Slot, None] = {}  # the longest gone first
        self._connecting: dict[asyncio.Task[ServerConnection], float] = {}  # since when
        self._spare: list[ServerConnection] = []
        self._condemned_at = float("-inf")

    async def open(self) -> ServerConnection:
        """
        A new connection, as soon as there is a slot for it.

        Connecting is never broken off: whoever is cancelled meanwhile leaves the connection to
        the next who asks. Raises SQLAlchemy's TimeoutError where no slot comes free in time,
        psycopg.OperationalError where nobody answers.
        """
        try:
            async with asyncio.timeout(self._wait.total_seconds()):
                while (spare := self._usable_spare()) is None and not self._take():
                    await self._changed.wait()
        except TimeoutError:
            raise PoolTimeoutError("every connection of ours is in use at the server") from None
        if spare is not None:
            return spare
        loop = asyncio.get_running_loop()
        opening = loop.create_task(self._open())
        self._connecting[opening] = loop.time()
        opening.add_done_callback(self._opened)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise psycopg.OperationalError("the server has come back since") from None
            opening.add_done_callback(self._keep)
            raise

    @property
    def taken(self) -> int:
        """How many connections are open now."""
        return sum(not one.closed for one in self._live)

    @property
    def has_doubtful(self) -> bool:
        """Whether it is worth while to ask the server what it still holds: `forget_gone`."""
        return any(slot.is_doubtful() for slot in self._leaving)

    def may_be_used(self, connection: ServerConnection) -> bool:
        """Whether *connection* was opened after the server was last found silent."""
        return connection.opened_at > self._condemned_at

    def condemn(self, *, before: float = float("-inf")) -> None:
        """
        The server does not answer: use no connection again that is open now.

        Statements that have waited for it since *before* (the loop's time) fail now, but for
        those that were given a longer time than is usual.
        """
        self._condemned_at = asyncio.get_running_loop().time()
        for connection in tuple(self._live):
            connection.give_up_waiting(before=before)

    def connect_again(self) -> None:
        """The server has come back: whoever began to connect before that waits in vain."""
        now = asyncio.get_running_loop().time()
        for opening, since in tuple(self._connecting.items()):
            if now - since > CONNECTS_WITHIN.total_seconds():
                opening.cancel()

    async def forget_gone(self, connection: AsyncConnection) -> None:
        """Ask the server, over *connection*, which of those that we closed it still holds."""
        doubtful = {slot.pid: slot for slot in self._leaving if slot.is_doubtful()}
        if not doubtful:
            return
        listed = "{" + ",".join(map(str, doubtful)) + "}"
        held = await connection.scalars(
            text("select pid from pg_stat_activity where pid = any (cast(:pids as int[]))"),
            {"pids": listed},
        )
        for pid in doubtful.keys() - set(held):
            doubtful[pid].free()

    def close(self) -> None:
        """Close what nobody has come for, and watch no more for what the server does."""
        while self._spare:
            self._spare.pop().let_go()
        for slot in tuple(self._leaving):
            slot.free()

    def _usable_spare(self) -> ServerConnection | None:
        while self._spare:
            spare = self._spare.pop()
            if not spare.closed and self.may_be_used(spare):
                return spare
            spare.let_go()
        return None

    def _take(self) -> bool:
        """Take a slot, if there is one."""
        if self._free == 0:
            self._forgive_one()
        taken = self._free > 0
        self._free -= taken
        return taken

    def _give_back(self) -> None:
        self._free += 1
        self._tell()

    def _tell(self) -> None:
        """There is something for whoever waits."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _forgive_one(self) -> None:
        """Where all slots are held by what we have closed long ago, let one connection in."""
        if self.taken or any(one.forgiven for one in self._leaving):
            return
        for slot in self._leaving:
            if slot.is_doubtful():
                slot.forgiven = True
                self._give_back()
                return

    async def _open(self) -> ServerConnection:
        connection = await self._connect()
        loop = asyncio.get_running_loop()
        slot = _Slot(loop=loop, pid=connection.info.backend_pid, slots=self)
        connection.opened_at = loop.time()
        connection.slot = slot
        self._live.add(connection)
        weakref.finalize(connection, slot.free_from_anywhere).atexit = False
        return connection

    def _opened(self, opening: asyncio.Task[ServerConnection]) -> None:
        del self._connecting[opening]
        if opening.cancelled() or opening.exception() is not None:  # perhaps it never began
            self._give_back()

    def _keep(self, opening: asyncio.Task[ServerConnection]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._spare.append(opening.result())
            self._tell()


@dataclass(slots=True, kw_only=True, eq=False)
class _Slot:
    """The place of one connection at the server."""

    loop: asyncio.AbstractEventLoop
    pid: int
    slots: ServerSlots
    left_at: float | None = None  #: by the loop's time
    forgiven: bool = False  #: it does not count any more, though nobody knows that it is free
    end: socket.socket | None = None
    is_free: bool = False

    def leave(self, connection: psycopg.pq.abc.PGconn) -> None:
        """Close *connection* and watch for the server's doing the same."""
        if self.left_at is not None or self.is_free or self.loop.is_closed():
            connection.finish()
            return
        try:
            self.end = socket.socket(fileno=os.dup(connection.socket))
        except (OSError, psycopg.Error):  # it has been closed from there
            connection.finish()
            self.free()
            return
        connection.finish()
        self.left_at = self.loop.time()
        self.slots._leaving[self] = None  # noqa: SLF001 - one thing in two classes
        with contextlib.suppress(OSError):
            self.end.shutdown(socket.SHUT_WR)  # the server looks for this while it works
        self.loop.add_reader(self.end.fileno(), self._read_on)

    def is_doubtful(self) -> bool:
        assert self.left_at is not None
        return self.loop.time() - self.left_at > DOUBTFUL_AFTER.total_seconds()

    def free(self) -> None:
        """The server does not hold the connection any more."""
        if self.is_free:
            return
        self.is_free = True
        if self.end is not None:
            self.loop.remove_reader(self.end.fileno())
            self.end.close()
            self.slots._leaving.pop(self, None)  # noqa: SLF001
        if not self.forgiven:
            self.slots._give_back()  # noqa: SLF001

    def free_from_anywhere(self) -> None:
        """The connection was collected without having been closed; in whichever thread."""
        if self.left_at is None and not self.is_free and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.free)

    def _read_on(self) -> None:
        assert self.end is not None
        try:
            if not self.end.recv(65536):
                self.free()
        except BlockingIOError:
            return
        except OSError:
            self.free()
