"""Taking connections in: as many at a time as is fair, and at a stop none that we would drop."""

import asyncio
import resource
import socket
from collections.abc import Callable
from datetime import timedelta

import structlog

from reconciler.listening import Listeners

log = structlog.get_logger()

AT_ONCE = 32  #: accepted in one turn: others may listen on the same socket, and requests wait
RESPITE = timedelta(seconds=1)  #: after what accepting again at once would not mend


def within_files(connections: int) -> int:
    """As many of *connections* as leave half of the files that we may open to everything else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections if files == resource.RLIM_INFINITY else min(connections, max(1, files // 2))


class Acceptor:
    """Brings connections from listening sockets into the event loop."""

    def __init__(self, listeners: Listeners, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._listeners = listeners
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[object]] = set()
        self._stopped = False

    def start(self) -> None:
        for listener in self._listeners.sockets:
            self._loop.add_reader(listener, self._take, listener)

    async def stop(self) -> None:
        """
        Accept no more. What has been accepted has its protocol when this returns.

        What still waits in the queue of a passed socket is left to whoever comes after us; in
        that of our own it would be reset, so it is taken.
        """
        self._stopped = True
        for listener in self._listeners.sockets:
            self._loop.remove_reader(listener)
            if not self._listeners.passed:
                while self._take(listener):
                    pass
        self._listeners.close()
        if self._arriving:
            await asyncio.wait(self._arriving)

    def _take(self, listener: socket.socket) -> bool:
        """Accept what waits; whether more may."""
        for _ in range(AT_ONCE):
            try:
                connection, _address = listener.accept()
            except BlockingIOError:
                return False
            except ConnectionError:  # it broke before it was accepted; others wait behind it
                continue
            except OSError as error:  # no descriptor or memory left: others have to end first
                log.warning("accepting.failed", error=str(error))
                self._loop.remove_reader(listener)
                self._loop.call_later(RESPITE.total_seconds(), self._resume, listener)
                return False
            task = self._loop.create_task(self._bring_in(connection))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)
        return True

    def _resume(self, listener: socket.socket) -> None:
        if not self._stopped:
            self._loop.add_reader(listener, self._take, listener)

    async def _bring_in(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:  # gone before it was here
            connection.close()
