"""The lock on the private PostgreSQL: held by a living process, or by nobody."""

import fcntl
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Self

from reconciler.errors import BusyError, ConfigError


class Lock:
    """
    A file that one process at a time owns, or that several share.

    The kernel frees it when its holder ends, however that happens. What is written in it only
    tells people (and a waiting daemon) who that is.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def on(cls, path: Path) -> Self:
        """Open the lock file, made if need be; as root it belongs to whose directory it is in."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(f"{path} cannot be opened: {error.strerror}") from error
        if os.geteuid() == 0:
            directory = path.parent.stat()
            os.fchown(descriptor, directory.st_uid, directory.st_gid)
        return cls(path, descriptor)

    def take(self, *, role: str, patience: timedelta) -> None:
        """
        Become the owner. Raises BusyError at once where a daemon is, and after *patience* where
        a command is, which ends by itself.
        """
        deadline = time.monotonic() + patience.total_seconds()
        while not self.try_take(role=role):
            holder, _, pid = self.told().partition(" ")
            if (holder == "daemon" and is_alive(pid)) or time.monotonic() > deadline:
                raise BusyError(
                    f"{self.path.parent} is in use by another {self.told()}",
                    hint="one daemon at a time; replicas need a database server of their own",
                )
            time.sleep(0.02)

    def try_take(self, *, role: str) -> bool:
        """Become the owner if nobody is; say whether that worked."""
        if not self.held(fcntl.LOCK_EX):
            return False
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{role} {os.getpid()}\n".encode(), 0)
        return True

    def share(self) -> bool:
        """Become one of several holders, if there is no owner; say whether that worked."""
        return self.held(fcntl.LOCK_SH)

    def held(self, how: int) -> bool:
        try:
            fcntl.flock(self.descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def told(self) -> str:
        """Who holds it, as they wrote it down: role and process id."""
        return os.pread(self.descriptor, 100, 0).decode(errors="replace").strip() or "process"

    def release(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give it up for good; closing it again does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
